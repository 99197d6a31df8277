// The variable directory: an append-only list of records that any task can extend, and where variables lie in the
// shards.
//
// A variable has one record, or one for each of its parts. With reduce atomic, each of them is followed by the record
// of an accumulator. A declaration declares all of them in order. A declarer that finds only some of them declares the
// rest, or waits for them. The first snapshot declares a reserve for each (snapshot_point.hpp).
//
// Invariants
//   directory.D1 index[0..n) name records, index[n..] are 0. Position n is taken by one compare-exchange from 0, so all
//                declarers of a record compete for one position. One wins; the others find its record and compare.
//   directory.D2 The place of a record, including its shard, is a function of the settings and of the records before
//                it: the place begins at the largest `shard_end` of its shard. A declarer that loses position n
//                computes its place again for n + 1, so nothing is ever given back.
//   directory.D3 A shard's file grows before the record is published: a process that finds the record may touch its
//                bytes.
//   directory.D4 A record is claimed by the declarer's lock byte. A declarer that dies before directory.D1 leaves a
//                claimed record, which only the next holder of that byte uses again.
//   directory.D5, directory.D6: initial values, worker/declaring.cpp
//   directory.D7 The control segment's file grows before a record is claimed in it: a process that finds the record's
//                number, or searches for a record, may touch its bytes.
// Progress: find is wait-free; declare is lock-free (it repeats only when another variable has been declared).
//
// A Directory caches the records that it has read. Records never change, so finding one of many does not read all the
// others again. A Directory is used by one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ps_shm/variable_spec.hpp"
#include "shm/segment/job_segments.hpp"
#include "update/rules.hpp"

namespace ps_shm::shm {

inline constexpr std::uint32_t kNoVariable = ~0U;

class Directory {
 public:
  explicit Directory(JobSegments& job) noexcept;
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // All functions throw Error if the index names an impossible record.

  std::uint32_t count() const noexcept;
  // Whether there is a record at that position. Positions are taken in order, and none is given back.
  bool has(std::uint32_t position) const noexcept;
  // The record at position `position` < count(), in the order of declaration.
  VariableShm& at(std::uint32_t position) const;
  // Position of a variable's first part, or kNoVariable.
  std::uint32_t find(const std::string& name) const;
  // Positions of all parts of the variable whose part 0 is `first`. There may be fewer while it is being declared.
  std::vector<std::uint32_t> parts(std::uint32_t first) const;
  // Position of the accumulator of the record at `position`, or kNoVariable.
  std::uint32_t accumulator(std::uint32_t position) const;
  std::vector<std::string> names() const;

  // Positions of the parts of the specified variable, in order. Declares the parts that do not exist yet. `byte`: the
  // caller's lock byte. `slots`: optimizer slots per element for the variable's rule. Throws Error, naming what
  // disagrees, is out of range or is full.
  std::vector<std::uint32_t> declare(const VariableSpec& spec, std::uint64_t slots, std::uint32_t byte);

  // Gives each chunk of the versioned records at these positions one more buffer, unless it has one; snapshots need it
  // (snapshot.C6). Requires: `byte`, held by the caller, is kSnapshotByte. Throws Error if /dev/shm or the directory is
  // full; /dev/shm is then as full as before.
  void reserve(const std::vector<std::uint32_t>& positions, std::uint32_t byte);

 private:
  struct Wanted;  // a record to be declared
  class Known;    // cache of what the records say
  std::uint32_t declare_record(const Wanted& wanted, std::uint32_t byte);
  std::uint32_t declare_reserve(std::uint32_t position, std::uint32_t byte);
  std::uint32_t claim_record(std::uint32_t byte);
  Known& look() const;  // updated to all records that exist by now
  void require_room(const std::string& name, std::uint32_t parts) const;
  [[noreturn]] void fail_full() const;

  JobSegments& job_;
  mutable std::unique_ptr<Known> known_;  // made on first use
  mutable std::uint32_t covered_ = 0;     // number of records that the control segment's file is known to cover
};

// What the job's learning rate, and its l2, l1 and weight_decay, are multiplied by for a variable. They begin as its
// specification has them, and a worker may change them: one store to the record of each part.
struct Factors {
  float lr_scale = 1.0F, regularize = 0.0F;
};
inline Factors factors_of(std::uint64_t word) noexcept {
  return {.lr_scale = std::bit_cast<float>(static_cast<std::uint32_t>(word)),
          .regularize = std::bit_cast<float>(static_cast<std::uint32_t>(word >> 32))};
}
inline std::uint64_t word_of(const Factors& factors) noexcept {
  return std::uint64_t{std::bit_cast<std::uint32_t>(factors.regularize)} << 32 |
         std::bit_cast<std::uint32_t>(factors.lr_scale);
}

// Throws Error if one is negative or not finite.
void check_factors(std::string_view name, const Factors& factors);

// Gives the settings other factors.
void follow_factors(update::Settings& settings, const JobConfig& config, const Factors& factors) noexcept;

// The settings of a variable's updates in a job with this configuration.
update::Settings settings_of(const JobConfig& config, const VariableShm& record) noexcept;

// The specification with the job's rule and layout if it names none. Types that take no gradients have the rule add,
// and types other than float32 are versioned.
VariableSpec resolved(VariableSpec spec, const JobConfig& config);

// Throws Error, naming the difference, if the two differ. Requires: the specification is resolved.
void check_agreement(const VariableShm& record, const VariableSpec& spec);

// Throws Error if the specification cannot be declared.
void check_spec(const VariableSpec& spec);

std::string shape_to_string(const std::uint64_t* extents, std::uint32_t axes);

// For processes that do not trust the records (record_check.cpp, shm/checks/validation.hpp): a private copy of a record,
// which stays as it was when it was checked. `init` has its value at the time of the copy.
using CheckedRecord = std::unique_ptr<VariableShm>;

// Such copies of all records, in order. Throws Error (kDamaged). Lock-free.
std::vector<CheckedRecord> copy_records(JobSegments& job);

}  // namespace ps_shm::shm
