// ps_shm --publish: publishes a job's variables while it trains, each time all of them from one snapshot.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/interval.hpp"
#include "options.hpp"
#include "ps/job_view.hpp"
#include "repeating.hpp"

namespace ps::tools {

// Works in a thread of its own, from the job's first step on until it goes; the last state is published then, too.
class Publishing {
 public:
  using Notice = std::function<void(const std::string& line)>;

  // `group`: whose users may subscribe; empty: this one's alone. `notice`, of what is refused, is called in the thread.
  Publishing(std::string job, std::string group, PublishSettings settings, Notice notice);
  ~Publishing();
  Publishing(const Publishing&) = delete;
  Publishing& operator=(const Publishing&) = delete;

 private:
  class Bundle;
  void look(bool is_last);

  const std::string job_, group_;
  const PublishSettings settings_;
  const Notice notice_;
  std::optional<JobView> view_;
  std::unique_ptr<Bundle> bundle_;
  std::optional<config::Due> due_;  // none: at once, when the first step has ended, at which the model is known
  std::uint64_t published_ = 0;
  std::string said_;
  Repeating repeating_;  // the last member: it uses the others
};

}  // namespace ps::tools
