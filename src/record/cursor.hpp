// Reads a recording event by event, and a call chunk by chunk. Any bytes may be given: those that no recorder can have
// written raise an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "record/format.hpp"
#include "record/recording.hpp"

namespace ps_shm::record {

struct RecordedVariable {
  std::string name;
  std::uint64_t pieces, elements;
};

// The next event.
struct Event {
  enum class What {
    kVariable,   // variables().back()
    kRates,      // facts, but for the step
    kUpdate,     // step
    kBeginPull,  // variable
    kPull,       // variable, piece, version
    kBeginPush,  // variable, check, piece: the first one
    kPush,       // variable, piece, version; is_tried: the swap may not have happened
    kDropped,    // variable, check: a push of a dropped step
    kStep,       // step; is_tried: counted at a step that no other worker has counted, or not at all
    kFinished,
    kLeft,
    kEnd,  // of a worker that was killed
  };
  What what = What::kEnd;
  std::uint32_t variable = 0, check = 0;
  std::uint64_t piece = 0, version = 0, step = 0;
  UpdateFacts facts{};
  bool is_tried = false;
};

// Whether a worker has started its recording. False for one that was killed before.
bool has_begun(std::span<const std::byte> bytes) noexcept;

class Cursor {
 public:
  // `name` is for messages. The bytes must outlive the object.
  Cursor(std::string name, std::span<const std::byte> bytes);

  const Header& header() const noexcept { return header_; }
  const std::vector<RecordedVariable>& variables() const noexcept { return variables_; }
  const std::string& name() const noexcept { return name_; }

  // The event that next() steps over. After kLeft and kEnd there is nothing.
  const Event& peek() const noexcept { return event_; }
  void next();

  std::uint64_t pushes() const noexcept { return pushes_; }  // calls begun before the event

 private:
  [[noreturn]] void fail(const char* what) const;
  bool read(std::uint64_t& number);  // false: the recording ends within the number
  bool read_piece();
  void begin();
  void begin_variable();
  std::uint64_t& known(std::uint32_t variable, std::uint64_t piece);

  std::string name_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  Header header_;
  std::vector<RecordedVariable> variables_;
  std::vector<std::vector<std::uint64_t>> known_;  // last known versions, by variable and piece
  std::uint64_t all_pieces_ = 0, pushes_ = 0;
  std::uint64_t left_ = 0;  // remaining pieces of the call after the event
  std::uint64_t update_step_ = 0, step_ = 0;
  Event event_;
};

}  // namespace ps_shm::record
