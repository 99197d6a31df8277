// What the sections have in common: checked calls, shared memory that the GPU reaches, and medians of turns.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "../processes.hpp"
#include "box.hpp"
#include "device/resources.hpp"
#include "sections.hpp"

namespace ps_shm::bench {

inline void check(device::CudaError error, const char* what) { device::check(cuda(), error, what); }

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The first GPU becomes this thread's. CUDA begins here: fork before.
inline void begin_gpu() {
  check(cuda().yield_in_waits(0), "be used");  // as in a worker
  check(cuda().set_device(0), "be used");
}

// Registers memory of somebody else's for as long as it lives.
class Registered {
 public:
  Registered(void* host, std::size_t bytes, unsigned flags = device::kRegisterPortable | device::kRegisterMapped)
      : host_(host) {
    check(cuda().host_register(host, bytes, flags), "register memory");
    check(cuda().device_address(host, device_), "reach registered memory");
  }
  ~Registered() { static_cast<void>(cuda().host_unregister(host_)); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  template <class T>
  T* on_device() const noexcept {
    return static_cast<T*>(device_);
  }

 private:
  void* host_;
  void* device_ = nullptr;
};

// Looks at `fact` until it holds. False: not within so many seconds.
template <class Fact>
[[nodiscard]] bool comes_true(double seconds, Fact&& fact) {
  for (const double until = now_seconds() + seconds; now_seconds() < until;)
    for (int look = 0; look < 100; ++look) {
      if (fact()) return true;
      spin_pause();
    }
  return false;
}

struct Times {
  double median = 0, least = 0, most = 0;  // seconds
};

inline Times times_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.at(seconds.size() / 2), seconds.front(), seconds.back()};
}

// Each turn returns how long it took. All take their turn in every round, so that none has a quiet machine to itself;
// the first round does not count. Ends early, after three rounds that count, where `seconds` are over.
inline std::vector<Times> take_turns(int rounds, double seconds, const std::vector<std::function<double()>>& turns) {
  std::vector<std::vector<double>> taken(turns.size());
  const double until = now_seconds() + seconds;
  for (int round = 0; round <= rounds && (round <= 3 || now_seconds() < until); ++round)
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const std::size_t turn = (i + static_cast<std::size_t>(round)) % turns.size();
      const double took = turns[turn]();
      if (round > 0) taken[turn].push_back(took);
    }
  std::vector<Times> all;
  for (const std::vector<double>& one : taken) all.push_back(times_of(one));
  return all;
}

template <class Work>
double seconds_of(Work&& work) {
  const double begin = now_seconds();
  work();
  return now_seconds() - begin;
}

inline Json microseconds(const Times& times) {
  return {{"median", times.median * 1e6}, {"least", times.least * 1e6}, {"most", times.most * 1e6}};
}

inline Json rate(const Times& times, std::size_t bytes) {
  return {{"us", microseconds(times)}, {"GB/s", double(bytes) * 1e-9 / times.median}};
}

}  // namespace ps_shm::bench
