// Adding and assigning: changes that bypass the optimizer, in every layout and mode, and their effect on the optimizer
// state.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/snapshot.hpp"
#include "support/job.hpp"
#include "support/rule_reference.hpp"
#include "update/rules.hpp"

using namespace ps_shm;
using namespace ps_shm::test;
using update::Change;

namespace {

constexpr float kRate = 0.25F;

JobConfig changing(UpdateRule rule, Layout layout = Layout::kVersioned, float ema = 0) {
  return {.layout = layout,
          .chunk_bytes = 1024,
          .optimizer = {.rule = rule, .lr = kRate, .l1 = 0.125F, .l2 = 0.125F, .ema = ema}};
}

VariableSpec spec_of(std::vector<std::uint64_t> shape) {
  return {.name = "v", .shape = std::move(shape), .regularize = true};
}

// Values from -3 to 3, including zeros.
std::vector<float> some(std::size_t count, float first = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = float((i + std::size_t(first)) % 13) / 2 - 3;
  return values;
}

std::vector<float> sum_of(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// With the in-place layout, ftrl computes the value from z, which rounds; all other rules keep the given values.
bool is_close(const std::vector<float>& a, const std::vector<float>& b, UpdateRule rule) {
  if (rule != UpdateRule::kFtrl) return a == b;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i] - b[i]) > 1e-5F * (1 + std::abs(b[i]))) return false;
  return a.size() == b.size();
}

bool fits(UpdateRule rule, Layout layout) {
  return layout == Layout::kInplace ? works_in_place(rule) : update::traits_of(rule).works_versioned;
}

std::vector<UpdateRule> all_rules() {
  return rules_where([](const update::Traits&) { return true; });
}

}  // namespace

TEST_CASE("a change keeps the optimizer state, except where values are computed from it") {
  constexpr std::size_t kCount = 100, kStride = 112;
  for (const UpdateRule rule : rules_where([](const update::Traits& traits) { return traits.works_versioned; }))
    for (const float ema : {0.0F, 0.5F}) {
      CAPTURE(to_string(rule));
      CAPTURE(ema);
      const update::Settings settings =
          update::settings_of(config_of(changing(rule, Layout::kVersioned, ema)).optimizer, rule, true);
      const std::size_t own = update::slots_per_element(rule, false), all = update::slots_per_element(settings);
      std::vector<float> before((1 + all) * kStride), after(before.size());
      for (std::size_t k = 0; k <= all; ++k)
        for (std::size_t i = 0; i < kCount; ++i) before[k * kStride + i] = float(i % 7 + k) / 4;
      const std::vector<float> given = some(kCount);
      for (const Change how : {Change::kAdd, Change::kAssign, Change::kReset}) {
        CAPTURE(std::uint64_t(how));
        update::change(settings, how, kRate, after.data(), before.data(), kStride, given.data(), kCount);
        std::vector<float> first((1 + all) * kStride);
        update::initialise_slots(settings, kRate, given.data(), first.data() + kStride, kStride, kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          const float value = how == Change::kAdd ? before[i] + given[i] : given[i];
          CHECK(after[i] == value);
          for (std::size_t k = 1; k <= own; ++k) {
            if (how != Change::kReset && rule == UpdateRule::kFtrl && k == 2 && value != before[i]) continue;  // z
            CHECK(after[k * kStride + i] == (how == Change::kReset ? first : before)[k * kStride + i]);
          }
          if (all > own) CHECK(after[all * kStride + i] == (how == Change::kAdd ? before[all * kStride + i] : value));
        }
        std::vector<float> in_place = before;  // `out` may alias `in`
        update::change(settings, how, kRate, in_place.data(), in_place.data(), kStride, given.data(), kCount);
        for (std::size_t k = 0; k <= all; ++k)
          for (std::size_t i = 0; i < kCount; ++i) CHECK(in_place[k * kStride + i] == after[k * kStride + i]);
      }
    }
}

