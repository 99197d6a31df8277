// The shards of a job, as far as they are registered with CUDA.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "device/registration.hpp"
#include "shm/job_segments.hpp"

namespace ps::device {

class ShardMemory {
 public:
  ShardMemory(CudaCalls& cuda, shm::JobSegments& job) : cuda_(cuda), job_(job) {}

  // Registers what there is of these shards by now, also again when they have grown: buffers of variables that came later
  // may hold any chunk of theirs. No device work may use them meanwhile. False: refused, and nothing is registered.
  [[nodiscard]] bool try_register(const std::set<std::uint32_t>& shards, bool read_only, RegistrationTotals& totals,
                                  std::string& why) {
    for (const std::uint32_t number : shards) {
      auto& shard = shards_[number];
      if (!shard) shard = std::make_unique<Registration>(cuda_);
      const shm::Segment& segment = job_.shard(number);
      if (shard->try_register(segment.data(), segment.usable_bytes(), read_only, totals, why)) continue;
      shards_.clear();
      return false;
    }
    return true;
  }

  bool has_grown() const {
    for (const auto& [number, shard] : shards_)
      if (job_.shard(number).usable_bytes() > shard->bytes()) return true;
    return false;
  }

  const Registration& of(std::uint32_t shard) const { return *shards_.at(shard); }
  std::byte* base(std::uint32_t shard) const { return job_.shard(shard).data(); }
  bool is_empty() const noexcept { return shards_.empty(); }

 private:
  CudaCalls& cuda_;
  shm::JobSegments& job_;
  std::map<std::uint32_t, std::unique_ptr<Registration>> shards_;
};

}  // namespace ps::device
