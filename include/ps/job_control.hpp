// Changes of a running job's settings, from any process.
#pragma once

#include <memory>
#include <string>

#include "ps/job_config.hpp"

namespace ps {

class JobControl {
 public:
  // Throws Error as JobView does.
  explicit JobControl(const std::string& job);
  ~JobControl();
  JobControl(JobControl&&) noexcept;
  JobControl& operator=(JobControl&&) = delete;

  const JobConfig& config() const noexcept;
  LiveSettings current() const noexcept;

  // All workers go on with these settings from their next step on; each difference is an event. Either all of them or,
  // also when this process is killed meanwhile, none. Throws Error: impossible in this job, or somebody else is changing
  // its settings at this moment. Waits for nothing.
  void change(const LiveSettings& settings);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
