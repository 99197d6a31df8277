// ps_shm --publish: publishes a job's variables during training, all of them from one snapshot each time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/ps_options.hpp"
#include "common/repeating.hpp"
#include "config/interval.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm::tools {

// Works in a thread of its own from the job's first step until its destruction, when it publishes the last state.
class Publishing {
 public:
  using LogCallback = std::function<void(const std::string& line)>;

  // `group`: whose users may subscribe; empty: only this user. `log` is called in the thread with errors.
  Publishing(std::string job, std::string group, PublishSettings settings, LogCallback log);
  ~Publishing();
  Publishing(const Publishing&) = delete;
  Publishing& operator=(const Publishing&) = delete;

 private:
  class Bundle;
  bool look(bool is_last);

  const std::string job_, group_;
  const PublishSettings settings_;
  const LogCallback log_;
  std::optional<JobView> view_;
  std::unique_ptr<Bundle> bundle_;
  std::optional<config::Due> due_;  // none: immediately, when the first step has ended, at which the model is known
  std::uint64_t published_ = 0;     // step of the newest generation; before the first one, the job's first step
  Repeating repeating_;             // the last member: it uses the others
};

}  // namespace ps_shm::tools
