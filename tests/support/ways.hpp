// Ways to store and reach values, and jobs with values of such a way: a case about values is written once and runs over
// all ways that it applies to. Each part of a way comes from a table of the library, so a new dtype, mode or rule adds
// ways.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/modes.hpp"
#include "shm/base/racing.hpp"
#include "shm/slots/inplace_bfloat16.hpp"
#include "support/rows_job.hpp"
#include "support/rule_reference.hpp"
#include "support/sanitizers.hpp"
#include "support/table_job.hpp"
#include "support/twins.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::test {

using Ids = std::vector<std::uint32_t>;
using Shape = std::vector<std::uint64_t>;

enum class Access {
  kWhole,  // a variable, all of it at once
  kRows,   // rows of a variable
  kKeys    // rows of a table by key
};

struct Way {
  DType dtype = DType::kFloat32;
  Access access = Access::kWhole;
  Layout layout = Layout::kInplace;  // of tables by key, too
  Mode mode = Mode::kAsync;
  Reduce reduce = Reduce::kOrdered;
  Adds adds = Adds::kExact;
  std::uint32_t parts = 1;
  PartitionBy by = PartitionBy::kRange;
  std::uint32_t threads = 1;

  bool operator==(const Way&) const = default;
  bool is_inplace() const { return layout == Layout::kInplace; }
  bool is_bfloat16() const { return dtype == DType::kBFloat16; }
  bool steps_together() const { return traits_of(mode).steps_together(); }
  // Whether only dtype, access and layout differ from those of Way().
  bool is_plain() const { return *this == Way{.dtype = dtype, .access = access, .layout = layout}; }

  // Ways that differ in where values are and when pushes apply: for cases to which threads, adds and a bound on
  // staleness make no difference, or with which they would take too long.
  bool is_single() const { return threads == 1 && adds == Adds::kExact && !traits_of(mode).has_staleness_bound; }

  // Whether the library has this way, which differs from all others in what it does.
  bool exists() const {
    const ModeTraits& has = traits_of(mode);
    return update::find_dtype(dtype)->takes_gradients && (access == Access::kWhole || is_inplace()) &&
           (!has.needs_versioned || layout == Layout::kVersioned) && (has.has_reduce || reduce == Reduce::kOrdered) &&
           (is_inplace() || adds == Adds::kExact) &&
           (by == PartitionBy::kRange || (is_inplace() && parts > 1 && access != Access::kKeys)) &&
           (threads == 1 || !shm::kThreadSanitizer);  // it does not know oneTBB's locks
  }
  bool has(UpdateRule rule) const {
    return is_inplace() ? works_in_place(rule) : update::traits_of(rule).works_versioned;
  }
  std::vector<UpdateRule> rules() const {
    return rules_where([&](const update::Traits& traits) { return has(traits.rule); });
  }

  std::string name() const {
    constexpr const char* kAccesses[] = {"whole", "rows", "keys"};
    return fmt::format("{} {} {} {} {} {}, {} parts by {}, {} threads", to_string(dtype), to_string(layout),
                       kAccesses[int(access)], to_string(mode), to_string(reduce), to_string(adds), parts,
                       to_string(by), threads);
  }

  // A job whose values are reached so, with a setting that each rule needs to be seen.
  JobConfig config(UpdateRule rule, const Optimizer& optimizer = {}) const {
    JobConfig config{.max_workers = layout == Layout::kSingleWriter ? 1U : 8U,
                     .threads = threads,
                     .mode = mode,
                     .reduce = reduce,
                     .layout = layout,
                     .chunk_bytes = 1024,
                     .adds = adds,
                     .optimizer = optimizer,
                     .seed = 7,
                     .ps_tasks = parts,
                     .placement = parts > 1 ? Placement::kPartition : Placement::kRoundRobin,
                     .partition_by = by};
    config.optimizer.rule = rule;
    if (!config.optimizer.lr) config.optimizer.lr = 0.1F;
    return config_of(config);
  }
};

// The values of an enumeration whose numbers begin with 1.
template <class Enum>
std::vector<Enum> all_of() {
  std::vector<Enum> all;
  for (std::uint32_t number = 1; std::strcmp(to_string(Enum(number)), "unknown") != 0; ++number)
    all.push_back(Enum(number));
  return all;
}

