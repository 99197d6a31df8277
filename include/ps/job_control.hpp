// Changes of a running job's settings, from any process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ps/export.hpp"
#include "ps/job_config.hpp"

namespace PS_API ps {

class JobControl {
 public:
  // A job of this process's user, or of the users of `group`. Throws Error: another user's, or as JobView does.
  explicit JobControl(const std::string& job, const std::string& group = {});
  ~JobControl();
  JobControl(JobControl&&) noexcept;
  JobControl& operator=(JobControl&&) = delete;

  const JobConfig& config() const noexcept;
  LiveSettings current() const noexcept;

  // Lets `edit` alter the settings that hold at this moment: nobody else changes them until it returns, so no change by
  // others is undone. All workers go on with the outcome from their next step on; each difference is an event. Either
  // all of them or, also when this process is killed meanwhile, none. Throws Error: impossible in this job, or somebody
  // else is changing its settings at this moment. So does what `edit` throws; nothing is changed then. Waits for nothing.
  // Requires: `edit` does not call change() of this object.
  void change(const std::function<void(LiveSettings&)>& edit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
