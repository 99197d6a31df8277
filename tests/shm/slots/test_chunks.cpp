// How versioned variables are divided into chunks, by their size and by chunk_bytes; values never depend on it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/placement.hpp"
#include "support/job.hpp"

using namespace ps_shm;
using test::Job;

namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kHeader = sizeof(shm::BufferHeaderShm);

struct Cut {
  std::uint64_t buffer_bytes, pieces, piece_elements;
};

// How a versioned variable of this many floats, each with this many slots, is divided.
Cut cut(std::uint64_t elements, std::uint64_t slots = 0, std::uint64_t chunk_bytes = 0) {
  shm::VariableShm record{};
  record.layout = static_cast<std::uint32_t>(Layout::kVersioned);
  record.elements = elements;
  record.slots = slots;
  shm::choose_pieces(record, nullptr, chunk_bytes);
  return {std::uint64_t{1} << record.buffer_class, record.pieces, record.piece_elements};
}

// The same in a job with GPU workers, where the dtype matters; `floats` of values, of which one holds two of bfloat16.
Cut cut_for_gpu(std::uint64_t floats, std::uint64_t slots, DType dtype = DType::kFloat32,
                std::uint64_t chunk_bytes = kChunkBytesForGpu) {
  shm::VariableShm record{};
  record.layout = static_cast<std::uint32_t>(Layout::kVersioned);
  record.dtype = static_cast<std::uint32_t>(dtype);
  record.elements = floats;
  record.slots = slots;
  shm::choose_pieces(record, nullptr, chunk_bytes);
  return {std::uint64_t{1} << record.buffer_class, record.pieces, record.piece_elements};
}

// Each worker has free buffers: for 16 of them with 1 MiB each, a container's /dev/shm is too small.
JobConfig few_workers(std::uint64_t chunk_bytes) { return {.max_workers = 2, .chunk_bytes = chunk_bytes}; }

void count_up(std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = float(i);
}

}  // namespace

TEST_CASE("chunks: a single one up to 16 KiB with its header, then 8 KiB each, above 256 KiB 32 KiB each") {
  const std::uint64_t most_of_one = (16 * kKiB - kHeader) / sizeof(float);
  const std::uint64_t most_of_small = 256 * kKiB / sizeof(float);
  struct Row {
    std::uint64_t elements, bytes;
  };
  for (const Row& row : {Row{1, kKiB}, Row{(kKiB - kHeader) / 4, kKiB}, Row{(kKiB - kHeader) / 4 + 1, 2 * kKiB},
                         Row{1000, 4 * kKiB}, Row{most_of_one - 1, 16 * kKiB}, Row{most_of_one, 16 * kKiB},
                         Row{most_of_one + 1, 8 * kKiB}, Row{most_of_small - 1, 8 * kKiB}, Row{most_of_small, 8 * kKiB},
                         Row{most_of_small + 1, 32 * kKiB}, Row{16'000'000, 32 * kKiB}}) {
    CAPTURE(row.elements);
    const Cut found = cut(row.elements);
    CHECK(found.buffer_bytes == row.bytes);
    CHECK((found.pieces == 1) == (row.elements <= most_of_one));
  }
}

TEST_CASE("chunks: above 4 MiB with its slots, 64 KiB each with one slot, 128 KiB with more") {
  constexpr std::uint64_t kBytes[] = {32, 64, 128, 128};  // KiB, by slots
  for (const std::uint64_t slots : {0, 1, 2, 3}) {
    CAPTURE(slots);
    const std::uint64_t most = 4096 * kKiB / (sizeof(float) * (1 + slots));
    CHECK(cut(most, slots).buffer_bytes == 32 * kKiB);
    CHECK(cut(most + 1, slots).buffer_bytes == kBytes[slots] * kKiB);
  }
}

TEST_CASE("chunks: for GPUs, values of 64 MiB and more are in the smallest buffers with at least 128 KiB of them") {
  constexpr std::uint64_t kBytes[] = {256, 512, 512, 1024};  // KiB, by slots
  constexpr std::uint64_t kLarge = 64 * kKiB * kKiB / sizeof(float);
  for (const std::uint64_t slots : {0, 1, 2, 3}) {
    CAPTURE(slots);
    for (const std::uint64_t floats : {kLarge, kLarge + 1, 100 * kLarge}) {
      const Cut found = cut_for_gpu(floats, slots);
      CHECK(found.buffer_bytes == kBytes[slots] * kKiB);
      CHECK(found.piece_elements * sizeof(float) >= 128 * kKiB);
      const std::uint64_t of_half = (found.buffer_bytes / 2 - kHeader) / (sizeof(float) * (1 + slots));
      CHECK(of_half * sizeof(float) < 128 * kKiB);
      CHECK(kHeader + found.piece_elements * sizeof(float) * (1 + slots) <= found.buffer_bytes);
      CHECK((found.pieces - 1) * found.piece_elements < floats);
      CHECK(found.pieces * found.piece_elements >= floats);
    }
    for (const std::uint64_t floats : {std::uint64_t{1}, std::uint64_t{5000}, std::uint64_t{1'000'000}, kLarge - 1})
      CHECK(cut_for_gpu(floats, slots).buffer_bytes == cut(floats, slots).buffer_bytes);
    CHECK(cut_for_gpu(kLarge, slots, DType::kFloat32, 4 * kKiB).buffer_bytes == 4 * kKiB);  // a size that is given
  }
  CHECK(cut_for_gpu(kLarge, 7).buffer_bytes == cut(kLarge, 7).buffer_bytes);  // none holds as much
}

