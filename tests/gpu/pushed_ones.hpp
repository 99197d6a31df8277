// Data that shows a torn chunk or a lost update: gradients of ones, added to GpuMember's initial values, so that all
// elements of a chunk have grown by the same integer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gpu/tables.hpp"
#include "shm/segment/layout.hpp"
#include "support/gpu_cases.hpp"

namespace ps_shm::test {

inline GpuBox on_tables() { return {cuda(), kernels()}; }

inline JobConfig adding_job(Layout layout, std::uint32_t workers, Mode mode = Mode::kAsync) {
  return config_of({.workers = workers,
                    .mode = mode,
                    .layout = layout,
                    .chunk_bytes = 32 << 10,
                    .optimizer = {.rule = UpdateRule::kAdd, .lr = 0.5F}});
}

// By how much element k of GpuMember's i-th variable has grown.
inline float growth(const std::vector<float>& values, std::size_t k, std::size_t i) {
  return values[k] - static_cast<float>((k * 7 + i) % 1000);
}

inline std::size_t count_unlike(const std::vector<float>& values, std::size_t i, float expected) {
  std::size_t unlike = 0;
  for (std::size_t k = 0; k < values.size(); ++k) unlike += growth(values, k, i) != expected;
  return unlike;
}

// Checks successive pulls of the first variable. Versioned: a chunk is of one version, and never older than before. In
// place: the same for each element.
class Whole {
 public:
  Whole(const JobConfig& config, std::uint64_t elements)
      : together_(config.layout == Layout::kVersioned
                      ? (config.chunk_bytes - sizeof(shm::BufferHeaderShm)) / sizeof(float)
                      : 1),
        before_((elements + together_ - 1) / together_, 0.0F) {}

  void look(const std::vector<float>& values) {
    for (std::size_t begin = 0; begin < values.size(); begin += together_) {
      const float all = growth(values, begin, 0);
      float& before = before_[begin / together_];
      bool is_good = all >= before && all == std::floor(all) && all < float(1 << 24);
      for (std::size_t k = begin; k < std::min(begin + together_, values.size()); ++k)
        is_good = is_good && growth(values, k, 0) == all;
      faults_ += is_good ? 0 : 1;
      has_moved_ = has_moved_ || (looks_ > 0 && all != before);
      before = all;
    }
    ++looks_;
  }
  std::uint64_t faults() const { return faults_; }
  bool has_moved() const { return has_moved_; }

 private:
  std::size_t together_;
  std::vector<float> before_;
  std::uint64_t faults_ = 0, looks_ = 0;
  bool has_moved_ = false;
};

}  // namespace ps_shm::test
