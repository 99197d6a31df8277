#include "launch_shm/tracing.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

Traces::Traces(std::string path) : path_(std::move(path)) {
  if (!std::ofstream(path_).flush()) throw Error(fmt::format("--trace {}: it cannot be written", path_));
}

std::string Traces::add(std::uint32_t first_rank, std::uint32_t workers) {
  std::string path = fmt::format("{}.{}.{}", path_, first_rank, parts_.size());
  if (workers == 1) return parts_.emplace_back(std::move(path));
  for (std::uint32_t number = 0; number < workers; ++number) parts_.push_back(fmt::format("{}.{}", path, number));
  return path;
}

// Each line is a complete event, except for a killed worker's last one.
void Traces::merge() const {
  std::ofstream out(path_);
  out << R"({"displayTimeUnit":"ms","traceEvents":[)" << '\n'
      << R"({"name":"process_name","ph":"M","pid":0,"args":{"name":"workers"}})";
  for (const std::string& part : parts_) {
    std::ifstream in(part);
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with(',')) line.pop_back();
      if (line.starts_with('{') && line.ends_with("}}")) out << ",\n" << line;
    }
  }
  out << "\n]}\n";
  if (!out.flush()) throw Error(fmt::format("--trace {}: it cannot be written", path_));
  for (const std::string& part : parts_) std::filesystem::remove(part);
}

}  // namespace ps_shm::tools
