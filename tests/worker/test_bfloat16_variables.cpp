// Variables of bfloat16: trained in every mode, bit for bit as their float32 form with rounding, and stored in half the
// memory.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/error_text.hpp"
#include "support/job.hpp"
#include "support/rule_reference.hpp"
#include "support/twins.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"
#include "update/rules.hpp"

using namespace ps_shm;
using namespace ps_shm::test;
using update::BFloat16Bits;

namespace {

constexpr float kRate = 0.05F;
constexpr int kSteps = 5;

JobConfig training(std::uint32_t workers, Mode mode, UpdateRule rule) {
  return {
      .workers = workers,
      .mode = mode,
      .chunk_bytes = 1024,
      .optimizer =
          {.rule = rule, .lr = kRate, .l1 = 0.02F, .l2 = 0.02F, .weight_decay = 0.03F, .clip_value = 1.0F, .ema = 0.7F},
      .seed = 5};
}

VariableSpec spec_of(std::vector<std::uint64_t> shape) {
  return {.name = "v", .shape = std::move(shape), .dtype = DType::kBFloat16, .regularize = 1};
}

std::uint16_t first_bits(std::size_t i) { return static_cast<std::uint16_t>(0x3f00 + i % 97 + (i % 2 << 15)); }
void first_values(std::span<float> out) {
  auto* const bits = reinterpret_cast<BFloat16Bits*>(out.data());
  for (std::size_t i = 0; i < 2 * out.size(); ++i) bits[i] = first_bits(i);
}

std::vector<float> gradient(std::size_t count, std::uint32_t rank, int step) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = float(int((i * 7 + static_cast<std::size_t>(step) * 31 + rank * 17) % 101) - 50) / 40;
  return out;
}

// The same variable in private memory.
struct Reference : Twin {
  Reference(const JobConfig& config, std::size_t elements)
      : Twin(config, config.optimizer.rule, values_of_first_bits(elements), DType::kBFloat16) {}

  static std::vector<float> values_of_first_bits(std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = update::BFloat16{first_bits(i)};
    return values;
  }
  void step(int number, const std::vector<std::vector<float>>& gradients) {
    std::vector<update::Contribution> given;
    for (const std::vector<float>& one : gradients) given.push_back({one.data()});
    Twin::step(static_cast<std::uint64_t>(number), kRate, given);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(2 * count());
    update::round_to_nearest(reinterpret_cast<BFloat16Bits*>(all.data()), values().data(), count());
    return all;
  }
};

std::vector<std::byte> bytes_of(Worker& worker, const Variable& variable) {
  std::vector<std::byte> bytes(2 * variable.element_count());
  worker.pull(variable, bytes);
  return bytes;
}

// Whether everything that can be read of the variable is what the reference has.
void check_all(Worker& worker, const Variable& variable, const Reference& reference, const std::string& job) {
  std::vector<float> out(reference.count());
  worker.pull(variable, out);
  CHECK(out == reference.values());
  CHECK(bytes_of(worker, variable) == reference.bytes());
  const JobView view(job);
  CHECK(view.values("v") == reference.values());
  CHECK(view.bytes("v") == reference.bytes());
  const std::vector<std::string> slots = view.variables().front().slots;
  REQUIRE(slots.size() == reference.arrays() - 1);
  for (std::size_t k = 0; k < slots.size(); ++k) CHECK(view.slot("v", slots[k]) == reference.array(1 + k));
  const Snapshot snapshot = worker.snapshot();
  std::vector<std::byte> stored(2 * reference.count());
  snapshot.copy("v", stored);
  CHECK(stored == reference.bytes());
  snapshot.copy("v", out);
  CHECK(out == reference.values());
  for (std::size_t k = 0; k < slots.size(); ++k) {
    snapshot.copy("v", out, slots[k]);
    CHECK(out == reference.array(1 + k));
  }
  if (reference.count() > 8 && !slots.empty()) {  // in pieces, as a checkpoint reads it
    std::vector<float> piece(4);
    snapshot.read("v", (reference.count() - 4) * sizeof(float), std::as_writable_bytes(std::span(piece)), slots[0]);
    CHECK(std::equal(piece.begin(), piece.end(), reference.array(1).end() - 4));
  }
}

const auto kRules = rules_where([](const update::Traits& traits) { return traits.works_versioned; });

}  // namespace

