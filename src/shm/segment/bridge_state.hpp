// What a job's bridge to other boxes (python -m ps_shm.bridge) keeps across its death: the anchor, the momentum of the
// outer rule, the base, the sum of a round, and a text that says which of these hold. It is a segment of the job, so that
// it is removed with the job, but no variable of it.
//
//   bridge.S1  The bridge writes a text into the half that does not hold the newest, and then counts the write. Whoever
//              reads finds the old text or the new one, also if the bridge is killed in between.
//   bridge.S6  The outer step replaces the anchor and the momentum by their next values, a part at a time: it computes
//              them into the scratch, says so in the cursor, copies them, and says so. After a death it goes on where
//              the cursor says.
//
// One process at a time has the state; the kernel releases its lock when it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shm/segment/segment.hpp"

namespace ps_shm::shm {

class BridgeState {
 public:
  // The most keys of a table by key, the floats of a row, and its bytes on the wire.
  struct Rows {
    std::uint64_t most, row_size, wire_bytes;
  };

  // Sizes. A block has kBridgeBlock floats.
  struct Form {
    std::uint64_t blocks, wire_bytes;  // blocks of the model; bytes of a block on the wire
    bool has_momentum;
    std::vector<Rows> tables{};
  };

  // What is kept of a table (bridge.T1): arrays of `most` keys or rows each, which get memory as they are used.
  enum class Array : std::uint32_t {
    kKeys,      // in the order in which the boxes have agreed about them: the first, the second ...
    kAnchor,    // the row of each of these keys
    kBase,      // the same, before the last outer step
    kCutKeys,   // what this box sends, in the order of the keys
    kCutRows,   // encoded
    kLastKeys,  // what it sends when its job is over, likewise
    kLastRows,
    kSumKeys,  // what a round adds up, in the order of the keys
    kSumRows,  // encoded
    kCount_
  };

  // Takes the state of this instance of the job, or makes a new one, which has no text. A state that an earlier job of
  // the name left is replaced.
  //
  // Throws: Error with kAlreadyExists if another process has it, kInvalidState if it has another form, kNoSpace,
  // kDamaged.
  BridgeState(const std::string& job, std::uint64_t instance, const Form& form);

  // What others see of the state of a job.
  struct Seen {
    std::string text;  // the newest
    bool has_owner;    // whether a living bridge has the state
  };

  // Looks at the state of that instance of the job; nullopt if there is none, or no text yet. Lock-free.
  //
  // Throws: Error (kDamaged).
  static std::optional<Seen> look(const std::string& job, std::uint64_t instance);

  std::string text() const { return newest_text(segment_); }
  // Requires: text.size() <= kBridgeTextBytes.
  void write(const std::string& text) noexcept;

  std::span<float> anchor() const noexcept { return floats(anchor_); }
  std::span<float> momentum() const noexcept { return form_.has_momentum ? floats(momentum_) : std::span<float>(); }
  std::span<float> base() const noexcept { return floats(base_); }
  std::span<std::uint8_t> present() const noexcept {
    return {reinterpret_cast<std::uint8_t*>(segment_.data()) + present_, form_.blocks};
  }
  std::span<std::byte> sum() const noexcept { return {segment_.data() + sum_, form_.blocks * form_.wire_bytes}; }

  // Bytes of all elements of an array of a table, of which only those may be used that have memory.
  std::span<std::byte> array(std::size_t table, Array which) const noexcept;
  std::size_t element_bytes(std::size_t table, Array which) const noexcept;
  // Makes sure that the first `count` elements have memory. Requires: at most Rows::most. Throws Error with kNoSpace.
  void reserve(std::size_t table, Array which, std::uint64_t count);

  // Makes the outer step begin at its first part.
  void rewind() noexcept;

  // Calls next(first_block, anchor, momentum) for each part that is not done yet: it replaces its arguments, copies of
  // that part of the anchor and of the momentum, by their next values.
  template <class Next>
  void replace(Next&& next) {
    BridgeShm& record = this->record();
    const std::uint64_t parts = (form_.blocks + kBridgePart - 1) / kBridgePart;
    for (;;) {
      const std::uint64_t cursor = record.cursor.load_relaxed(), part = cursor / 2;
      if (part >= parts) return;
      if (cursor % 2 == 0) {
        const Part from = part_of(part), scratch = scratch_of(part);
        copy(scratch, from);
        next(part * kBridgePart, scratch.anchor, scratch.momentum);
      } else {
        copy(part_of(part), scratch_of(part));
      }
      record.cursor.store_release(cursor + 1);  // bridge.S6
    }
  }

  // Removes it, at the bridge's end.
  void remove() noexcept { unlink_segment(segment_.name()); }

 private:
  struct Part {
    std::span<float> anchor, momentum;
  };

  static std::string newest_text(const Segment& segment);
  static void copy(const Part& to, const Part& from) noexcept;
  static std::size_t bytes_of(const Form& form) noexcept;  // without the tables
  static std::uint64_t hash_of(const Form& form) noexcept;
  void take_or_make(const std::string& name, const std::string& job, std::uint64_t instance);
  bool try_take_found(const std::string& name, const std::string& job, std::uint64_t instance);

  BridgeShm& record() const noexcept { return *reinterpret_cast<BridgeShm*>(segment_.data() + kBridgeRecordOffset); }
  std::span<float> floats(std::size_t offset) const noexcept {
    return {reinterpret_cast<float*>(segment_.data() + offset), form_.blocks * kBridgeBlock};
  }
  Part part_of(std::uint64_t part) const noexcept;
  Part scratch_of(std::uint64_t part) const noexcept;

  Form form_;
  std::size_t scratch_, anchor_, momentum_, base_, present_, sum_;  // offsets
  std::vector<std::size_t> arrays_;                                 // offsets: of all arrays of each table
  std::vector<std::size_t> reserved_;                               // of each, how many bytes surely have memory
  std::size_t end_;
  Segment segment_;
};

}  // namespace ps_shm::shm
