// What a worker notes about its GPU in its entry of the worker table, for the inspector. Diagnostic only: a reader may
// get the words of two notes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

// How parameters reach the GPU, and gradients leave it.
enum class PullPath : std::uint8_t { kKernel, kCopyEngine, kThroughHost };
enum class PushPath : std::uint8_t { kStaged, kThroughHost };

struct PullPathTraits {
  PullPath path;
  const char* name;      // for tables and JSON
  const char* in_words;  // behind "pulls"
  bool needs_cpu;        // a CPU takes part, so a stream cannot pull by itself
};

// clang-format off
inline constexpr PullPathTraits kPullPaths[] = {
    {PullPath::kKernel,      "kernel",       "by a kernel",        false},
    {PullPath::kCopyEngine,  "copy engine",  "by the copy engine", true},
    {PullPath::kThroughHost, "through host", "through the host",   true},
};
// clang-format on

// A number of a newer program stands for the path through the host.
constexpr const PullPathTraits& traits_of(PullPath path) noexcept {
  const auto number = static_cast<std::size_t>(path);
  return kPullPaths[number < std::size(kPullPaths) ? number : static_cast<std::size_t>(PullPath::kThroughHost)];
}
static_assert(std::all_of(std::begin(kPullPaths), std::end(kPullPaths),
                          [](const PullPathTraits& row) { return traits_of(row.path).path == row.path; }),
              "rows are found by their path's number");

constexpr const char* to_string(PullPath pull) noexcept { return traits_of(pull).name; }
const char* to_string(PushPath push) noexcept;  // "staged", "through host"

struct GpuNote {
  std::array<std::uint64_t, 2> uuid{};  // its bytes in the order of the text, most significant first; zero: unknown
  std::string pci_address;              // "0000:1b:00.0"; empty: unknown
  int node = -1;                        // the closest memory node; -1: unknown
  PullPath pull = PullPath::kThroughHost;
  PushPath push = PushPath::kThroughHost;
  bool native_adds = false;            // in-place variables of additive rules are added by the GPU itself
  std::uint64_t registered_bytes = 0;  // host memory that is registered with CUDA
};

// Requires: the caller owns the rank. Wait-free.
void note_gpu(WorkerShm& entry, const GpuNote& note) noexcept;
void forget_gpu(WorkerShm& entry) noexcept;

// Unset: the rank's last owner has used no GPU.
std::optional<GpuNote> noted_gpu(const WorkerShm& entry);

}  // namespace ps_shm::shm
