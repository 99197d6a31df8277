#include "record/cursor.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/slots/free_buffers.hpp"

namespace ps_shm::record {

using What = Event::What;

bool has_begun(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= sizeof kMagic && bytes[sizeof kMagic - 1] != std::byte{0};
}

Cursor::Cursor(std::string name, std::span<const std::byte> bytes) : name_(std::move(name)), bytes_(bytes) {
  if (bytes.size() < sizeof header_) fail("the recording is too short");
  std::memcpy(&header_, bytes.data(), sizeof header_);
  if (std::memcmp(header_.magic, kMagic, sizeof kMagic) != 0) fail("it is not a recording, or has another version");
  if (header_.examples != header_.checked(header_.examples_before())) fail("its header is damaged");
  at_ = sizeof header_;
  begin();
}

void Cursor::fail(const char* what) const {
  throw Error(fmt::format("recording {}: byte {}: {}", name_, at_, what), ErrorCode::kDamaged);
}

// (replay.E2)
bool Cursor::read(std::uint64_t& number) {
  number = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ == bytes_.size()) return false;
    const auto byte = std::to_integer<std::uint64_t>(bytes_[at_]);
    if (byte == 0) return false;
    ++at_;
    if (shift == 63 && byte > 1) fail("a number is too large");
    number |= (byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  fail("a number is too long");
}

std::uint64_t& Cursor::known(std::uint32_t variable, std::uint64_t piece) {
  std::vector<std::uint64_t>& versions = known_[variable];
  if (versions.size() <= piece) versions.resize(piece + 1);
  return versions[piece];
}

// Reads the next piece of the call under way. False: the recording ends before it.
bool Cursor::read_piece() {
  std::uint64_t number;
  if (!read(number)) return false;
  std::uint64_t& version = known(event_.variable, event_.piece);
  const bool is_pull = event_.what == What::kPull;
  if (!is_pull && (number & kTried) == 0) fail("a push was never tried");
  event_.is_tried = !is_pull && (number & kDone) == 0;
  version = (version + (is_pull ? number - 1 : number >> 2)) & shm::kVersionMask;
  event_.version = version;
  if (!is_pull) version = (version + 1) & shm::kVersionMask;  // made by this worker
  return true;
}

void Cursor::next() {
  switch (event_.what) {
    case What::kEnd:
    case What::kLeft:
      return;
    case What::kBeginPull:
    case What::kBeginPush:
      event_.what = event_.what == What::kBeginPull ? What::kPull : What::kPush;
      left_ = variables_[event_.variable].pieces;
      break;
    case What::kPull:
    case What::kPush:
      if (++event_.piece == variables_[event_.variable].pieces) event_.piece = 0;
      break;
    default:
      return begin();
  }
  if (event_.is_tried) {  // the worker was killed in this push
    if (at_ != bytes_.size() && bytes_[at_] != std::byte{0}) fail("it goes on after a push that did not succeed");
    event_ = {};
    return;
  }
  if (left_ == 0) return begin();
  --left_;
  if (!read_piece()) event_ = {};
}

void Cursor::begin_variable() {
  std::uint64_t pieces, elements, length;
  if (!read(pieces) || !read(elements) || !read(length)) return;
  if (--pieces == 0 || pieces > kMaxPieces || (all_pieces_ += pieces) > kMaxPieces) fail("too many pieces");
  if (--length > kMaxName) fail("a name is too long");
  if (length > bytes_.size() - at_) return;
  std::string name(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
  if (name.find('\0') != std::string::npos) return;
  variables_.push_back({std::move(name), pieces, elements - 1});
  known_.emplace_back();
  at_ += length;
  event_.what = What::kVariable;
}

// Reads an event that is not a piece of a call.
void Cursor::begin() {
  event_ = {};
  if (at_ == bytes_.size() || bytes_[at_] == std::byte{0}) return;
  const auto kind = static_cast<Kind>(bytes_[at_++]);
  std::uint64_t first, second, third;
  const auto take_variable = [&] {
    if (first - 1 >= variables_.size()) fail("there is no such variable");
    event_.variable = static_cast<std::uint32_t>(first - 1);
  };
  switch (kind) {
    case Kind::kVariable:
      return begin_variable();
    case Kind::kRates:
      for (float* const fact : {&event_.facts.rate, &event_.facts.clip, &event_.facts.momentum, &event_.facts.beta1}) {
        if (!read(first)) return;
        *fact = std::bit_cast<float>(static_cast<std::uint32_t>(first - 1));
      }
      event_.what = What::kRates;
      return;
    case Kind::kUpdate:
      if (!read(first)) return;
      event_.step = update_step_ += first - 1;
      event_.what = What::kUpdate;
      return;
    case Kind::kPull:
      if (!read(first)) return;
      take_variable();
      event_.what = What::kBeginPull;
      return;
    case Kind::kPush:
      if (!read(first) || !read(second) || !read(third)) return;
      take_variable();
      if (third - 1 >= variables_[event_.variable].pieces) fail("there is no such piece");
      event_.check = static_cast<std::uint32_t>(second - 1);
      event_.piece = third - 1;
      event_.what = What::kBeginPush;
      ++pushes_;
      return;
    case Kind::kDropped:
      if (!read(first) || !read(second)) return;
      take_variable();
      event_.check = static_cast<std::uint32_t>(second - 1);
      event_.what = What::kDropped;
      ++pushes_;
      return;
    case Kind::kStep:
      event_.what = What::kStep;
      event_.is_tried = !read(first);
      if (!event_.is_tried) step_ += first;
      event_.step = event_.is_tried ? 0 : step_ - 1;
      return;
    case Kind::kFinished:
      event_.what = What::kFinished;
      return;
    case Kind::kLeft:
      event_.what = What::kLeft;
      return;
  }
  fail("there is no such event");
}

}  // namespace ps_shm::record
