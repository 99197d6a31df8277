// How a worker transfers parameters and gradients between host memory and its GPU, chosen from the machine's abilities.
//
// Pure functions: the same answers give the same choice, and every choice has its reason in words.
#pragma once

#include <cstddef>
#include <string>

#include "device/probe.hpp"
#include "shm/steps/gpu_note.hpp"

namespace ps_shm::device {

using shm::PullPath;
using shm::PushPath;

// A pull of up to this size is done by one kernel. The copy engine is used if more than this is in large chunks. Launching a kernel is cheaper than some dozens of copies, but by
// published figures it reads host memory at about two thirds of a copy engine's rate. tools/gpu_check measures both.
inline constexpr std::size_t kKernelPullBytes = std::size_t{2} << 20;

// Chunks that are smaller than this are copied by a kernel, however many there are: a copy engine needs about a
// microsecond for each copy, in which a link of 50 GB/s could move 50 KB. By published figures a kernel reads host
// memory at 35 GB/s whatever the size of the chunks.
inline constexpr std::size_t kCopyEngineChunkBytes = std::size_t{128} << 10;

// Where the GPU uses the CPUs' page tables (attribute 100, as over NVLink C2C), a kernel reads host memory about as fast as
// the copy engine by published figures, while a CPU would not keep up with the engine's windows.
constexpr bool reads_as_fast_by_kernel(const GpuInfo& gpu) { return gpu.uses_host_page_tables == 1; }

// Whether the copy engine is the faster one for chunks of so many bytes, header included.
constexpr bool is_for_copy_engine(std::size_t chunk_bytes) { return chunk_bytes >= kCopyEngineChunkBytes; }

struct Strategy {
  PullPath pull = PullPath::kThroughHost;
  bool gathers_rest = false;  // beside the copy engine, a kernel pulls what has smaller chunks
  PushPath push = PushPath::kThroughHost;
  bool native_adds = false;   // in-place variables of additive rules: added by the GPU itself
  bool wide_adds = false;     // four elements at a time
  bool read_only = false;     // shards are registered for reading only
  bool stream_waits = false;  // the stream waits for the step (GpuLink::start_pull_when_opened)
  std::string pull_reason, push_reason, native_reason, registration_reason, wait_reason;
};

struct StrategyInput {
  std::size_t pull_bytes = 0;         // of one pull of all variables
  std::size_t large_chunk_bytes = 0;  // the part of it that lies in versioned chunks large enough for the copy engine
  bool has_additive_inplace = false;  // an in-place variable whose rule only adds: add, or SGD without L2 and decay
  bool is_registered = true;          // false: registration has failed
};

Strategy choose_strategy(const GpuInfo& gpu, const StrategyInput& input);

// Corrects a strategy whose registration for reading only was refused for this reason; does nothing if it is empty.
void note_refusal(const std::string& why, Strategy& strategy);

// Why variables are transferred as they are, in sentences.
std::string reasons_for_variables(const Strategy& strategy);

// The same for the rows of a variable or table. `why_not`: why no kernel pulls them, if there is another reason than
// the GPU's.
std::string reasons_for_rows(const Strategy& strategy, const std::string& why_not);

// What the inspector shows of a worker.
shm::GpuNote note_of(const GpuInfo& gpu, const Strategy& strategy, std::uint64_t registered_bytes);

// "pulls by a kernel, pushes staged": a summary for users.
std::string describe(const Strategy& strategy);

// Whether the GPU's float adds to host memory are atomic with respect to CPUs and other GPUs.
bool has_native_float_adds(const GpuInfo& gpu);

}  // namespace ps_shm::device
