// The shards of a job that are registered with CUDA: once per worker, shared by all of its links.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "device/registration.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm::device {

class ShardMemory {
 public:
  ShardMemory(CudaCalls& cuda, shm::JobSegments& job, int device) : cuda_(cuda), job_(job), device_(device) {}

  // The worker's object: `kept`, if it is in use already. Throws Error if that is for another device.
  static std::shared_ptr<ShardMemory> of_worker(std::weak_ptr<ShardMemory>& kept, CudaCalls& cuda,
                                                shm::JobSegments& job, int device) {
    std::shared_ptr<ShardMemory> found = kept.lock();
    if (!found) {
      found = std::make_shared<ShardMemory>(cuda, job, device);
      kept = found;
    }
    if (found->device_ != device)
      throw Error(fmt::format("the worker already uses GPU {} and cannot use GPU {}: a worker uses one GPU",
                              found->device_, device),
                  ErrorCode::kInvalidState);
    return found;
  }

  // Registers these shards in their present size, also again after they have grown: buffers of variables that were
  // added later may hold any chunk. No device work may use them meanwhile; therefore shards that others use, too
  // (`is_shared`), stay unchanged. Calls announce() before what takes seconds. Returns false if it was refused: then
  // what this call has registered is unregistered again.
  [[nodiscard]] bool try_register(const std::set<std::uint32_t>& shards, bool read_only, bool is_shared,
                                  RegistrationTotals& totals, std::string& why,
                                  const std::function<void(const std::string&)>& announce) {
    std::set<std::uint32_t> made;
    std::uint64_t bytes = 0;
    for (const std::uint32_t number : shards)
      if (!shards_.contains(number)) bytes += job_.shard(number).usable_bytes();
    if (const std::string line = announcement_of(bytes); !line.empty()) announce(line);
    for (const std::uint32_t number : shards) {
      const shm::Segment& segment = job_.shard(number);
      const auto there = shards_.find(number);
      bool is_good = true;
      if (there != shards_.end() && is_shared) {
        is_good =
            segment.usable_bytes() <= there->second.registration->bytes() && (read_only || !there->second.is_read_only);
        if (!is_good)
          why = fmt::format("shard {} was registered for another user of the GPU, {}", number,
                            segment.usable_bytes() > there->second.registration->bytes()
                                ? "and has grown since then: declare all variables first"
                                : "for reading only");
      } else {
        Shard& shard = shards_[number];
        if (!shard.registration) {
          shard = {std::make_unique<Registration>(cuda_), read_only};
          made.insert(number);
        }
        is_good = shard.registration->try_register(segment.data(), segment.usable_bytes(), read_only, totals, why);
        if (!is_good) made.insert(number);  // it holds nothing any more
      }
      if (is_good) continue;
      for (const std::uint32_t one : made) shards_.erase(one);
      return false;
    }
    return true;
  }

  bool has_grown() const {
    for (const auto& [number, shard] : shards_)
      if (job_.shard(number).usable_bytes() > shard.registration->bytes()) return true;
    return false;
  }

  // Tables by key register their own segments: how many bytes one had registered, and has now.
  void count_table(std::uint64_t before, std::uint64_t now) { of_tables_ += now - before; }

  std::uint64_t registered_bytes() const {
    std::uint64_t bytes = of_tables_;
    for (const auto& [number, shard] : shards_) bytes += shard.registration->bytes();
    return bytes;
  }
  const Registration& of(std::uint32_t shard) const { return *shards_.at(shard).registration; }
  std::byte* base(std::uint32_t shard) const { return job_.shard(shard).data(); }

 private:
  struct Shard {
    std::unique_ptr<Registration> registration;
    bool is_read_only = false;
  };

  CudaCalls& cuda_;
  shm::JobSegments& job_;
  const int device_;
  std::map<std::uint32_t, Shard> shards_;
  std::uint64_t of_tables_ = 0;  // bytes
};

}  // namespace ps_shm::device
