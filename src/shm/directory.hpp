// The variable directory: an append-only list of records that any task extends, and where variables lie in the shards.
//
// A variable is one record, or one for each of its parts; with reduce atomic an accumulator follows each. Declaring one
// declares all of them, in order, so whoever finds some declares (or waits for) the rest.
//
// Invariants
//   D1 index[0..n) name records, index[n..] are 0; position n is taken by one compare-exchange from 0, so declarers of
//      one record meet at the same position: one wins, the others find its record and compare.
//   D2 Where a record lies, its shard included, is a function of the settings and of the records before it: its place
//      begins at the largest `shard_end` of its shard. A declarer that loses position n
//      computes its place anew for n + 1, so nothing is ever given back.
//   D3 A shard's file is grown before the record is published, so whoever finds a record may touch its bytes.
//   D4 A record is claimed by the declarer's lock byte. A declarer that dies before D1's swap leaves a claimed record
//      that only the next holder of that byte uses again: at most one record per byte is ever out of use.
// Progress: find is wait-free; declare is lock-free (it repeats only when another variable has been declared).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ps/variable.hpp"
#include "shm/job_segments.hpp"

namespace ps::shm {

inline constexpr std::uint32_t kNoVariable = ~0U;

class Directory {
 public:
  explicit Directory(JobSegments& job) noexcept : job_(job) {}

  std::uint32_t count() const noexcept;
  // The record at position `position` < count(), in the order of declaration.
  VariableShm& at(std::uint32_t position) const noexcept;
  // Position of a variable's first part, or kNoVariable.
  std::uint32_t find(const std::string& name) const noexcept;
  // Positions of all parts of the variable that `first` is part 0 of; fewer where its declarer is still at it.
  std::vector<std::uint32_t> parts(std::uint32_t first) const;
  // Position of the accumulator of the record at `position`, or kNoVariable.
  std::uint32_t accumulator(std::uint32_t position) const noexcept;
  std::vector<std::string> names() const;

  // Positions of the parts of the variable of that specification, in order; declares what nobody has. `byte`: the
  // caller's lock byte. `slots`: optimizer slots per element of its rule.
  // Throws Error: names what disagrees, or is out of range, or full.
  std::vector<std::uint32_t> declare(const VariableSpec& spec, std::uint64_t slots, std::uint32_t byte);

 private:
  struct Wanted;  // a record to be declared
  std::uint32_t declare_record(const Wanted& wanted, std::uint32_t byte);
  std::uint32_t claim_record(std::uint32_t byte) const;
  void place(VariableShm& record, std::uint32_t position);

  JobSegments& job_;
};

// Throws Error where the two differ, naming how.
void check_agreement(const VariableShm& record, const VariableSpec& spec, UpdateRule rule, Layout layout);

// Throws Error unless the specification can be declared.
void check_spec(const VariableSpec& spec);

std::string shape_to_string(const std::uint64_t* extents, std::uint32_t axes);

}  // namespace ps::shm
