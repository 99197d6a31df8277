// Which strategy is chosen for which GPU, and its description, with a fake driver's answers.
#include <doctest/doctest.h>

#include <cctype>
#include <string>
#include <vector>

#include "device/strategy.hpp"
#include "support/error_text.hpp"

using namespace ps_shm::device;
using ps_shm::test::contains;

namespace {

constexpr auto kFloatAdd = static_cast<std::size_t>(AtomicOperation::kFloatAdd);
constexpr std::size_t kLarge = std::size_t{64} << 20;
constexpr StrategyInput kVersioned = {.pull_bytes = kLarge, .large_chunk_bytes = kLarge};
constexpr StrategyInput kAdditive = {
    .pull_bytes = kLarge, .large_chunk_bytes = kLarge / 2, .has_additive_inplace = true};

// The answers of a driver for CUDA 13.0 about a GPU on PCIe.
GpuInfo pcie_gpu() {
  GpuInfo gpu;
  gpu.properties = {"NVIDIA H200", "0000:1b:00.0", 9, 0, 132, std::size_t{140} << 30};
  gpu.host_native_atomics = gpu.partial_host_native_atomics = 0;
  gpu.host_atomics.assign(kAtomicOperations, 0U);
  gpu.can_use_host_pointer = gpu.host_register_supported = gpu.read_only_registration = 1;
  gpu.pageable_access = gpu.uses_host_page_tables = 0;
  gpu.stream_wait = true;
  return gpu;
}

GpuInfo grace_hopper() {
  GpuInfo gpu = pcie_gpu();
  gpu.properties.name = "NVIDIA GH200 480GB";
  gpu.host_native_atomics = gpu.pageable_access = gpu.uses_host_page_tables = 1;
  gpu.host_atomics[kFloatAdd] = kAtomicScalar32 | kAtomicScalar64 | kAtomicVector32x4;
  return gpu;
}

GpuInfo with_old_driver(GpuInfo gpu) {
  gpu.host_atomics.clear();
  return gpu;
}

void check_sentences(const Strategy& strategy) {
  for (const std::string& reason : {strategy.pull_reason, strategy.push_reason, strategy.native_reason,
                                    strategy.registration_reason, strategy.wait_reason}) {
    CAPTURE(reason);
    REQUIRE(reason.size() > 20);
    CHECK(std::isupper(static_cast<unsigned char>(reason[0])));
    CHECK(reason.back() == '.');
    CHECK_FALSE(contains(reason, "  "));
    CHECK_FALSE(contains(reason, "\n"));
  }
}

}  // namespace

TEST_CASE("strategy: on PCIe gradients are staged and shards are registered for reading only") {
  for (const StrategyInput& input : {kVersioned, kAdditive}) {
    const Strategy strategy = choose_strategy(pcie_gpu(), input);
    CHECK(strategy.push == PushPath::kStaged);
    CHECK_FALSE(strategy.native_adds);
    CHECK_FALSE(strategy.wide_adds);
    CHECK(strategy.read_only);
    CHECK(contains(strategy.native_reason, "not atomic towards CPUs"));
    CHECK(contains(strategy.native_reason, "attribute 86 is 0"));
    CHECK(contains(strategy.registration_reason, "reading only"));
  }
}

TEST_CASE("strategy: small pulls are done by a kernel, large ones by the copy engine") {
  const auto pull_of = [](std::size_t bytes) {
    return choose_strategy(pcie_gpu(), {.pull_bytes = bytes, .large_chunk_bytes = bytes});
  };
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, kKernelPullBytes}) {
    CHECK(pull_of(bytes).pull == PullPath::kKernel);
    CHECK(contains(pull_of(bytes).pull_reason, "no more than 2 MiB, so one kernel"));
  }
  for (const std::size_t bytes : {kKernelPullBytes + 1, std::size_t{1} << 40}) {
    CHECK(pull_of(bytes).pull == PullPath::kCopyEngine);
    CHECK_FALSE(pull_of(bytes).gathers_rest);
    CHECK(
        contains(pull_of(bytes).pull_reason,
                 "MiB that are in chunks with at least 128 KiB of values: it reads host memory faster than a kernel."));
    CHECK(contains(describe(pull_of(bytes)), "pulls by the copy engine, pushes "));
  }
}