inline std::vector<Way> all_ways() {
  std::vector<Way> ways{Way()};
  const auto vary = [&](auto member, const auto& values) {
    std::vector<Way> more;
    for (const Way& way : ways)
      for (const auto& value : values) more.emplace_back(way).*member = value;
    ways.swap(more);
  };
  vary(&Way::dtype, all_of<DType>());
  vary(&Way::access, std::array{Access::kWhole, Access::kRows, Access::kKeys});
  vary(&Way::layout, all_of<Layout>());
  vary(&Way::mode, all_of<Mode>());
  vary(&Way::reduce, all_of<Reduce>());
  vary(&Way::adds, all_of<Adds>());
  vary(&Way::parts, std::array{1U, 3U});
  vary(&Way::by, all_of<PartitionBy>());
  vary(&Way::threads, std::array{1U, 3U});
  std::erase_if(ways, [](const Way& way) { return !way.exists(); });
  return ways;
}

// Counts the ways that cases ran over, and says so at the end of the program.
struct WaysRun {
  std::set<std::string> names;
  std::uint64_t cases = 0;

  ~WaysRun() {
    if (cases != 0) std::printf("[ways] cases ran over %zu ways, %llu times\n", names.size(), 0ULL + cases);
  }
  static WaysRun& all() {
    static WaysRun run;
    return run;
  }
};

// Calls body(way) for each way that `applies`, of which there has to be one.
template <class Applies, class Body>
void for_ways(Applies&& applies, Body&& body) {
  bool is_any = false;
  for (const Way& way : all_ways()) {
    if (!applies(way)) continue;
    is_any = true;
    const std::string name = way.name();
    CAPTURE(name);
    WaysRun::all().names.insert(name);
    ++WaysRun::all().cases;
    body(way);
  }
  REQUIRE(is_any);
}
// The same for each rule that the way has: body(way, rule).
template <class Applies, class Body>
void for_ways_and_rules(Applies&& applies, Body&& body) {
  for_ways(applies, [&](const Way& way) {
    for (const UpdateRule rule : way.rules()) {
      // Sanitizers take long, and see the same in two rules, with state of elements and of rows.
      if (kIsSanitized && !way.is_plain() && rule != UpdateRule::kAdam && rule != UpdateRule::kRowwiseAdagrad) continue;
      CAPTURE(std::string(to_string(rule)));
      body(way, rule);
    }
  });
}

// What a variable of so many elements begins with: values that bfloat16 has, too.
inline Floats first_values(std::uint64_t count) {
  Floats values(count);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = float(i * 37 % 64) / 32 - 1;
  return values;
}

// Gradients and values that both dtypes have.
inline Floats random_floats(std::mt19937_64& random, std::size_t count) {
  Floats floats(count);
  for (float& one : floats) one = float(random() % 64) / 32 - 1;
  return floats;
}

