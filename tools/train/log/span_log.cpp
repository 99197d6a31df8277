#include "train/log/span_log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::train {
namespace {

constexpr std::uint64_t kFlushNs = 100'000'000;  // the maximum that a killed worker's file may lack
constexpr std::uint32_t kGpuTracks = 1000;       // above all ranks

// Microseconds, as used in trace events.
std::string micros(std::uint64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

std::string trace_line(const std::string& path) {
  return fmt::format("the trace is {}; open it at https://ui.perfetto.dev", path);
}

void remove_trace(const std::string& path) noexcept {
  std::error_code unknown;
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, unknown)))
    std::filesystem::remove(path, unknown);
}

SpanLog::SpanLog(const std::string& path, std::function<void(const std::string&)> lost)
    : path_(path), file_(std::fopen(path.c_str(), "we")), lost_(std::move(lost)) {
  if (file_ == nullptr) throw Error(fmt::format("trace {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  write("[\n");
}

// The format allows a list to end with a comma, but not every reader accepts it.
SpanLog::~SpanLog() {
  if (has_worker_) write(name_of(Track::kWorker));
  write("\n]\n");
  if (std::fclose(file_) != 0) lose();
}

std::uint32_t SpanLog::id_of(Track track) const { return track == Track::kGpu ? kGpuTracks + rank_ : rank_; }

std::string SpanLog::name_of(Track track) const {
  return fmt::format(R"({{"name":"thread_name","ph":"M","pid":0,"tid":{},"args":{{"name":"{}worker {}"}}}})",
                     id_of(track), track == Track::kGpu ? "GPU of " : "", rank_);
}

// A full disk ends the trace, but not the training.
void SpanLog::write(const std::string& text) {
  if (!is_lost_ && std::fwrite(text.data(), 1, text.size(), file_) != text.size()) lose();
}

void SpanLog::lose() {
  const int error = errno;
  has_worker_ = false;
  if (!std::exchange(is_lost_, true) && lost_)
    lost_(fmt::format("{}{} cannot be written: {}", kTraceIsLost, path_, std::strerror(error)));
}

void SpanLog::begin_worker(std::uint32_t rank) {
  rank_ = rank;
  has_worker_ = true;
  write(name_of(Track::kWorker) + ",\n");
}

void SpanLog::add(const char* name, std::uint64_t begin_ns, std::uint64_t end_ns, Track track) {
  if (!has_worker_ || spans_ > kMostSpans) return;
  if (spans_++ == kMostSpans) name = "the trace is full";
  if (track == Track::kGpu && !std::exchange(has_gpu_, true)) write(name_of(track) + ",\n");
  write(fmt::format(
      R"({{"name":"{}","cat":"worker","ph":"X","ts":{},"dur":{},"pid":0,"tid":{},"args":{{"step":{},"pid":{}}}}},)"
      "\n",
      name, micros(begin_ns), micros(end_ns - begin_ns), id_of(track), step_, getpid()));
  if (end_ns - flushed_ns_ > kFlushNs) {
    if (std::fflush(file_) != 0) lose();
    flushed_ns_ = end_ns;
  }
}

}  // namespace ps_shm::train
