// Reads a record event by event, piece by piece. Any bytes may be given: what no writer has written is an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "record/format.hpp"

namespace ps::record {

struct RecordedVariable {
  std::string name;
  std::uint64_t pieces, elements;
};

// What comes next.
struct Event {
  enum class What {
    kVariable,   // variables().back()
    kRates,      // rate, clip
    kUpdate,     // step
    kBeginPull,  // variable
    kPull,       // variable, piece, version
    kBeginPush,  // variable, check, piece: the first
    kPush,       // variable, piece, version; is_tried: it may not have come to the swap
    kStep,       // step; is_tried: it was counted at some step that nobody else was counted at, or not at all
    kFinished,
    kLeft,
    kEnd,  // of a worker that was killed
  };
  What what = What::kEnd;
  std::uint32_t variable = 0, check = 0;
  std::uint64_t piece = 0, version = 0, step = 0;
  float rate = 0, clip = 0;
  bool is_tried = false;
};

// Whether a worker has come so far as to record: false of one that was killed before.
bool has_begun(std::span<const std::byte> bytes) noexcept;

class Cursor {
 public:
  // `name` is for messages. The bytes outlive it.
  Cursor(std::string name, std::span<const std::byte> bytes);

  const Header& header() const noexcept { return header_; }
  const std::vector<RecordedVariable>& variables() const noexcept { return variables_; }
  const std::string& name() const noexcept { return name_; }

  // The event that next() will step over. Behind kLeft and kEnd there is nothing.
  const Event& peek() const noexcept { return event_; }
  void next();

  std::uint64_t pushes() const noexcept { return pushes_; }  // calls begun before the event

 private:
  [[noreturn]] void fail(const char* what) const;
  bool read(std::uint64_t& number);  // false: the record ends within it
  bool read_piece();
  void begin();
  std::uint64_t& known(std::uint32_t variable, std::uint64_t piece);

  std::string name_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  Header header_;
  std::vector<RecordedVariable> variables_;
  std::vector<std::vector<std::uint64_t>> known_;  // versions, per variable and piece, as far as they were named
  std::uint64_t all_pieces_ = 0, pushes_ = 0;
  std::uint64_t left_ = 0;  // pieces of the call under way behind the event
  std::uint64_t update_step_ = 0, step_ = 0;
  Event event_;
};

}  // namespace ps::record