inline std::vector<std::byte> stored(const Floats& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  if (dtype == DType::kBFloat16)
    update::round_to_nearest(reinterpret_cast<update::BFloat16Bits*>(bytes.data()), values.data(), values.size());
  else
    std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A worker of a job, with the values "v" that a way reaches: rows of one shape[0] and the rest.
struct Values {
  Way way;
  Shape shape;
  Worker worker;
  std::optional<Variable> variable;
  std::optional<Table> table;
  Keys keys;  // of the rows

  Values(const Way& reached, const WorkerOptions& options, const Shape& extents, float regularize = 1,
         float lr_scale = 1)
      : way(reached), shape(extents), worker(options), keys(some_keys(rows())) {
    if (way.access == Access::kKeys)
      table = worker.table({.name = "v",
                            .row_size = width(),
                            .dtype = way.dtype,
                            .max_rows = std::max<std::uint64_t>(64 * way.parts, 4 * rows()),
                            .regularize = regularize,
                            .lr_scale = lr_scale});
    else
      variable = worker.variable(
          {.name = "v", .shape = shape, .dtype = way.dtype, .regularize = regularize, .lr_scale = lr_scale},
          [&](std::span<float> out) {
            const std::vector<std::byte> bytes = stored(first_values(count()), way.dtype);
            std::memcpy(out.data(), bytes.data(), bytes.size());
          });
  }

  std::uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  std::uint64_t width() const { return count() / rows(); }
  std::uint64_t count() const {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
  }
  Ids ids() const { return ids_of_all(rows()); }
  Keys keys_of(const Ids& some) const {
    Keys found;
    for (const std::uint32_t id : some) found.push_back(keys[id]);
    return found;
  }

  Floats pull() { return way.access == Access::kWhole ? pulled(worker, *variable) : pull(ids()); }
  Floats pull(const Ids& some) {
    Floats out(some.size() * width());
    if (table)
      table->pull(keys_of(some), out);
    else
      worker.pull_rows(*variable, some, out);
    return out;
  }
  // A push, and the step that it belongs to.
  void push(const Floats& gradients) { push(ids(), gradients); }
  void push(const Ids& some, const Floats& gradients) {
    if (table)
      table->push(keys_of(some), gradients);
    else if (way.access == Access::kRows)
      worker.push_rows(*variable, some, gradients);
    else
      worker.push(*variable, gradients);
    worker.step();
  }
  // In sync mode, step by step; bfloat16 in chunks is assigned as bytes.
  void assign(const Floats& values, Slots slots = Slots::kKeep) {
    if (table)
      table->assign(keys, values);
    else if (way.access == Access::kRows)
      worker.assign_rows(*variable, ids(), values, slots);
    else if (way.is_inplace() || !way.is_bfloat16())
      worker.assign(*variable, values, slots);
    else
      worker.assign(*variable, stored(values, way.dtype), slots);
    worker.step();
  }
  bool has_sum() const { return !table && (way.is_inplace() || update::has_sum(way.dtype)); }
  void add(const Floats& deltas) {
    if (way.access == Access::kRows)
      worker.add_rows(*variable, ids(), deltas);
    else
      worker.add(*variable, deltas);
    worker.step();
  }
};

// A job with one worker, and values that a way reaches.
struct ValuesJob : Job, Values {
  ValuesJob(const Way& reached, const JobConfig& given, const Shape& extents, float regularize = 1, float lr_scale = 1)
      : Job(given), Values(reached, Job::options({}, reached.threads), extents, regularize, lr_scale) {}
};

// The values that a ValuesJob has to have, bit for bit: those of the float32 form of the rule, rounded to the dtype.
class ValuesReference {
 public:
  // Random bits of rows of bfloat16 depend on the blocks of each part, which it does not know.
  static bool has(const Way& way) {
    return !way.is_inplace() || !way.is_bfloat16() || way.access == Access::kKeys || way.parts == 1;
  }

  explicit ValuesReference(ValuesJob& job)
      : way_(job.way),
        optimizer_(job.config.optimizer),
        width_(job.width()),
        keys_(job.keys),
        seed_(update::rounding_seed(*job.config.seed, "v")) {
    const Floats first = job.pull();
    if (!way_.is_inplace()) {
      twin_.emplace(job.config, optimizer_.rule, first, way_.dtype);
      return;
    }
    rows_.emplace(optimizer_, 1, width_, *optimizer_.lr, way_.dtype);
    for (std::size_t row = 0; row < keys_.size(); ++row) rows_->begin(row, first.data() + row * width_);
    if (!job.table)
      rows_of_block_ = std::max<std::uint64_t>(1, job.view().variables()[0].parts[0].chunk_elements / width_);
    row_pushes_.resize(keys_.size()), pushes_.resize(keys_.size());
  }

  // By rows or keys: each once.
  void push(const Ids& ids, const Floats& gradients) {
    if (way_.access == Access::kWhole) return push(gradients);
    std::vector<std::uint64_t> counted = row_pushes_;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint32_t row = ids[i];
      const std::uint64_t by = way_.access == Access::kKeys ? row : row / rows_of_block_;
      const std::uint64_t bits = way_.access == Access::kKeys
                                     ? update::rounding_key(update::mixed(seed_ ^ keys_[row]), row_pushes_[by])
                                     : shm::rounding_of_row(seed_, row, 0, row_pushes_[by]).key;
      rows_->push(row, gradients.data() + i * width_, bits);
      counted[by] = row_pushes_[by] + 1;
    }
    row_pushes_ = counted;
  }
  // Of all elements.
  void push(const Floats& gradients) {
    if (twin_) {
      const float rate = optimizer_.schedule.rate(*optimizer_.lr, steps_);
      return twin_->step(steps_++, rate, {{gradients.data()}});
    }
    for (std::size_t row = 0; row < keys_.size(); ++row) {
      const std::uint64_t block = row / rows_of_block_, begin = block * rows_of_block_;
      const auto bits = shm::rounding_of_block(seed_, begin * width_, 0, pushes_[block]).key;
      rows_->push(row, gradients.data() + row * width_, bits, (row - begin) * width_);
    }
    for (std::uint64_t& one : pushes_) ++one;
  }

  Floats values() const { return twin_ ? twin_->values() : rows_->values(ids_of_all(keys_.size())); }
  // The values, or the state that follows them: one for each element, or for each row.
  std::size_t arrays() const { return twin_ ? twin_->arrays() : rows_->record(); }
  Floats array(std::size_t which) const {
    if (twin_) return twin_->array(which);
    Floats numbers;
    for (std::size_t row = 0; row < keys_.size(); ++row)
      for (std::uint64_t i = 0; i < width_; ++i) numbers.push_back(rows_->at(row).numbers[i * rows_->record() + which]);
    return numbers;
  }
  Floats row_states() const {
    Floats states;
    for (std::size_t row = 0; row < keys_.size(); ++row) states.push_back(rows_->at(row).state);
    return states;
  }

 private:
  Way way_;
  Optimizer optimizer_;
  std::uint64_t width_;
  Keys keys_;
  std::uint64_t seed_;
  std::optional<Twin> twin_;
  std::optional<TwinRows> rows_;
  std::uint64_t rows_of_block_ = 1, steps_ = 0;
  std::vector<std::uint64_t> row_pushes_, pushes_;  // by block, or by key
};