TEST_CASE("bfloat16: one worker follows each rule's float32 form with rounding, bit for bit") {
  for (const UpdateRule rule : kRules)
    for (const auto& shape : {std::vector<std::uint64_t>{}, {1}, {3}, {3001}, {1500, 2}})
      for (const std::uint32_t tasks : {1, 2}) {
        CAPTURE(to_string(rule));
        CAPTURE(shape.size());
        CAPTURE(tasks);
        JobConfig given = training(1, Mode::kAsync, rule);
        given.ps_tasks = tasks;
        if (tasks > 1) given.placement = Placement::kPartition;
        Job job(given);
        Worker worker = job.join();
        const Variable variable = worker.variable(spec_of(shape), first_values);
        Reference reference(job.config, variable.element_count());
        for (int step = 0; step < kSteps; ++step) {
          const std::vector<float> g = gradient(reference.count(), 0, step);
          worker.push(variable, g);
          reference.step(step, {g});
          worker.step();
        }
        check_all(worker, variable, reference, job.name.text());
        if (update::traits_of(rule).is_sum) continue;
        std::vector<float> averages(reference.count());
        worker.pull_average(variable, averages);
        CHECK(averages == reference.array(reference.arrays() - 1));
        CHECK(job.view().averages("v") == averages);
      }
}

TEST_CASE("bfloat16: three workers in sync mode compute the same bits, whoever applies a chunk") {
  constexpr std::uint32_t kWorkers = 3;
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam, UpdateRule::kAdd})
    for (const std::uint32_t tasks : {1, 2}) {
      CAPTURE(to_string(rule));
      CAPTURE(tasks);
      JobConfig given = training(kWorkers, Mode::kSync, rule);
      given.ps_tasks = tasks;
      if (tasks > 1) given.placement = Placement::kPartition;
      const std::vector<std::uint64_t> shape = {3000, 2};
      Job job(given);
      std::vector<std::thread> threads;
      for (std::uint32_t rank = 1; rank < kWorkers; ++rank)
        threads.emplace_back([&, rank] {
          Worker worker = job.join(rank);
          const Variable variable = worker.variable(spec_of(shape), first_values);
          const std::span<float> buffer = worker.gradient(variable);
          for (int step = 0; step < kSteps; ++step) {
            const std::vector<float> g = gradient(variable.element_count(), rank, step);
            if (rank == 1) {  // from where it lies already
              std::copy(g.begin(), g.end(), buffer.begin());
              worker.push(variable, buffer);
            } else {  // in two pushes, which add up
              std::vector<float> half = g;
              for (float& one : half) one *= 0.5F;
              worker.push(variable, half);
              worker.push(variable, half);
            }
            worker.step();
          }
        });
      Worker worker = job.join(0);
      const Variable variable = worker.variable(spec_of(shape), first_values);
      Reference reference(job.config, variable.element_count());
      for (int step = 0; step < kSteps; ++step) {
        std::vector<std::vector<float>> all;
        for (std::uint32_t rank = 0; rank < kWorkers; ++rank) all.push_back(gradient(reference.count(), rank, step));
        worker.push(variable, all[0]);
        worker.step();
        reference.step(step, all);
      }
      for (std::thread& thread : threads) thread.join();
      check_all(worker, variable, reference, job.name.text());
    }
}

TEST_CASE("bfloat16: a step that one worker applies alone, as the other is held up, has the same bits") {
  constexpr int kHeldUp = 2;
  Job job(training(2, Mode::kSync, UpdateRule::kAdam));
  std::promise<void> released;
  std::thread other([&] {
    int step = 0;
    WorkerOptions given = job.options(1);
    given.on_part = [&](const char* part, std::uint64_t, std::uint64_t) {  // the step is decided, and nothing applied
      if (step == kHeldUp && std::strcmp(part, "wait") == 0) released.get_future().wait(), step = -1;
    };
    Worker worker(given);
    const Variable variable = worker.variable(spec_of({3001}), first_values);
    for (int number = 0; number <= kHeldUp; step = ++number) {
      worker.push(variable, gradient(3001, 1, number));
      worker.step();
    }
  });
  Worker worker = job.join(0);
  const Variable variable = worker.variable(spec_of({3001}), first_values);
  Reference reference(job.config, 3001);
  for (int number = 0; number <= kHeldUp; ++number) {
    worker.push(variable, gradient(3001, 0, number));
    worker.step();
    reference.step(number, {gradient(3001, 0, number), gradient(3001, 1, number)});
  }
  check_all(worker, variable, reference, job.name.text());
  released.set_value();
  other.join();  // what it computes now comes too late, and changes nothing
  check_all(worker, variable, reference, job.name.text());
}

