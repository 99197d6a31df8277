#include "launch_shm/tracing.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "ps_shm/errors.hpp"
#include "train/log/span_log.hpp"

namespace ps_shm::tools {
namespace {

[[noreturn]] void fail(const std::string& path) {
  const int error = errno;
  throw Error(fmt::format("--trace {}: it cannot be written: {}", path, std::strerror(error)));
}

}  // namespace

Traces::Traces(std::string path) : path_(std::move(path)) {
  if (!std::ofstream(path_).flush()) fail(path_);
}

std::string Traces::add(std::uint32_t first_rank, std::uint32_t workers) {
  std::string path = fmt::format("{}.{}.{}", path_, first_rank, parts_.size());
  if (workers == 1) return parts_.emplace_back(std::move(path));
  for (std::uint32_t number = 0; number < workers; ++number) parts_.push_back(fmt::format("{}.{}", path, number));
  return path;
}

void Traces::merge() const {
  const auto remove_parts = [this] {
    for (const std::string& part : parts_) train::remove_trace(part);
  };
  try {
    if (is_one_lost_) throw Error(fmt::format("--trace {}: a worker could not write its part", path_));
    write();
  } catch (const Error&) {
    remove_parts();
    train::remove_trace(path_);
    throw;
  }
  remove_parts();
}

// Each line is a complete event, except for a killed worker's last one.
void Traces::write() const {
  std::ofstream out(path_);
  out << R"({"displayTimeUnit":"ms","traceEvents":[)" << '\n'
      << R"({"name":"process_name","ph":"M","pid":0,"args":{"name":"workers"}})";
  for (const std::string& part : parts_) {
    std::ifstream in(part);
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with(',')) line.pop_back();
      if (!line.starts_with('{') || !line.ends_with("}}")) continue;
      if (!(out << ",\n" << line)) fail(path_);
    }
  }
  out << "\n]}\n";
  if (!out.flush()) fail(path_);
}

}  // namespace ps_shm::tools
