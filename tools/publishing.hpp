// ps_shm --publish: publishes a job's variables while it trains, each time all of them from one snapshot.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "options.hpp"

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
  void run();
  bool waits();  // for the next look; false: it is to end

  const std::string job_, group_;
  const PublishSettings settings_;
  const Notice notice_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace ps::tools