TEST_CASE("chunks: for GPUs, variables of which no link pulls the values stay as they are") {
  constexpr std::uint64_t kLarge = 64 * kKiB * kKiB / sizeof(float);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat64, DType::kInt64})
    for (const std::uint64_t slots : {0, 1, 2}) {
      CAPTURE(to_string(dtype));
      CAPTURE(slots);
      CHECK(cut_for_gpu(kLarge, slots, dtype).buffer_bytes == cut_for_gpu(kLarge, slots, dtype, 0).buffer_bytes);
    }
}

TEST_CASE("chunks: a variable that fits into 16 KiB with its slots is one chunk, in the smallest buffer for it") {
  for (std::uint64_t slots = 0; slots <= 4; ++slots)
    for (std::uint64_t elements = 1; elements * sizeof(float) <= 16 * kKiB; ++elements) {
      const Cut found = cut(elements, slots);
      // Each array is a multiple of 64 bytes.
      const std::uint64_t needed = kHeader + (elements + 15) / 16 * 16 * sizeof(float) * (1 + slots);
      CAPTURE(elements);
      CAPTURE(slots);
      REQUIRE((found.pieces == 1) == (needed <= 16 * kKiB));
      if (found.pieces != 1) continue;
      REQUIRE(found.buffer_bytes >= needed);
      REQUIRE((found.buffer_bytes == kKiB || found.buffer_bytes / 2 < needed));
    }
}

TEST_CASE("chunks: for every size and number of slots they cover the variable, fit their buffers and are not empty") {
  for (std::uint64_t chunk_bytes : {0UL, 1UL * kKiB, 2 * kKiB, 4 * kKiB, 64 * kKiB, 1024 * kKiB})
    for (std::uint64_t slots = 0; slots <= 4; ++slots)
      for (std::uint64_t elements : {1UL, 15UL, 16UL, 17UL, 48UL, 240UL, 241UL, 1008UL, 4079UL, 4080UL, 4081UL,
                                     65'536UL, 65'537UL, 1'000'003UL}) {
        const Cut found = cut(elements, slots, chunk_bytes);
        CAPTURE(chunk_bytes);
        CAPTURE(slots);
        CAPTURE(elements);
        if (chunk_bytes != 0) CHECK(found.buffer_bytes == chunk_bytes);
        CHECK(found.piece_elements > 0);
        CHECK(found.piece_elements % 16 == 0);  // slot arrays begin on cache lines
        CHECK(kHeader + found.piece_elements * sizeof(float) * (1 + slots) <= found.buffer_bytes);
        CHECK(found.pieces * found.piece_elements >= elements);
        CHECK((found.pieces - 1) * found.piece_elements < elements);
      }
}

