/// @file
/// Changes the runtime settings of a running job, from any process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ps_shm/export.hpp"
#include "ps_shm/job_config.hpp"

namespace PS_SHM_API ps_shm {

/// A handle for changing a job's runtime settings.
/// @code
///   ps_shm::JobControl control("demo");
///   control.change([](ps_shm::LiveSettings& settings) { settings.lr = 0.01F; });
/// @endcode
/// After a fork() it belongs to the parent: in the child its destructor does nothing, and current() and change() throw
/// Error with kInvalidState.
class JobControl {
 public:
  /// Attaches to a job of this process's user, or of the users of the Unix group `group`.
  ///
  /// @throws Error with kNotFound if there is no such job or group, kPermissionDenied if it is another user's,
  /// kInvalidState if it is dead (no ps and no worker is alive), and otherwise as JobView's constructor.
  explicit JobControl(const std::string& job, const std::string& group = {});
  ~JobControl();
  JobControl(JobControl&&) noexcept;
  JobControl& operator=(JobControl&&) = delete;

  /// The settings that the job was created with.
  const JobConfig& config() const noexcept;

  /// The runtime settings in force.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress lock-free.
  LiveSettings current() const;

  /// Calls `edit` with the runtime settings in force, and applies what it changes. Until `edit` returns nobody else can
  /// change them, so no other change is lost. All workers use the result from their next step on. Each setting that
  /// differs is recorded as an event. The change is atomic: either all of it takes effect or nothing, even if this
  /// process is killed meanwhile.
  ///
  /// @pre `edit` does not call change() of this object.
  /// @throws Error with kInvalidArgument if the job cannot have the result, kInvalidState if the job is over,
  /// kUnavailable if another process is changing the settings at this moment; and whatever `edit` throws. Nothing is
  /// changed then.
  /// @progress waits for nothing but `edit`.
  void change(const std::function<void(LiveSettings&)>& edit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