TEST_CASE("bfloat16: a sync step assigns the highest rank's values, and then applies the others' gradients") {
  Job job(training(2, Mode::kSync, UpdateRule::kMomentum));
  const VariableSpec spec = spec_of({1001});
  std::thread other([&] {
    Worker worker = job.join(1);
    const Variable variable = worker.variable(spec, first_values);
    std::vector<float> values(501);
    first_values(values);
    worker.assign(variable, std::as_bytes(std::span(values)).first(2002), Slots::kReset);
    worker.step();
  });
  Worker worker = job.join(0);
  const Variable variable = worker.variable(spec, first_values);
  const std::vector<float> g = gradient(1001, 0, 0);
  worker.push(variable, g);
  worker.step();
  other.join();
  Reference reference(job.config, 1001);
  reference.step(0, {g});
  check_all(worker, variable, reference, job.name.text());
}

TEST_CASE("bfloat16: with reduce atomic the gradients' sum is of float32") {
  JobConfig given = training(1, Mode::kSync, UpdateRule::kSgd);
  given.reduce = Reduce::kAtomic;
  Job job(given);
  Worker worker = job.join();
  const Variable variable = worker.variable(spec_of({3001}), first_values);
  Reference reference(job.config, 3001);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> g = gradient(3001, 0, step);
    worker.push(variable, g);
    worker.step();
    reference.step(step, {g});
  }
  check_all(worker, variable, reference, job.name.text());
}

TEST_CASE("bfloat16: the norm of gradients is limited over all of their elements") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    Job job({.mode = mode, .chunk_bytes = 1024, .optimizer = {.lr = 1.0F, .clip_norm = 10}, .seed = 5});
    Worker worker = job.join();
    const Variable variable = worker.variable({.name = "v", .shape = {100}, .dtype = DType::kBFloat16}, zero);
    worker.push(variable, std::vector<float>(100, 2));  // its norm is 20
    worker.step();
    CHECK(pulled(worker, variable) == std::vector<float>(100, -1));
  }
}

TEST_CASE("bfloat16: a job that begins with a checkpoint goes on as if it had not stopped") {
  const JobName name;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / name.text();
  JobConfig config = config_of(training(1, Mode::kSync, UpdateRule::kAdam));
  Reference reference(config, 3001);
  std::string checkpoint;
  for (int step = 0; step < 2 * kSteps; ++step) reference.step(step, {gradient(3001, 0, step)});
  for (const int first : {0, kSteps}) {
    JobConfig now = config;
    if (first != 0) now.restore = checkpoint, now.first_step = std::uint64_t(first);
    Server server(now);
    Worker worker(options(now));
    const Variable variable = worker.variable(spec_of({3001}), first_values);
    for (int step = first; step < first + kSteps; ++step) {
      worker.push(variable, gradient(3001, 0, step));
      worker.step();
    }
    if (first == 0)
      checkpoint = Checkpoint::save(JobView(now.job), folder.string());
    else
      check_all(worker, variable, reference, now.job);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("bfloat16: values take half the memory, and state that of float32") {
  Job job(training(1, Mode::kAsync, UpdateRule::kMomentum));
  Worker worker = job.join();
  worker.variable(spec_of({4096}), first_values);
  const VariableInfo info = job.view().variables().front();
  CHECK(info.bytes == 2 * 4096);
  CHECK(info.parts.front().bytes == 2 * 4096);
  CHECK(info.parts.front().slot_bytes == 2 * 4 * 4096);  // momentum and the average
  CHECK(info.slots == std::vector<std::string>{"momentum", "ema"});
  CHECK(info.parts.front().chunks * 1024 < 4096 * (2 + 2 * 4) * 1.25);
}

TEST_CASE("bfloat16: what is not possible is said") {
  Job job(training(1, Mode::kAsync, UpdateRule::kSgd));
  Worker worker = job.join();
  VariableSpec spec = spec_of({4});
  const Variable variable = worker.variable(spec, first_values);
  std::vector<float> four(4);
  CHECK(error_of([&] { worker.push(variable, std::vector<float>(3)); }) ==
        "push of variable 'v': it has 4 elements, the span has 3");
  CHECK(error_of([&] { worker.pull(variable, std::span(four).first(2)); }) ==
        "pull of variable 'v': it has 4 elements, the span has 2");
  CHECK(contains(error_of([&] { worker.add(variable, four); }), "its dtype is bfloat16, and this call is for float32"));
  CHECK(contains(error_of([&] { worker.add(variable, std::as_bytes(std::span(four)).first(8)); }),
                 "bfloat16 has no sum"));
  CHECK(contains(error_of([&] { static_cast<void>(worker.assign(variable, four)); }), "this call is for float32"));
  spec = {.name = "w", .shape = {4}, .rule = UpdateRule::kSgd, .dtype = DType::kFloat16};
  CHECK(contains(error_of([&] { worker.variable(spec, zero); }), "float16, which takes no gradients"));
}
