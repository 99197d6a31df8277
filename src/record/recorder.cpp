#include "record/recorder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"
#include "record/folder.hpp"
#include "shm/base/atomic.hpp"
#include "shm/slots/free_buffers.hpp"

namespace ps_shm::record {

Recorder::Recorder(const std::string& folder, std::uint32_t rank) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("recording {}: {}", folder, error.message()), config::code_of(error.value()));
  std::uint32_t life = 0;
  do {
    path_ = file_of(folder, rank, ++life);
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) throw Error(fmt::format("recording {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  move_window(0);
  Header header{{}, rank, life, 0};
  header.examples = header.checked(0);
  std::memcpy(window_, &header, sizeof header);
  for (const char letter : kMagic)
    put(static_cast<std::byte>(letter));  // last: one that dies before it has done nothing
  at_ = sizeof header;
}

Recorder::~Recorder() {
  munmap(window_, kWindow);
  if (owner_ == getpid())                                                    // a forked child's parent writes on
    static_cast<void>(!ftruncate(file_, static_cast<off_t>(begin_ + at_)));  // the rest would be read as the end
  close(file_);
}

// The space is allocated before it is touched: a full file system raises an Error instead of SIGBUS.
void Recorder::move_window(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > kWindow - page)
    throw Error(fmt::format("recording {}: an event is too long", path_), ErrorCode::kExhausted);
  const std::size_t begin = (begin_ + at_) / page * page, at = begin_ + at_ - begin;
  if (const int error = posix_fallocate(file_, static_cast<off_t>(begin), kWindow); error != 0)
    throw Error(fmt::format("recording {}: {}", path_, std::strerror(error)), config::code_of(error));
  void* const place = mmap(nullptr, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(begin));
  if (place == MAP_FAILED)
    throw Error(fmt::format("recording {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  if (window_ != nullptr) munmap(window_, kWindow);
  window_ = static_cast<std::byte*>(place);
  begin_ = begin;
  at_ = at;
}

// (replay.E1) In order: a kill preserves what was stored before it. Pairs with replay.E2.
void Recorder::put(std::byte byte) noexcept {
  reinterpret_cast<shm::AtomicShm<std::byte>*>(window_ + at_++)->store_release(byte);  // (replay.E1)
}

void Recorder::put_number(std::uint64_t number) noexcept {
  for (; number >= 0x80; number >>= 7) put(static_cast<std::byte>((number & 0x7f) | 0x80));
  put(static_cast<std::byte>(number));
}

std::uint64_t Recorder::examples_before(std::uint64_t counted) {
  if (begin_ != 0) return counted;
  Header header;
  std::memcpy(&header, window_, sizeof header);
  const std::uint64_t examples = header.checked(counted);
  std::memcpy(window_ + offsetof(Header, examples), &examples, sizeof examples);
  return counted;
}

void Recorder::declare(const std::string& name, std::uint64_t pieces, std::uint64_t elements) {
  if (pieces > kMaxPieces - all_pieces_)
    throw Error(fmt::format("recording {}: with variable '{}' there are too many chunks", path_, name),
                ErrorCode::kExhausted);
  make_room(kMostAtOnce + name.size());
  put(Kind::kVariable);
  put_number(pieces + 1);
  put_number(elements + 1);
  put_number(name.size() + 1);
  for (const char letter : name) put(static_cast<std::byte>(letter));
  known_.emplace_back(pieces, 0);
  all_pieces_ += pieces;
}

void Recorder::begin_pull(std::uint32_t variable) {
  make_room();
  variable_ = variable;
  piece_ = 0;
  left_ = known_[variable].size();
  put(Kind::kPull);
  put_number(variable + 1);
}

void Recorder::pulled(std::uint64_t version) {
  make_room();
  put_number(((version - known()) & shm::kVersionMask) + 1);
  known() = version;
  --left_;
  if (++piece_ == known_[variable_].size()) piece_ = 0;
}

UpdateFacts Recorder::begin_update(const UpdateFacts& now) {
  make_room();
  if (!has_rates_ || now.rate != facts_.rate || now.clip != facts_.clip || now.momentum != facts_.momentum ||
      now.beta1 != facts_.beta1) {
    put(Kind::kRates);
    for (const float fact : {now.rate, now.clip, now.momentum, now.beta1})
      put_number(std::uint64_t{std::bit_cast<std::uint32_t>(fact)} + 1);
    has_rates_ = true;
  }
  put(Kind::kUpdate);
  put_number(now.step - facts_.step + 1);
  return facts_ = now;
}

void Recorder::begin_push(std::uint32_t variable, std::uint32_t check, std::uint64_t first_piece) {
  make_room();
  variable_ = variable;
  piece_ = first_piece;
  left_ = known_[variable].size();
  put(Kind::kPush);
  put_number(variable + 1);
  put_number(std::uint64_t{check} + 1);
  put_number(first_piece + 1);
}

void Recorder::trying(std::uint64_t version) noexcept {
  const std::size_t token = at_;
  put_number(((version - known()) & shm::kVersionMask) << 2 | kTried);
  token_ = std::exchange(at_, token);
}

// The token exists since trying(): one byte says that the swap has succeeded.
void Recorder::pushed(std::uint64_t version) {
  put(window_[at_] | std::byte{kDone});
  at_ = token_;
  known() = (version + 1) & shm::kVersionMask;
  --left_;
  if (++piece_ == known_[variable_].size()) piece_ = 0;
}

void Recorder::dropped(std::uint32_t variable, std::uint32_t check) {
  make_room();
  put(Kind::kDropped);
  put_number(variable + 1);
  put_number(std::uint64_t{check} + 1);
}

void Recorder::before_step() {
  make_room();
  put(Kind::kStep);
}

void Recorder::counted(std::uint64_t step) {
  put_number(step - step_);
  step_ = step;
}

bool Recorder::is_finished(bool now) noexcept {
  if (now && !was_finished_) was_finished_ = put_end(Kind::kFinished);
  return now;
}

void Recorder::leave() noexcept { static_cast<void>(put_end(Kind::kLeft)); }

// Within a call that has thrown, the event would be read as one of the call's pieces.
bool Recorder::put_end(Kind kind) noexcept {
  if (left_ != 0 || at_ + 1 >= kWindow) return false;
  put(kind);
  return true;
}

}  // namespace ps_shm::record
