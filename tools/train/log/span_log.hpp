// --trace: a worker's time, span by span, as Chrome trace events for ui.perfetto.dev.
//
// One event per line, written as it happens, so that the file of a killed worker is complete up to its last lines. The
// number of spans is limited.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace ps_shm::train {

// Where the trace is, and how to look at it.
std::string trace_line(const std::string& path);

// How the error text of a trace that could not be written begins. A launcher recognises it.
inline constexpr std::string_view kTraceIsLost = "the trace is lost: ";

// Removes what was written, unless it is a device.
void remove_trace(const std::string& path) noexcept;

class SpanLog {
 public:
  static constexpr std::uint64_t kMostSpans = 300'000;  // some 40 MB

  // Throws Error. If the file cannot be written any more, `lost` is called once, with an error text, also by the
  // destructor; training goes on.
  explicit SpanLog(const std::string& path, std::function<void(const std::string&)> lost = {});
  ~SpanLog();
  SpanLog(const SpanLog&) = delete;
  SpanLog& operator=(const SpanLog&) = delete;

  void begin_worker(std::uint32_t rank);
  void begin_step(std::uint64_t step) noexcept { step_ = step; }

  enum class Track { kWorker, kGpu };

  // Nanoseconds of CLOCK_MONOTONIC. Nothing before begin_worker().
  void add(const char* name, std::uint64_t begin_ns, std::uint64_t end_ns, Track track = Track::kWorker);

 private:
  std::uint32_t id_of(Track track) const;
  std::string name_of(Track track) const;  // the event that names it
  void write(const std::string& text);
  void lose();  // for the reason in errno

  std::string path_;
  std::FILE* file_;
  std::function<void(const std::string&)> lost_;
  bool has_worker_ = false, has_gpu_ = false, is_lost_ = false;
  std::uint32_t rank_ = 0;
  std::uint64_t step_ = 0, spans_ = 0, flushed_ns_ = 0;
};

}  // namespace ps_shm::train