TEST_CASE("ftrl: a step without a gradient keeps added and assigned values") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    CAPTURE(to_string(layout));
    VariableJob job(changing(UpdateRule::kFtrl, layout), spec_of({600}));
    const std::vector<float> given = some(600), none(600, 0.0F);
    job.worker.push(job.variable, some(600, 5));
    job.worker.assign(job.variable, given);
    CHECK(is_close(job.pull(), given, UpdateRule::kFtrl));
    job.worker.push(job.variable, none);
    CHECK(is_close(job.pull(), given, UpdateRule::kFtrl));
    job.worker.add(job.variable, given);
    job.worker.push(job.variable, none);
    CHECK(is_close(job.pull(), sum_of(given, given), UpdateRule::kFtrl));
  }
}

TEST_CASE("state that is kept stays in effect: momentum continues after an assignment") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    VariableJob job({.layout = layout, .optimizer = {.rule = UpdateRule::kMomentum, .lr = kRate, .momentum = 0.5F}},
                    spec_of({3}));
    job.worker.push(job.variable, std::vector<float>(3, 1.0F));
    job.worker.assign(job.variable, std::vector<float>(3, 8.0F));
    job.worker.push(job.variable, std::vector<float>(3, 0.0F));
    CHECK(job.pull() == std::vector<float>(3, 8.0F - kRate * 0.5F));
    job.worker.assign(job.variable, std::vector<float>(3, 8.0F), Slots::kReset);
    job.worker.push(job.variable, std::vector<float>(3, 0.0F));
    CHECK(job.pull() == std::vector<float>(3, 8.0F));
  }
}

// With gradients of one size, each step of adam is as long as the rate, if its count is that of its moments' steps.
TEST_CASE("adam counts the steps that its moments contain: no adds or assigns, and none from before a reset") {
  constexpr std::size_t kCount = 5000;  // of chunks that a single writer changes in place
  for (const Layout layout : {Layout::kVersioned, Layout::kSingleWriter, Layout::kInplace}) {
    if (!fits(UpdateRule::kAdam, layout)) continue;
    CAPTURE(to_string(layout));
    VariableJob job({.layout = layout,
                     .chunk_bytes = 1 << 15,
                     .optimizer = {.rule = UpdateRule::kAdam, .lr = kRate, .beta1 = 0.5F, .beta2 = 0.75F}},
                    spec_of({kCount}));
    const std::vector<float> gradient(kCount, 3.0F), none(kCount, 0.0F);
    float expected = 0;
    const auto push = [&] {
      job.worker.push(job.variable, gradient);
      expected -= kRate;
    };
    const auto check = [&] {
      for (const float value : job.pull()) REQUIRE(value == doctest::Approx(expected).epsilon(1e-5));
    };
    const auto assign = [&](float value, Slots slots) {
      job.worker.assign(job.variable, std::vector<float>(kCount, value), slots);
      expected = value;
    };
    for (int i = 0; i < 4; ++i) assign(2, Slots::kKeep);
    push();
    check();
    for (int i = 0; i < 4; ++i) job.worker.add(job.variable, none);
    push();
    check();
    assign(4, Slots::kReset);
    for (int step = 0; step < 3; ++step) {
      push();
      check();
    }
    assign(8, Slots::kKeep);
    push();
    check();
    const Snapshot before = job.worker.snapshot();
    assign(1, Slots::kReset);
    push();
    check();
    if (layout != Layout::kInplace) CHECK(before.updates("v") == 4);
  }
}

TEST_CASE("an average is assigned together with its values, and is unchanged by an addition") {
  VariableJob job(changing(UpdateRule::kSgd, Layout::kVersioned, 0.5F), spec_of({300}));
  const std::vector<float> given = some(300);
  std::vector<float> average(300);
  for (const Slots slots : {Slots::kKeep, Slots::kReset}) {
    job.worker.assign(job.variable, given, slots);
    job.worker.add(job.variable, given);
    job.worker.pull_average(job.variable, average);
    CHECK(average == given);
    job.worker.push(job.variable, std::vector<float>(300, 4.0F));
  }
}

