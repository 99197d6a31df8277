// Data that is being read or made: the lines that say how far it is, and its interruption.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ps_shm::train {

struct LoadHooks {
  std::function<bool()> stop_requested;                   // polled; if true, loading throws Interrupted
  std::function<void(const std::string& line)> log = {};  // "loading a9a: 512 MiB", once every two seconds
};

class Loading {
 public:
  // Requires: `hooks` outlives the object.
  Loading(const LoadHooks& hooks, std::string source);

  // To be called every few milliseconds, as it takes nanoseconds. Both throw Interrupted.
  void at(std::uint64_t done, std::uint64_t all);  // "loading SOURCE: 40 %"
  void at_bytes(std::uint64_t bytes);              // of a source whose size is not known

 private:
  bool is_due();

  const LoadHooks& hooks_;
  const std::string source_;
  std::uint64_t next_ns_;
};

}  // namespace ps_shm::train