TEST_CASE("chunks: chunk_bytes is a power of two from 1 KiB to 1 MiB, 0, or kChunkBytesForGpu") {
  JobConfig config;
  config.job = "chunks";
  const auto refusal = [&](std::uint64_t bytes) -> std::string {
    config.chunk_bytes = bytes;
    try {
      check(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(0).empty());
  CHECK(refusal(kChunkBytesForGpu).empty());
  for (std::uint64_t bytes = kKiB; bytes <= 1024 * kKiB; bytes *= 2) CHECK(refusal(bytes).empty());
  for (const std::uint64_t bytes : {1UL, 2UL, 512UL, 1023UL, 1025UL, 1536UL, 3000UL, 2048 * kKiB, kKiB + 1024 * kKiB,
                                    1UL << 32, 1UL << 63, ~0UL - 1}) {
    CAPTURE(bytes);
    CHECK(refusal(bytes).find("`chunk-bytes` must be a power of two from 1KiB to 1MiB") != std::string::npos);
  }
}

TEST_CASE("chunks: a job has the requested chunk size, and reports it in its settings") {
  for (const std::uint64_t bytes : {1 * kKiB, 8 * kKiB, 1024 * kKiB}) {
    Job job(few_workers(bytes));
    Worker worker = job.join();
    CHECK(worker.config().chunk_bytes == bytes);
    CHECK(job.view().info().config.chunk_bytes == bytes);
    worker.variable({.name = "v", .shape = {5000}, .rule = UpdateRule::kAdd, .layout = {}}, count_up);
    const PartInfo part = job.view().variables().front().parts.front();
    CHECK(part.chunk_elements == (bytes - kHeader) / sizeof(float));
    CHECK(part.chunks == (5000 - 1) / part.chunk_elements + 1);
  }
}

TEST_CASE("chunks: a job for GPU workers says so in its settings, and its parts are large or not, each by its size") {
  constexpr std::uint64_t kLarge = 64 * kKiB * kKiB / sizeof(float);
  for (const std::uint32_t tasks : {1U, 2U}) {
    CAPTURE(tasks);
    JobConfig settings = few_workers(kChunkBytesForGpu);
    settings.ps_tasks = tasks;
    if (tasks > 1) settings.placement = Placement::kPartition;
    Job job(settings);
    Worker worker = job.join();
    CHECK(worker.config().chunk_bytes == kChunkBytesForGpu);
    CHECK(job.view().info().config.chunk_bytes == kChunkBytesForGpu);
    const auto leave = [](std::span<float>) {};
    worker.variable({.name = "large", .shape = {kLarge}, .rule = UpdateRule::kAdd, .layout = {}}, leave);
    worker.variable({.name = "small", .shape = {5000}, .rule = UpdateRule::kAdd, .layout = {}}, leave);
    Worker other = job.join();  // checks the records
    for (const VariableInfo& variable : job.view().variables())
      for (const PartInfo& part : variable.parts) {
        const std::uint64_t chunk = variable.name == "small" ? 8 * kKiB : tasks == 1 ? 256 * kKiB : 32 * kKiB;
        if (variable.name == "large" || tasks == 1) CHECK(part.chunk_elements == (chunk - kHeader) / sizeof(float));
      }
  }
}

TEST_CASE("chunks: blocks of in-place variables do not depend on chunk_bytes") {
  for (const std::uint64_t bytes : {std::uint64_t{0}, 1 * kKiB, 1024 * kKiB}) {
    Job job(few_workers(bytes));
    Worker worker = job.join();
    worker.variable({.name = "v", .shape = {5000}, .rule = UpdateRule::kAdd, .layout = Layout::kInplace}, count_up);
    CHECK(job.view().variables().front().parts.front().chunk_elements == 4096);
  }
}

TEST_CASE("chunks: values do not depend on their size, whatever rule, mode and reduction") {
  struct Kind {
    UpdateRule rule;
    Mode mode;
    Reduce reduce;
  };
  for (const Kind& kind :
       {Kind{UpdateRule::kSgd, Mode::kAsync, Reduce::kOrdered}, Kind{UpdateRule::kAdam, Mode::kAsync, Reduce::kOrdered},
        Kind{UpdateRule::kMomentum, Mode::kSync, Reduce::kOrdered},
        Kind{UpdateRule::kAdam, Mode::kSync, Reduce::kAtomic}}) {
    CAPTURE(to_string(kind.rule));
    CAPTURE(to_string(kind.mode));
    std::vector<std::vector<float>> ends;
    for (const std::uint64_t bytes : {std::uint64_t{0}, 1 * kKiB, 16 * kKiB, 1024 * kKiB}) {
      JobConfig settings = few_workers(bytes);
      settings.mode = kind.mode;
      settings.reduce = kind.reduce;
      settings.optimizer.rule = kind.rule;
      settings.optimizer.ema = 0.5F;
      Job job(settings);
      Worker worker = job.join();
      const Variable variable =
          worker.variable({.name = "v", .shape = {5001}, .rule = kind.rule, .layout = {}}, count_up);
      std::vector<float> values(5001), gradient(5001);
      for (int step = 0; step < 5; ++step) {
        worker.pull(variable, values);
        for (std::size_t i = 0; i < values.size(); ++i) gradient[i] = values[i] - float(i % 7);
        worker.push(variable, gradient);
        worker.step();
      }
      worker.pull(variable, values);
      std::vector<float> averages(5001);
      worker.pull_average(variable, averages);
      values.insert(values.end(), averages.begin(), averages.end());
      ends.push_back(values);
      CHECK(job.view().values("v") == std::vector<float>(values.begin(), values.begin() + 5001));
    }
    for (const std::vector<float>& end : ends) CHECK(end == ends.front());
    CHECK(ends.front()[5000] != 5000);  // the pushes had an effect
  }
}