TEST_CASE("a scalar can be changed, in a word of its own or next to its state") {
  for (const UpdateRule rule : all_rules())
    for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
      for (const std::vector<std::uint64_t>& shape : {std::vector<std::uint64_t>{}, {1}, {1, 1}}) {
        if (!fits(rule, layout)) continue;
        CAPTURE(to_string(rule));
        VariableJob job(changing(rule, layout), spec_of(shape));
        job.worker.assign(job.variable, 3.0F);
        job.worker.add(job.variable, 0.5F);
        CHECK(is_close({job.worker.pull(job.variable)}, {3.5F}, rule));
        job.worker.assign(job.variable, -2.0F, Slots::kReset);
        CHECK(is_close({job.worker.pull(job.variable)}, {-2.0F}, rule));
      }
}

TEST_CASE("rows can be changed: additions sum up, the last assignment wins, other rows are unchanged") {
  for (const UpdateRule rule : all_rules())
    for (const std::uint64_t width : {1, 3})
      for (const std::uint32_t tasks : {1, 2}) {
        if (!works_in_place(rule)) continue;
        CAPTURE(to_string(rule));
        CAPTURE(width);
        CAPTURE(tasks);
        JobConfig settings = changing(rule, Layout::kInplace);
        settings.ps_tasks = tasks;
        if (tasks > 1) settings.placement = Placement::kPartition, settings.partition_by = PartitionBy::kHash;
        VariableJob job(settings, spec_of({400, width}));
        const std::vector<std::vector<std::uint64_t>> orders = {{3, 4, 5, 399}, {5, 3, 5, 0, 5}, {7}, {}};
        std::vector<float> expected(400 * width, 0.0F);
        for (const auto& ids : orders) {
          const std::vector<std::uint32_t> narrow(ids.begin(), ids.end());
          const std::vector<float> numbers = some(ids.size() * width, 8);
          for (std::size_t i = 0; i < numbers.size(); ++i) expected[ids[i / width] * width + i % width] = numbers[i];
          job.worker.assign_rows(job.variable, ids, numbers, Slots::kReset);
          CHECK(is_close(job.pull(), expected, rule));
          job.worker.assign_rows(job.variable, narrow, numbers);
          CHECK(is_close(job.pull(), expected, rule));
          for (std::size_t i = 0; i < numbers.size(); ++i)
            expected[ids[i / width] * width + i % width] += 2 * numbers[i];
          job.worker.add_rows(job.variable, ids, numbers);
          job.worker.add_rows(job.variable, narrow, numbers);
          CHECK(is_close(job.pull(), expected, rule));
        }
      }
}

TEST_CASE("changes are versions: others' count as staleness, and an assignment returns its version") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    CAPTURE(to_string(layout));
    Job job({.workers = 2, .layout = layout, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
    Worker one = job.join(), other = job.join();
    const Variable mine = one.variable(vector_of(600), zero), theirs = other.variable(vector_of(600), zero);
    std::vector<float> values = pulled(one, mine);
    other.push(theirs, values);
    other.add(theirs, values);
    const Versions versions = other.assign(theirs, values);
    for (const std::uint64_t version : versions.of_chunks) CHECK(version == 3);
    one.add(mine, values);
    CHECK(one.staleness().max == 3);
    for (const std::uint64_t version : one.assign(mine, values).of_chunks) CHECK(version == 5);
  }
}

TEST_CASE("a change of the wrong size, or of rows that do not exist, is an error and changes nothing") {
  VariableJob job(changing(UpdateRule::kSgd, Layout::kInplace), spec_of({10, 2}));
  VariableJob versioned(changing(UpdateRule::kSgd), spec_of({10, 2}));
  const std::vector<float> one = {1.0F}, row = {1.0F, 1.0F};
  const std::vector<std::uint32_t> ids = {3}, outside = {10};
  CHECK_THROWS_WITH_AS(job.worker.add(job.variable, one), "add of variable 'v': it has 20 elements, the span has 1",
                       Error);
  CHECK_THROWS_AS(job.worker.assign(job.variable, one), Error);
  CHECK_THROWS_AS(job.worker.add(job.variable, 1.0F), Error);
  CHECK_THROWS_AS(job.worker.add_rows(job.variable, ids, one), Error);
  CHECK_THROWS_AS(job.worker.assign_rows(job.variable, outside, row), Error);
  CHECK_THROWS_AS(versioned.worker.assign_rows(versioned.variable, ids, row), Error);
  CHECK(job.pull() == std::vector<float>(20, 0.0F));
}