TEST_CASE("strategy: small chunks are pulled by a kernel, however large the pull, and its stream can wait") {
  CHECK_FALSE(is_for_copy_engine(kCopyEngineChunkBytes - 1));
  CHECK(is_for_copy_engine(kCopyEngineChunkBytes));
  StrategyInput input = kVersioned;
  for (const std::size_t bytes : {std::size_t{0}, kKernelPullBytes}) {
    input.large_chunk_bytes = bytes;
    const Strategy strategy = choose_strategy(pcie_gpu(), input);
    CHECK(strategy.pull == PullPath::kKernel);
    CHECK(strategy.stream_waits);
    CHECK(
        contains(strategy.pull_reason,
                 "chunks with at least 128 KiB of values (`chunk-bytes`), but no more than 2 MiB are in such chunks"));
    check_sentences(strategy);
  }
  input.large_chunk_bytes = kKernelPullBytes + 1;
  const Strategy both = choose_strategy(pcie_gpu(), input);
  CHECK(both.pull == PullPath::kCopyEngine);
  CHECK(both.gathers_rest);
  CHECK_FALSE(both.stream_waits);
  CHECK(contains(both.pull_reason, "faster than a kernel, which gathers the others meanwhile."));
  CHECK(contains(describe(both), "pulls by the copy engine and a kernel, pushes "));
  check_sentences(both);
}

TEST_CASE("strategy: what is said of variables and rows has a reason for pulls, pushes and registration") {
  const Strategy kernel = choose_strategy(pcie_gpu(), kVersioned);
  CHECK(reasons_for_variables(kernel) ==
        kernel.pull_reason + " " + kernel.push_reason + " " + kernel.registration_reason);
  const std::string pulls = "A kernel reads the rows", copies = "The CPU copies the rows that a batch names";
  const std::string rows = reasons_for_rows(kernel, "");
  CHECK(contains(rows, pulls));
  CHECK(contains(rows, "The GPU sums the gradients of each row"));
  CHECK(contains(rows, kernel.registration_reason));
  CHECK(contains(reasons_for_rows(kernel, "it is bfloat16"), copies + ": it is bfloat16."));
  GpuInfo unable = pcie_gpu();
  unable.host_register_supported = 0;
  const std::string through_host = reasons_for_rows(choose_strategy(unable, kVersioned), "");
  CHECK(contains(through_host, copies + "."));
  CHECK(contains(through_host, "attribute 99"));
  Strategy native = kernel;
  native.native_adds = true;
  CHECK(contains(reasons_for_rows(native, ""), "a GpuLink may have the GPU add to them"));
}

TEST_CASE("strategy: where registering for reading only was refused, the reason says so") {
  Strategy strategy = choose_strategy(pcie_gpu(), kVersioned);
  note_refusal("", strategy);
  CHECK(strategy.read_only);
  note_refusal("the driver says no", strategy);
  CHECK_FALSE(strategy.read_only);
  CHECK(contains(strategy.registration_reason, "the driver says no"));
  check_sentences(strategy);
}

TEST_CASE("strategy: native float adds are used for additive in-place variables, with writable shards") {
  const Strategy strategy = choose_strategy(grace_hopper(), kAdditive);
  CHECK(strategy.native_adds);
  CHECK(strategy.wide_adds);
  CHECK_FALSE(strategy.read_only);
  CHECK(strategy.push == PushPath::kStaged);  // for other variables
  CHECK(strategy.pull == PullPath::kKernel);
  CHECK(contains(strategy.native_reason, "by fours"));
  CHECK(contains(strategy.registration_reason, "reading and writing"));
  CHECK(contains(strategy.push_reason, "Of all other variables"));
}

TEST_CASE("strategy: native float adds are not used in a versioned job") {
  const Strategy strategy = choose_strategy(grace_hopper(), kVersioned);
  CHECK_FALSE(strategy.native_adds);
  CHECK_FALSE(strategy.wide_adds);
  CHECK(strategy.read_only);
  CHECK(contains(strategy.native_reason, "no variable is in place"));
}

TEST_CASE("strategy: vector adds of four need their bit and compute capability 9") {
  GpuInfo gpu = grace_hopper();
  gpu.host_atomics[kFloatAdd] = kAtomicScalar32;
  CHECK(choose_strategy(gpu, kAdditive).native_adds);
  CHECK_FALSE(choose_strategy(gpu, kAdditive).wide_adds);
  CHECK(contains(choose_strategy(gpu, kAdditive).native_reason, "one by one"));
  gpu = grace_hopper();
  gpu.properties.major = 8;
  CHECK(choose_strategy(gpu, kAdditive).native_adds);
  CHECK_FALSE(choose_strategy(gpu, kAdditive).wide_adds);
  gpu.properties.major = 10;
  CHECK(choose_strategy(gpu, kAdditive).wide_adds);
}