// Settings that each rule shows an effect of. In place there is no average, and ftrl needs a constant rate.
inline Optimizer every_setting(const Way& way) {
  return {.schedule = way.is_inplace() ? Schedule() : Schedule::parse("exp:0.5:4"),
          .initial_accumulator = 0.5F,
          .l1 = 0.02F,
          .l2 = 0.02F,
          .weight_decay = 0.03F,
          .clip_value = 0.75F,
          .ema = way.is_inplace() ? 0.0F : 0.7F};
}

// Whether everything that can be read is what the reference has.
template <class Reference>
void check_all(const Job& job, Values& mine, const Reference& reference) {
  CHECK(mine.pull() == reference.values());
  const update::Traits& traits = update::traits_of(job.config.optimizer.rule);
  if (mine.table) {
    mine.table->dump(0, [&](const TableRow& row) {
      const auto at = std::find(mine.keys.begin(), mine.keys.end(), row.key) - mine.keys.begin();
      REQUIRE(at < std::ptrdiff_t(mine.rows()));
      if constexpr (requires { reference.row_states(); })
        if (traits.has_row_state()) CHECK(row.state.back() == reference.row_states()[std::size_t(at)]);
      if (reference.arrays() == 4)
        CHECK(row.state[2 * mine.width()] == reference.array(3)[std::size_t(at) * mine.width()]);
    });
    return;
  }
  const JobView view = job.view();
  const VariableInfo info = view.variables().front();
  const Snapshot snapshot = mine.worker.snapshot();
  Floats out(mine.count());
  std::vector<std::byte> bytes(mine.count() * bytes_of(mine.way.dtype));
  CHECK(view.values("v") == reference.values());
  snapshot.copy("v", out);
  CHECK(out == reference.values());
  if (!traits.reads_by_rate || !mine.way.is_inplace()) {
    const std::vector<std::byte> expected = stored(reference.values(), mine.way.dtype);
    mine.worker.pull(*mine.variable, std::span(bytes));
    CHECK(bytes == expected);
    CHECK(view.bytes("v") == expected);
    snapshot.copy("v", bytes);
    CHECK(bytes == expected);
  }
  if constexpr (requires { reference.row_states(); })
    if (traits.has_row_state()) {
      out.resize(mine.rows());
      snapshot.copy("v", out, info.slots.back());
      CHECK(out == reference.row_states());
      return;
    }
  if (mine.way.is_inplace()) {
    if (reference.arrays() > 1) CHECK(view.slot("v", info.slots[0]) == reference.array(1));
    return;
  }
  REQUIRE(info.slots.size() == reference.arrays() - 1);
  for (std::size_t k = 0; k < info.slots.size(); ++k) {
    CHECK(view.slot("v", info.slots[k]) == reference.array(1 + k));
    snapshot.copy("v", out, info.slots[k]);
    CHECK(out == reference.array(1 + k));
  }
  if (mine.count() > 8 && !info.slots.empty()) {  // in pieces, as a checkpoint reads it
    Floats piece(4);
    snapshot.read("v", (mine.count() - 4) * sizeof(float), std::as_writable_bytes(std::span(piece)), info.slots[0]);
    const Floats all = reference.array(1);
    CHECK(std::equal(piece.begin(), piece.end(), all.end() - 4));
  }
  if (traits.is_sum) return;
  mine.worker.pull_average(*mine.variable, out);
  CHECK(out == reference.array(reference.arrays() - 1));
  CHECK(view.averages("v") == out);
}

}  // namespace ps_shm::test
