#include "persistence/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "config/error_code.hpp"
#include "persistence/proto.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::persistence {
namespace {

// Castagnoli's polynomial, reflected, as in RFC 3720.
constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ ((table[i] & 1) != 0 ? 0x82F63B78U : 0);
  }
  return table;
}();

// Masked, so that the CRC of data that contains CRCs is not degenerate (TensorFlow's crc32c.h).
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ crc >> 8;
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

// The start of an Event: its time and step.
std::string event(std::uint64_t step) {
  std::string message;
  add_double(message, 1, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  add_whole(message, 2, step);
  return message;
}

std::string record(std::string_view message) {
  const std::uint64_t size = message.size();
  std::string framed(raw_bytes(size));
  framed += raw_bytes(masked_crc(raw_bytes(size)));
  framed += message;
  framed += raw_bytes(masked_crc(message));
  return framed;
}

std::string record(std::uint64_t step, std::string_view summary) {
  std::string message = event(step);
  add_bytes(message, 5, summary);
  return record(message);
}

constexpr std::string_view kNameStart = "events.out.tfevents.";
constexpr std::int64_t kMicros = 1'000'000;

// The time in the name of an event file, in microseconds. The names of TensorFlow's files contain only the second, and
// sort after all of ours for that second. 0: it is no event file.
std::int64_t time_in(const std::string& name) {
  std::int64_t seconds = 0, micros = 0;
  if (!name.starts_with(kNameStart)) return 0;
  const char* const end = name.data() + name.size();
  const char* const digits = name.data() + kNameStart.size();
  const auto [dot, error] = std::from_chars(digits, end, seconds);
  if (error != std::errc{} || dot - digits > 10 || dot == end || *dot != '.') return 0;
  const auto [stop, none] = std::from_chars(dot + 1, end, micros);
  const bool is_ours = none == std::errc{} && stop - dot == 7 && stop != end && *stop == '.';
  return seconds * kMicros + (is_ours ? micros : kMicros - 1);
}

// TensorBoard reads the files of a folder in the order of their names, so a new one comes after those that are there,
// even if the clock was set back.
std::string event_file_name(const std::string& folder) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  std::error_code ended;  // a folder that cannot be read fails when the file is created
  for (std::filesystem::directory_iterator one(folder, ended), none; !ended && one != none; one.increment(ended))
    micros = std::max(micros, time_in(one->path().filename().string()) + 1);
  return fmt::format("{}{:010}.{:06}.{}.{}", kNameStart, micros / kMicros, micros % kMicros, host, getpid());
}

}  // namespace

EventFile::EventFile(std::string folder, Summary opening) : folder_(std::move(folder)), opening_(std::move(opening)) {}

EventFile::~EventFile() { close(); }

void EventFile::write(std::uint64_t step, const Summary& summary) {
  if (summary.is_empty()) return;
  if (descriptor_ >= 0 && !is_there()) close();
  if (descriptor_ < 0) open(step);
  append(record(step, summary.bytes()));
}

void EventFile::open(std::uint64_t step) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error)
    throw Error(fmt::format("cannot make the folder {}: {}", folder_, error.message()), config::code_of(error.value()));
  path_ = folder_ + "/" + event_file_name(folder_);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw Error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  size_ = 0;
  // The version comes first. The start of a session makes TensorBoard discard what an earlier one wrote for later
  // steps.
  std::string version = event(0), started = event(step), status;
  add_bytes(version, 3, "brain.Event:2");
  add_whole(status, 1, 1);
  add_bytes(started, 7, status);
  std::string all = record(version) + record(started);
  if (!opening_.is_empty()) all += record(step, opening_.bytes());
  try {
    append(all);
  } catch (const Error&) {
    ::unlink(path_.c_str());
    close();
    throw;
  }
}

// A partial write is truncated again, because no reader gets past it.
void EventFile::append(const std::string& records) {
  const ssize_t written = ::write(descriptor_, records.data(), records.size());
  if (written == static_cast<ssize_t>(records.size())) {
    size_ += records.size();
    return;
  }
  const int error = written < 0 ? errno : ENOSPC;
  if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) close();
  throw Error(fmt::format("cannot write {}: {}", path_, std::strerror(error)), config::code_of(error));
}

void EventFile::close() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

bool EventFile::is_there() const noexcept {
  struct stat open, named;
  return ::fstat(descriptor_, &open) == 0 && ::stat(path_.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace ps_shm::persistence
