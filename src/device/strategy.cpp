#include "device/strategy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "shm/segment/placement.hpp"

namespace ps_shm::device {
namespace {

// The capabilities of its float adds to host memory; 0 if the driver was not asked.
unsigned float_add_bits(const GpuInfo& gpu) {
  constexpr auto kIndex = static_cast<std::size_t>(AtomicOperation::kFloatAdd);
  return gpu.host_atomics.size() > kIndex ? gpu.host_atomics[kIndex] : 0U;
}

bool was_asked_for_bits(const GpuInfo& gpu) { return !gpu.host_atomics.empty(); }

std::string why_native(const GpuInfo& gpu) {
  return was_asked_for_bits(gpu) ? "the driver lists the float add among the atomics that work across the link"
                                 : "the driver reports native host atomics (attribute 86)";
}

std::string why_not_native(const GpuInfo& gpu) {
  constexpr char kAfter[] = ", so CPUs add the gradients.";
  if (was_asked_for_bits(gpu) && gpu.host_native_atomics == 1)
    return fmt::format("The driver reports native host atomics (attribute 86), but not for adds of single floats{}",
                       kAfter);
  if (was_asked_for_bits(gpu) && gpu.partial_host_native_atomics == 1)
    return fmt::format("Only some host atomics are native (attribute 147), and the float add is not among them{}",
                       kAfter);
  if (gpu.partial_host_native_atomics == 1)
    return fmt::format(
        "Only some host atomics are native (attribute 147), and this driver cannot say which; drivers for CUDA 13.0 "
        "and "
        "newer can{}",
        kAfter);
  if (gpu.host_native_atomics < 0 && was_asked_for_bits(gpu))
    return fmt::format("The driver does not list the float add among the atomics that work across the link{}", kAfter);
  if (gpu.host_native_atomics < 0)
    return fmt::format("The driver does not say whether the GPU's atomic adds to host memory are atomic towards CPUs{}",
                       kAfter);
  return fmt::format(
      "The GPU's atomic adds to host memory are not atomic towards CPUs and other GPUs (attribute 86 is {}), as over "
      "PCIe{}",
      gpu.host_native_atomics, kAfter);
}

// What keeps a GPU from writing to shards that it may write to; tests/checks/check_kernels.py looks at their code.
constexpr char kOnlyLoads[] = "nothing but its kernels keeps the GPU from writing to them, and these only read them";

// Chosen before the registration: the GPU's own adds need memory that it may write.
void choose_adds(const GpuInfo& gpu, const StrategyInput& input, Strategy& strategy) {
  if (!has_native_float_adds(gpu)) {
    strategy.native_reason = why_not_native(gpu);
    return;
  }
  if (!input.has_additive_inplace) {
    strategy.native_reason = fmt::format(
        "The GPU could add to host memory itself ({}), but no variable is in place with a rule that only adds.",
        why_native(gpu));
    return;
  }
  strategy.native_adds = true;
  strategy.wide_adds = (float_add_bits(gpu) & kAtomicVector32x4) != 0 && gpu.properties.major >= 9;
  strategy.native_reason = fmt::format("The GPU adds gradients to in-place variables itself, {}: {}.",
                                       strategy.wide_adds ? "by fours" : "one by one", why_native(gpu));
}

void choose_registration(const GpuInfo& gpu, Strategy& strategy) {
  strategy.read_only = gpu.read_only_registration == 1 && !strategy.native_adds;
  strategy.registration_reason =
      strategy.read_only ? std::string("Shards are registered for reading only: the GPU never writes to them.")
      : strategy.native_adds
          ? std::string("Shards are registered for reading and writing: the GPU adds to them.")
          : fmt::format(
                "Shards are registered for reading and writing, since this GPU or driver does not know "
                "registering for reading only (attribute 113 is {}, as on all x86 machines seen so far); {}.",
                gpu.read_only_registration < 0 ? "unknown" : "0", kOnlyLoads);
  if (gpu.uses_host_page_tables == 1)
    strategy.registration_reason += " The GPU uses the CPUs' page tables, so registering pins nothing.";
}

// The CPU does all transfers.
Strategy through_host(const GpuInfo& gpu) {
  Strategy strategy;
  const bool can_register = gpu.host_register_supported != 0;
  strategy.registration_reason = can_register
                                     ? "Registering the shards has failed, so the GPU cannot reach them."
                                     : "This GPU cannot register host memory (attribute 99 is 0), so it cannot reach "
                                       "the shards.";
  strategy.pull_reason =
      "The CPU copies each chunk out of its shard before it goes to the GPU: every byte is moved once more, by a core "
      "that does nothing else meanwhile.";
  strategy.push_reason =
      "Gradients come back to the worker's own memory before the CPU adds them, and are not added while others are "
      "still "
      "on the bus.";
  strategy.native_reason = has_native_float_adds(gpu)
                               ? "The GPU's float adds would be atomic, but it cannot reach the shards."
                               : why_not_native(gpu);
  strategy.wait_reason = "The CPU has to copy before the GPU can go on, so a stream cannot wait by itself.";
  return strategy;
}

static_assert(shm::kGpuChunkBytes >= kCopyEngineChunkBytes, "`chunk-bytes` gpu is for the copy engine");

std::string size_text(std::size_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

// When variables are pulled by a path, and why.
struct PullRule {
  PullPath path;
  bool (*applies)(const GpuInfo& gpu, const StrategyInput& input);
  std::string (*reason)(const StrategyInput& input);
};

// The first row that applies counts; the last one always does.
constexpr PullRule kPullRules[] = {
    {PullPath::kKernel, [](const GpuInfo&, const StrategyInput& input) { return input.pull_bytes <= kKernelPullBytes; },
     [](const StrategyInput&) {
       return fmt::format(
           "A pull has no more than {}, so one kernel gathers the chunks: its launch is cheaper than a copy for each.",
           size_text(kKernelPullBytes));
     }},
    {PullPath::kKernel, [](const GpuInfo& gpu, const StrategyInput&) { return reads_as_fast_by_kernel(gpu); },
     [](const StrategyInput&) {
       return std::string(
           "The GPU uses the CPUs' page tables (attribute 100), so one kernel gathers the chunks: over such a link it "
           "reads host memory as fast as the copy engine, without a CPU.");
     }},
    {PullPath::kKernel,
     [](const GpuInfo&, const StrategyInput& input) { return input.large_chunk_bytes <= kKernelPullBytes; },
     [](const StrategyInput&) {
       return fmt::format(
           "The copy engine is faster for chunks with at least {} KiB of values (`chunk-bytes`), but no more than {} "
           "are in such chunks, so one kernel gathers all.",
           kCopyEngineChunkBytes >> 10, size_text(kKernelPullBytes));
     }},
    {PullPath::kCopyEngine, [](const GpuInfo&, const StrategyInput&) { return true; },
     [](const StrategyInput& input) {
       return fmt::format(
           "The copy engine fetches the {} that are in chunks with at least {} KiB of values: it reads host memory "
           "faster than a kernel{}.",
           size_text(input.large_chunk_bytes), kCopyEngineChunkBytes >> 10,
           input.large_chunk_bytes < input.pull_bytes ? ", which gathers the others meanwhile" : "");
     }},
};

}  // namespace

bool has_native_float_adds(const GpuInfo& gpu) {
  if (was_asked_for_bits(gpu)) return (float_add_bits(gpu) & kAtomicScalar32) != 0;
  return gpu.host_native_atomics == 1;
}

Strategy choose_strategy(const GpuInfo& gpu, const StrategyInput& input) {
  if (gpu.host_register_supported == 0 || !input.is_registered) return through_host(gpu);
  Strategy strategy;
  const auto row = std::find_if(std::begin(kPullRules), std::end(kPullRules),
                                [&](const PullRule& one) { return one.applies(gpu, input); });
  strategy.pull = row->path;
  strategy.gathers_rest = row->path == PullPath::kCopyEngine && input.large_chunk_bytes < input.pull_bytes;
  strategy.pull_reason = row->reason(input);
  choose_adds(gpu, input, strategy);
  choose_registration(gpu, strategy);
  strategy.push = PushPath::kStaged;
  strategy.push_reason = fmt::format(
      "{}radients are copied to the worker's own pinned memory chunk by chunk, and the CPU pushes each chunk while the "
      "next one is on the bus.",
      strategy.native_adds ? "Of all other variables, g" : "G");
  const shm::PullPathTraits& pull = traits_of(strategy.pull);
  strategy.stream_waits = gpu.stream_wait && !pull.needs_cpu;
  if (!gpu.stream_wait)
    strategy.wait_reason =
        "This driver has no cuStreamWaitValue32, or CUDA_LAUNCH_BLOCKING is set, so the CPU enqueues a step's work "
        "when "
        "the step has opened.";
  else if (!strategy.stream_waits)
    strategy.wait_reason = fmt::format(
        "The CPU takes part in pulls {}, so it enqueues a step's work when the step has opened.", pull.in_words);
  else
    strategy.wait_reason =
        "The stream itself can wait for a step to open (cuStreamWaitValue32), so its work is enqueued ahead.";
  return strategy;
}

void note_refusal(const std::string& why, Strategy& strategy) {
  if (why.empty() || !strategy.read_only) return;
  strategy.read_only = false;
  strategy.registration_reason = fmt::format(
      "Shards are registered for reading and writing, since registering for reading only was refused ({}); {}.", why,
      kOnlyLoads);
}

std::string reasons_for_variables(const Strategy& strategy) {
  return fmt::format("{} {} {}", strategy.pull_reason, strategy.push_reason, strategy.registration_reason);
}

std::string reasons_for_rows(const Strategy& strategy, const std::string& why_not) {
  constexpr char kPush[] =
      "The GPU sums the gradients of each row, and copies the sums to the worker's own pinned memory piece by piece, "
      "while the CPU applies those that are there.";
  if (!why_not.empty()) return fmt::format("The CPU copies the rows that a batch names: {}. {}", why_not, kPush);
  if (strategy.pull == PullPath::kThroughHost)
    return fmt::format("The CPU copies the rows that a batch names. {} {}", kPush, strategy.registration_reason);
  return fmt::format("A kernel reads the rows that a batch names: they are too small for a copy each. {} {}", kPush,
                     strategy.native_adds
                         ? "Shards are registered for reading and writing: a GpuLink may have the GPU add to them."
                         : strategy.registration_reason);
}

shm::GpuNote note_of(const GpuInfo& gpu, const Strategy& strategy, std::uint64_t registered_bytes) {
  return {.uuid = gpu.properties.uuid,
          .pci_address = gpu.properties.pci_address,
          .node = gpu.numa_node,
          .pull = strategy.pull,
          .push = strategy.push,
          .native_adds = strategy.native_adds,
          .registered_bytes = registered_bytes};
}

std::string describe(const Strategy& strategy) {
  std::string text =
      fmt::format("pulls {}{}", traits_of(strategy.pull).in_words, strategy.gathers_rest ? " and a kernel" : "");
  text += strategy.push == PushPath::kStaged ? ", pushes staged" : ", pushes through the host";
  if (strategy.native_adds) text += ", adds to in-place variables itself";
  return text;
}

}  // namespace ps_shm::device
