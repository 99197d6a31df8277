// The variable directory: an append-only list of records that any task extends, and where variables lie in the shards.
//
// A variable is one record, or one for each of its parts; with reduce atomic an accumulator follows each. Declaring one
// declares all of them, in order, so whoever finds some declares (or waits for) the rest. The first snapshot declares a
// reserve for each (cut.hpp).
//
// Invariants
//   directory.D1 index[0..n) name records, index[n..] are 0. Position n is taken by one compare-exchange from 0, so
//                declarers of one record meet at the same position: one wins, the others find its record and compare.
//   directory.D2 Where a record lies, its shard included, is a function of the settings and of the records before it:
//                its place begins at the largest `shard_end` of its shard. A declarer that loses position n computes
//                its place anew for n + 1, so nothing is ever given back.
//   directory.D3 A shard's file is grown before the record is published: the finder of a record may touch its bytes.
//   directory.D4 A record is claimed by the declarer's lock byte. A declarer that dies before directory.D1 leaves a
//                claimed record that only the next holder of that byte uses again.
//   directory.D5, directory.D6: first values, worker/declaring.cpp
//   directory.D7 The control segment's file is grown before a record is claimed in it: whoever finds a record's number, or
//                looks for one, may touch its bytes.
// Progress: find is wait-free; declare is lock-free (it repeats only when another variable has been declared).
//
// A Directory keeps what it has read: a record never changes, so finding one of many costs no look at all the others. It
// belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ps/variable_spec.hpp"
#include "shm/job_segments.hpp"

namespace ps::shm {

inline constexpr std::uint32_t kNoVariable = ~0U;

class Directory {
 public:
  explicit Directory(JobSegments& job) noexcept;
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // All throw Error where the index names a record that cannot be.

  std::uint32_t count() const noexcept;
  // Whether there is a record at that position: positions are taken in order, and none is given back.
  bool has(std::uint32_t position) const noexcept;
  // The record at position `position` < count(), in the order of declaration.
  VariableShm& at(std::uint32_t position) const;
  // Position of a variable's first part, or kNoVariable.
  std::uint32_t find(const std::string& name) const;
  // Positions of all parts of the variable that `first` is part 0 of; fewer where its declarer is still at it.
  std::vector<std::uint32_t> parts(std::uint32_t first) const;
  // Position of the accumulator of the record at `position`, or kNoVariable.
  std::uint32_t accumulator(std::uint32_t position) const;
  std::vector<std::string> names() const;

  // Positions of the parts of the variable of that specification, in order; declares what nobody has. `byte`: the
  // caller's lock byte. `slots`: optimizer slots per element of its rule.
  // Throws Error: names what disagrees, or is out of range, or full.
  std::vector<std::uint32_t> declare(const VariableSpec& spec, std::uint64_t slots, std::uint32_t byte);

  // Gives each chunk of the versioned record at `position` one buffer more, unless it has it: cuts need it (cut.C6).
  // Requires: `byte`, which the caller holds, is kSnapshotByte. Throws Error where /dev/shm or the directory is full.
  void reserve(std::uint32_t position, std::uint32_t byte);

 private:
  struct Wanted;  // a record to be declared
  class Known;    // what the records say that have been read
  std::uint32_t declare_record(const Wanted& wanted, std::uint32_t byte);
  std::uint32_t claim_record(std::uint32_t byte);
  Known& look() const;  // with all records that there are by now
  void require_room(const std::string& name, std::uint32_t parts) const;
  [[noreturn]] void fail_full() const;

  JobSegments& job_;
  mutable std::unique_ptr<Known> known_;  // made when it is asked for
  mutable std::uint32_t covered_ = 0;     // records that the control segment's file is known to have
};

// With the job's rule and layout where it names none; what is no float32 has no gradients, and lies in chunks.
VariableSpec resolved(VariableSpec spec, const JobConfig& config);

// Throws Error where the two differ, naming how. Requires: the specification is resolved.
void check_agreement(const VariableShm& record, const VariableSpec& spec);

// Throws Error unless the specification can be declared.
void check_spec(const VariableSpec& spec);

std::string shape_to_string(const std::uint64_t* extents, std::uint32_t axes);

}  // namespace ps::shm