TEST_CASE("strategy: before CUDA 13.0 attribute 86 alone decides, and there are no vector adds") {
  const Strategy strategy = choose_strategy(with_old_driver(grace_hopper()), kAdditive);
  CHECK(strategy.native_adds);
  CHECK_FALSE(strategy.wide_adds);
  CHECK_FALSE(strategy.read_only);
  CHECK(contains(strategy.native_reason, "attribute 86"));
  CHECK_FALSE(choose_strategy(with_old_driver(pcie_gpu()), kAdditive).native_adds);
}

TEST_CASE("strategy: the float add's own bits override attribute 86, either way") {
  GpuInfo gpu = grace_hopper();
  gpu.host_atomics[kFloatAdd] = kAtomicScalar64 | kAtomicVector32x4;
  CHECK_FALSE(has_native_float_adds(gpu));
  Strategy strategy = choose_strategy(gpu, kAdditive);
  CHECK_FALSE(strategy.native_adds);
  CHECK_FALSE(strategy.wide_adds);
  CHECK(strategy.read_only);
  CHECK(contains(strategy.native_reason, "attribute 86"));
  CHECK(contains(strategy.native_reason, "not for adds of single floats"));

  gpu = pcie_gpu();
  gpu.host_atomics[kFloatAdd] = kAtomicScalar32;
  CHECK(has_native_float_adds(gpu));
  strategy = choose_strategy(gpu, kAdditive);
  CHECK(strategy.native_adds);
  CHECK(contains(strategy.native_reason, "lists the float add"));
}

TEST_CASE("strategy: bits of other operations do not imply the float add") {
  GpuInfo gpu = pcie_gpu();
  for (unsigned& bits : gpu.host_atomics) bits = kAtomicScalar32 | kAtomicVector32x4;
  gpu.host_atomics[kFloatAdd] = 0;
  CHECK_FALSE(has_native_float_adds(gpu));
}

TEST_CASE("strategy: partially native atomics are staged unless the float add is among them") {
  GpuInfo gpu = pcie_gpu();
  gpu.partial_host_native_atomics = 1;
  CHECK_FALSE(choose_strategy(gpu, kAdditive).native_adds);
  CHECK(contains(choose_strategy(gpu, kAdditive).native_reason, "the float add is not among them"));
  CHECK_FALSE(choose_strategy(with_old_driver(gpu), kAdditive).native_adds);
  CHECK(contains(choose_strategy(with_old_driver(gpu), kAdditive).native_reason, "cannot say which"));
  gpu.host_atomics[kFloatAdd] = kAtomicScalar32;
  CHECK(choose_strategy(gpu, kAdditive).native_adds);
}

TEST_CASE("strategy: no answer about host atomics counts as no") {
  GpuInfo gpu = with_old_driver(pcie_gpu());
  gpu.host_native_atomics = gpu.partial_host_native_atomics = -1;
  const Strategy strategy = choose_strategy(gpu, kAdditive);
  CHECK_FALSE(strategy.native_adds);
  CHECK(contains(strategy.native_reason, "does not say"));
  gpu.host_atomics.assign(kAtomicOperations, 0U);
  CHECK(contains(choose_strategy(gpu, kAdditive).native_reason, "does not list the float add"));
}

TEST_CASE("strategy: a GPU that cannot register host memory copies through the host, and the cost is reported") {
  for (GpuInfo gpu : {pcie_gpu(), grace_hopper()}) {
    gpu.host_register_supported = 0;
    const Strategy strategy = choose_strategy(gpu, kAdditive);
    CHECK(strategy.pull == PullPath::kThroughHost);
    CHECK(strategy.push == PushPath::kThroughHost);
    CHECK_FALSE(strategy.native_adds);
    CHECK_FALSE(strategy.wide_adds);
    CHECK_FALSE(strategy.read_only);
    CHECK_FALSE(strategy.stream_waits);
    CHECK(contains(strategy.registration_reason, "attribute 99"));
    CHECK(contains(strategy.pull_reason, "every byte is moved once more"));
  }
}

TEST_CASE("strategy: if registering has failed, transfers go through the host as well") {
  for (const GpuInfo& gpu : {pcie_gpu(), grace_hopper()}) {
    StrategyInput input = kAdditive;
    input.is_registered = false;
    const Strategy strategy = choose_strategy(gpu, input);
    CHECK(strategy.pull == PullPath::kThroughHost);
    CHECK(strategy.push == PushPath::kThroughHost);
    CHECK_FALSE(strategy.native_adds);
    CHECK_FALSE(strategy.stream_waits);
    CHECK(contains(strategy.registration_reason, "has failed"));
  }
}

