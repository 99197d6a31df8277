// What a large model costs in shared memory, and that the inspector's breakdown of it adds up.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"

using namespace ps_shm;

namespace {

constexpr std::uint64_t kVariables = 40, kRows = 64;

// Bytes of a model of which /dev/shm can hold `copies`; 0: none large enough to measure. 1 GiB with PS_SHM_TEST_FULL=1.
std::uint64_t model_bytes(double copies) {
  const char* full = std::getenv("PS_SHM_TEST_FULL");
  const double room = 0.8 * double(shm::shm_free_bytes()) / copies;
  for (const std::uint64_t mib : {1024, 256, 128})
    if (room >= double(mib << 20) && (mib < 1024 || (full != nullptr && full[0] == '1'))) return mib << 20;
  return 0;
}

struct Outcome {
  ByteCount bytes;
  std::uint64_t in_shm = 0;  // of all segments together
  bool is_right = true;      // every pulled value
  std::size_t parts = 0;
};

Outcome push_and_pull(UpdateRule rule, std::uint64_t model) {
  test::Job job({.optimizer = {.rule = rule, .lr = 0.5F}, .ps_tasks = 4, .placement = Placement::kPartition});
  Worker worker = job.join();
  std::vector<VariableSpec> specs;
  for (std::uint64_t i = 0; i < kVariables; ++i)
    specs.push_back({.name = fmt::format("v{}", i), .shape = {kRows, model / kVariables / kRows / sizeof(float)}});
  const auto variables =
      worker.variables(specs, [](std::size_t i, std::span<float> out) { std::fill(out.begin(), out.end(), float(i)); });
  std::vector<float> values(specs[0].element_count()), gradient(values.size(), 1.0F);
  Outcome outcome;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    worker.pull(variables[i], values);
    outcome.is_right =
        outcome.is_right && std::count(values.begin(), values.end(), float(i)) == std::ptrdiff_t(values.size());
    worker.push(variables[i], gradient);
    worker.pull(variables[i], values);
    // SGD subtracts half of the gradient; Adam's first step is the rate, to within epsilon.
    const auto moved = [&](float value) { return std::abs(value - (float(i) - 0.5F)) < 1e-5F * float(i + 1); };
    outcome.is_right = outcome.is_right && std::all_of(values.begin(), values.end(), moved);
  }
  const JobView view = job.view();
  outcome.bytes = view.info().bytes;
  outcome.parts = view.variables()[0].parts.size();
  for (const std::string& segment : job.name.segments()) {
    shm::Segment opened;
    static_cast<void>(opened.open(segment, shm::Access::kReadOnly));
    outcome.in_shm += opened.file_bytes();
  }
  return outcome;
}

void check_cost(UpdateRule rule, double most) {
  const std::uint64_t model = model_bytes(most);
  if (model == 0) {
    MESSAGE("skipped: /dev/shm has too little room");
    return;
  }
  const Outcome outcome = push_and_pull(rule, model);
  const double ratio = double(outcome.in_shm) / double(outcome.bytes.values);
  MESSAGE(fmt::format("{}: a model of {} MiB takes {:.3f} times as much", to_string(rule), model >> 20, ratio));
  CHECK(outcome.is_right);
  CHECK(outcome.parts == 4);
  CHECK(outcome.bytes.values > model * 0.99);
  CHECK(ratio < most);
  CHECK(outcome.bytes.total() == outcome.in_shm);
}

}  // namespace

TEST_CASE("memory: a large partitioned model takes less than 1.2 times its size with SGD") {
  check_cost(UpdateRule::kSgd, 1.2);
}

TEST_CASE("memory: with Adam, which has two slots, it takes less than 3.3 times its size") {
  check_cost(UpdateRule::kAdam, 3.3);
}
