// Values by every way: what is assigned and added, divided over shards and kept in checkpoints, and how many bytes it
// takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "support/folder.hpp"
#include "support/ways.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("values: what is assigned or added is what is pulled, to the nearest that the dtype has") {
  for_ways_and_rules(
      [](const Way&) { return true; },
      [](const Way& way, UpdateRule rule) {
        if (!way.is_single() && rule != UpdateRule::kFtrl) return;
        ValuesJob job(way, way.config(rule, {.l1 = 0.125F, .l2 = 0.125F}), {101, 3});
        std::mt19937_64 random(5);
        // In place, ftrl keeps z, which rounds, instead of the value.
        const bool is_computed = way.is_inplace() && update::traits_of(rule).reads_by_rate;
        const auto check = [&](const Floats& expected) {
          const Floats there = job.pull();
          for (std::size_t i = 0; i < there.size(); ++i) {
            const float value = way.is_bfloat16() ? rounded(expected[i]) : expected[i];
            if (is_computed)
              REQUIRE(std::abs(there[i] - value) <= (way.is_bfloat16() ? 1.0F / 128 : 1e-5F) * (1 + std::abs(value)));
            else
              REQUIRE(there[i] == value);
          }
          if (!job.variable || is_computed) return;
          const JobView view = job.view();
          std::vector<std::byte> bytes(job.count() * bytes_of(way.dtype));
          job.worker.pull(*job.variable, std::span(bytes));
          CHECK(bytes == stored(expected, way.dtype));
          CHECK(view.bytes("v") == bytes);
          if (way.by == PartitionBy::kRange) CHECK(view.sample("v", 100'000) == bytes);
          CHECK(view.values("v") == there);
        };
        Floats given(job.count());
        for (std::size_t i = 0; i < given.size(); ++i) given[i] = float(i % 97) / 77 - 0.1F;
        given[0] = 0;
        job.push(random_floats(random, job.count()));
        const auto add_to = [&](Floats values) {
          if (!job.has_sum()) return;
          const Floats deltas = random_floats(random, job.count());
          if (way.is_bfloat16()) job.assign(values = first_values(job.count()));  // sums that are exact
          job.add(deltas);
          for (std::size_t i = 0; i < values.size(); ++i) values[i] += deltas[i];
          check(values);
        };
        if (!way.is_bfloat16()) add_to(job.pull());
        for (const Slots slots : {Slots::kKeep, Slots::kReset}) {
          job.assign(given, slots);
          check(given);
          add_to(given);
        }
        if (!job.variable) return;
        std::vector<std::byte> odd(1);  // bytes that are not aligned
        const std::vector<std::byte> bytes = stored(given, way.dtype);
        odd.insert(odd.end(), bytes.begin(), bytes.end());
        job.assign(Floats(job.count(), 0.5F));
        job.worker.assign(*job.variable, std::span<const std::byte>(odd).subspan(1));
        job.worker.step();
        check(given);
      });
}

TEST_CASE("values: after a reset, pushes act as on new values") {
  const auto of_floats = [](const Way& way) {
    return way.is_single() && way.access != Access::kKeys && !way.is_bfloat16();
  };
  for_ways_and_rules(of_floats, [](const Way& way, UpdateRule rule) {
    if (!way.is_inplace() && (rule == UpdateRule::kAdam || rule == UpdateRule::kAdamW)) return;  // their t goes on
    Optimizer optimizer{.l1 = 0.125F, .l2 = 0.125F};
    ValuesJob fresh(way, way.config(rule, optimizer), {40, 3}), used(way, way.config(rule, optimizer), {40, 3});
    std::mt19937_64 random(3);
    const Floats gradients = random_floats(random, 120);
    for (int i = 0; i < 3; ++i) used.push(gradients);
    used.assign(first_values(120), Slots::kReset);
    for (int i = 0; i < 2; ++i) fresh.push(gradients), used.push(gradients);
    CHECK(used.pull() == fresh.pull());
  });
}

TEST_CASE("values: a joining process finds no damage, and as many bytes as the dtype needs") {
  for_ways_and_rules(
      [](const Way& way) { return way.is_plain(); },
      [](const Way& way, UpdateRule rule) {
        const auto bytes_per_row = [&](DType dtype, std::uint64_t width) {
          Way other = way;
          other.dtype = dtype;
          ValuesJob job(other, other.config(rule), {100, width});
          job.push(Floats(job.count(), 1.0F));
          if (way.layout != Layout::kSingleWriter) {
            Values second(other, job.options({}, way.threads), {100, width});
            CHECK(second.worker.config().optimizer.rule == rule);
            CHECK(second.pull() == job.pull());
          }
          if (job.table) {
            const TableInfo info = job.view().tables().front();
            CHECK(info.spec.dtype == dtype);
            CHECK(info.spec.rule == rule);
            return info.row_bytes - sizeof(shm::TableRowShm);
          }
          const VariableInfo info = job.view().variables().front();
          CHECK(info.rule == rule);
          CHECK(info.layout == way.layout);  // the job's
          CHECK(info.bytes == 100 * width * bytes_of(dtype));
          return (info.parts.front().bytes + info.parts.front().slot_bytes) / 100;
        };
        const std::uint64_t whole = bytes_per_row(DType::kFloat32, 64), now = bytes_per_row(way.dtype, 64);
        const bool has_row_state = update::traits_of(rule).has_row_state();
        if (!way.is_bfloat16()) return;
        if (!way.is_inplace())
          CHECK(whole - now == 2 * 64);  // the state stays in float32
        else if (way.access == Access::kKeys && has_row_state)
          CHECK(2 * (now - 16) == whole - 16);  // with what aligns the next row
        else
          CHECK(2 * now == whole);
        if (way.is_inplace() && way.access != Access::kKeys)
          CHECK(bytes_per_row(way.dtype, 1) == (has_row_state ? 8 : bytes_per_row(DType::kFloat32, 1) / 2));
      });
}

TEST_CASE("values: divided over the shards they are the same, to rows, full pulls and the inspector") {
  const auto divided = [](const Way& way) { return way.parts > 1 && way.is_single(); };
  for_ways(divided, [](const Way& way) {
    for (const UpdateRule rule : way.rules())
      for (const std::uint64_t rows : {2, 7, 100, 5000}) {
        if (rows > 100 && rule != UpdateRule::kSgd && rule != UpdateRule::kRowwiseAdagrad) continue;
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(rows);
        Way undivided = way;
        undivided.parts = 1, undivided.by = PartitionBy::kRange;
        // Random bits of rows depend on the parts: the values are then as near as bfloat16 is exact.
        const bool has_same_bits = ValuesReference::has(way);
        const auto check_same = [&](const Floats& a, const Floats& b) {
          if (has_same_bits) CHECK(a == b);
          REQUIRE(a.size() == b.size());
          for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(std::abs(a[i] - b[i]) <= 0.04F * (1 + std::abs(b[i])));
        };
        ValuesJob one(undivided, undivided.config(rule), {rows, 3}), cut(way, way.config(rule), {rows, 3});
        if (cut.table) {
          one.assign(first_values(3 * rows)), cut.assign(first_values(3 * rows));
        } else if (way.is_inplace() || !way.is_bfloat16()) {  // others have parts of whole floats
          const VariableInfo info = cut.view().variables().front();
          CHECK(info.parts.size() == std::min<std::uint64_t>(rows, 3));
          std::uint64_t next = 0, bytes = 0;
          for (const PartInfo& part : info.parts) {
            if (way.by == PartitionBy::kRange) CHECK(part.first_row == next);
            next += part.rows, bytes += part.bytes;
          }
          CHECK(next == rows);
          CHECK(bytes == rows * 3 * bytes_of(way.dtype));
        }
        std::mt19937_64 random(11);
        for (int push = 0; push < 5; ++push) {
          Ids ids = cut.ids();
          if (way.access != Access::kWhole) {
            ids.resize(20);
            for (auto& id : ids) id = std::uint32_t(random() % rows);
          }
          Floats gradients(3 * ids.size());
          for (float& g : gradients) g = float(random() % 3) - 1;
          if (way.access == Access::kRows) cut.worker.prefetch_rows(*cut.variable, ids);
          one.push(ids, gradients), cut.push(ids, gradients);
        }
        const Floats expected = one.pull();
        check_same(cut.pull(), expected);
        if (!cut.variable) continue;
        Floats gradient(rows * 3), copied(rows * 3);
        for (float& g : gradient) g = float(random() % 3) - 1;
        one.worker.push(*one.variable, gradient), cut.worker.push(*cut.variable, gradient);
        one.worker.step(), cut.worker.step();
        const Floats dense = one.pull();
        CHECK(dense != expected);
        const Floats there = cut.pull();
        check_same(there, dense);
        CHECK(pulled(cut.worker, *cut.variable) == there);
        cut.worker.snapshot().copy("v", copied);
        CHECK(copied == there);
        CHECK(cut.view().values("v") == there);
        if (has_same_bits) CHECK(cut.view().digest() == one.view().digest());
      }
  });
}

TEST_CASE("values: a job that begins with a checkpoint goes on as if it had not stopped") {
  const Folder folder;
  const auto single = [](const Way& way) { return way.is_single(); };
  for_ways_and_rules(single, [&](const Way& way, UpdateRule rule) {
    if (!way.is_plain() && rule != UpdateRule::kAdam) return;
    JobConfig config = way.config(rule, every_setting(way));
    const Shape shape = way.access == Access::kWhole ? Shape{67, 45} : Shape{9, 5};
    ValuesJob job(way, config, shape);
    std::mt19937_64 random(3);
    const auto gradients = [&] { return random_floats(random, job.count()); };
    for (int round = 0; round < 3; ++round) job.push(gradients());
    const Checkpoint saved(Checkpoint::save(job.view(), folder.path()));
    saved.verify();
    JobConfig next = config;
    next.job.clear();
    next.restore = saved.folder(), next.first_step = saved.global_step();
    ValuesJob restored(way, next, shape);
    CHECK(restored.pull() == job.pull());
    if (job.table) {
      CHECK(saved.tables().front().dtype == way.dtype);
      TableCopy ours, theirs;
      ours.follow(*job.table), theirs.follow(*restored.table);
      CHECK(ours.rows == theirs.rows);
    } else {
      CHECK(saved.variables().front().dtype == way.dtype);
      std::vector<std::byte> bytes(job.count() * bytes_of(way.dtype));
      saved.read("v", bytes);
      CHECK(bytes == job.view().bytes("v"));
      for (const std::string& slot : saved.variables().front().slots) {
        Floats ours(update::traits_of(rule).has_row_state() ? job.rows() : job.count()), theirs(ours.size());
        job.worker.snapshot().copy("v", ours, slot);
        restored.worker.snapshot().copy("v", theirs, slot);
        CHECK(ours == theirs);
      }
    }
    // Random bits in place depend on counts that begin anew.
    const bool goes_on = !way.is_inplace() || !way.is_bfloat16();
    for (int round = 0; round < 3 && goes_on; ++round) {
      const Floats same = gradients();
      job.push(same), restored.push(same);
      CHECK(restored.pull() == job.pull());
    }
    if (job.table || !way.is_inplace()) return;
    for (const Layout layout : all_of<Layout>()) {  // each other layout goes on with it
      Way other = way;
      other.layout = layout, other.access = Access::kWhole, other.adds = Adds::kExact, other.by = PartitionBy::kRange;
      if (layout == way.layout || !other.exists() || !other.has(rule)) continue;
      JobConfig then = other.config(rule, every_setting(way));
      then.restore = next.restore, then.first_step = next.first_step;
      ValuesJob third(other, then, shape);
      Floats there = ValuesJob(way, next, shape).pull();
      if (way.is_bfloat16())
        for (float& value : there) value = rounded(value);  // that of ftrl is computed from its state
      const Floats values = third.pull();
      for (std::size_t i = 0; i < there.size(); ++i)
        REQUIRE(values[i] == doctest::Approx(there[i]).epsilon(way.is_bfloat16() ? 1.0 / 128 : 1e-5));
    }
  });
}

TEST_CASE("values: the rows of a table go on with the state of a dump") {
  const auto by_key = [](const Way& way) { return way.is_plain() && way.access == Access::kKeys; };
  for_ways_and_rules(by_key, [](const Way& way, UpdateRule rule) {
    ValuesJob job(way, way.config(rule), {50, 3}), other(way, way.config(rule), {50, 3});
    for (int round = 0; round < 4; ++round) job.push(Floats(150, 0.3F));
    job.table->dump(0, [&](const TableRow& row) { other.table->assign({&row.key, 1}, row.values, row.state); });
    TableCopy ours, theirs;
    ours.follow(*job.table), theirs.follow(*other.table);
    CHECK(ours.rows == theirs.rows);
  });
}