TEST_CASE("strategy: if the driver does not know whether it can register, it is tried") {
  GpuInfo gpu = pcie_gpu();
  gpu.host_register_supported = -1;
  CHECK(choose_strategy(gpu, kVersioned).pull == PullPath::kCopyEngine);
}

TEST_CASE("strategy: without read-only registration shards are registered for reading and writing") {
  for (const int answer : {0, -1}) {
    GpuInfo gpu = pcie_gpu();
    gpu.read_only_registration = answer;
    const Strategy strategy = choose_strategy(gpu, kVersioned);
    CHECK_FALSE(strategy.read_only);
    CHECK(strategy.push == PushPath::kStaged);
    CHECK(contains(strategy.registration_reason, answer == 0 ? "attribute 113 is 0" : "attribute 113 is unknown"));
    CHECK(contains(strategy.registration_reason, "nothing but its kernels keeps the GPU from writing to them"));
    check_sentences(strategy);
  }
}

TEST_CASE("strategy: with the CPUs' page tables a kernel pulls, whatever the size, and the stream waits") {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  for (const std::size_t large : {kGiB, kGiB / 2, std::size_t{0}}) {
    const Strategy strategy = choose_strategy(grace_hopper(), {.pull_bytes = kGiB, .large_chunk_bytes = large});
    CHECK(strategy.pull == PullPath::kKernel);
    CHECK(strategy.stream_waits);
    CHECK(contains(strategy.pull_reason, "attribute 100"));
    CHECK(describe(strategy).find("pulls by a kernel") == 0);
    check_sentences(strategy);
  }
  CHECK(choose_strategy(pcie_gpu(), {.pull_bytes = kGiB, .large_chunk_bytes = kGiB}).pull == PullPath::kCopyEngine);
}

TEST_CASE("strategy: with the CPUs' page tables registering pins nothing") {
  CHECK(contains(choose_strategy(grace_hopper(), kVersioned).registration_reason, "pins nothing"));
  CHECK_FALSE(contains(choose_strategy(pcie_gpu(), kVersioned).registration_reason, "pins nothing"));
}

TEST_CASE("strategy: the stream waits if the driver supports it") {
  GpuInfo gpu = pcie_gpu();
  const StrategyInput small{.pull_bytes = kKernelPullBytes};
  const StrategyInput large{.pull_bytes = kLarge, .large_chunk_bytes = kLarge};
  CHECK(choose_strategy(gpu, small).stream_waits);
  CHECK_FALSE(choose_strategy(gpu, large).stream_waits);
  CHECK(contains(choose_strategy(gpu, large).wait_reason, "copy engine"));
  gpu.stream_wait = false;
  CHECK_FALSE(choose_strategy(gpu, small).stream_waits);
  CHECK_FALSE(choose_strategy(gpu, kVersioned).stream_waits);
  CHECK(contains(choose_strategy(gpu, kVersioned).wait_reason, "no cuStreamWaitValue32"));
}

TEST_CASE("strategy: every reason of every choice is a sentence, and the same answers give the same texts") {
  int cases = 0;
  for (const int native : {-1, 0, 1})
    for (const int partial : {-1, 0, 1})
      for (const int can_register : {-1, 0, 1})
        for (const int read_only : {0, 1})
          for (const unsigned bits : {0U, kAtomicScalar32, kAtomicScalar32 | kAtomicVector32x4})
            for (const bool is_asked : {false, true})
              for (const bool additive : {false, true})
                for (const bool registered : {false, true}) {
                  GpuInfo gpu = pcie_gpu();
                  gpu.host_native_atomics = native;
                  gpu.partial_host_native_atomics = partial;
                  gpu.host_register_supported = can_register;
                  gpu.read_only_registration = read_only;
                  gpu.host_atomics[kFloatAdd] = bits;
                  gpu.stream_wait = additive;
                  if (!is_asked) gpu.host_atomics.clear();
                  const StrategyInput input = {4096, additive, registered};
                  const Strategy strategy = choose_strategy(gpu, input), again = choose_strategy(gpu, input);
                  check_sentences(strategy);
                  CHECK(strategy.native_reason == again.native_reason);
                  CHECK((strategy.native_adds && strategy.read_only) == false);
                  CHECK((strategy.wide_adds && !strategy.native_adds) == false);
                  CHECK((strategy.native_adds && !has_native_float_adds(gpu)) == false);
                  ++cases;
                }
  CHECK(cases == 1296);
}
