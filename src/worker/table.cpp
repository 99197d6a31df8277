#include "ps_shm/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "config/eviction.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/table/table_counts.hpp"
#include "shm/table/table_segment.hpp"
#include "update/elements.hpp"
#include "update/hash.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {
namespace {

using shm::Counter;
using shm::TableCounter;

constexpr std::uint64_t kGrain = 1024;  // keys that justify a thread

}  // namespace

// Calls body(element's index, its initial value).
template <class Body>
void TableState::for_initial(std::uint64_t key, Body&& body) const noexcept {
  const bool is_rounded = spec.dtype == DType::kBFloat16;
  update::for_initial_values(spec.seed, spec.initial_range, spec.row_size, key, [&](std::uint64_t i, float value) {
    body(i, is_rounded ? float{update::BFloat16{update::rounded_to_nearest(value)}} : value);
  });
}

void TableState::initial_values(std::uint64_t key, float* values) const noexcept {
  for_initial(key, [&](std::uint64_t i, float value) { values[i] = value; });
}

void TableState::make(std::uint64_t key, float* elements) const noexcept {
  const float rate = core.live.settings.lr;
  const shm::RowForm of_rows = form();
  constexpr std::uint64_t kAtOnce = 64;
  std::array<float, kAtOnce> values;
  for_initial(key, [&](std::uint64_t i, float value) {
    values[i % kAtOnce] = value;
    if (const std::uint64_t count = i % kAtOnce + 1; count == kAtOnce || i + 1 == spec.row_size)
      of_rows.initialise(settings, rate, values.data(), i + 1 - count, count, elements);
  });
  of_rows.initialise_row_state(settings, rate, elements);
}

void TableState::require_size(std::size_t keys, std::size_t floats, std::uint64_t width, const char* verb) const {
  if (floats != keys * width)
    throw Error(fmt::format("{} of {} keys of table '{}': a row has {} floats, the span has {} in all", verb, keys,
                            spec.name, width, floats));
}

void TableState::require_flags(std::size_t keys, std::size_t flags, const char* verb) const {
  if (flags != keys)
    throw Error(
        fmt::format("{} of {} keys of table '{}': there is space for {} answers", verb, keys, spec.name, flags));
}

void TableState::for_batches(std::span<const std::uint64_t> keys, std::uint64_t grain, bool to_write, BatchBody body) {
  const bool is_divided = parts.size() > 1;
  if (is_divided) {  // sorts by part; keys of one part stay in order
    const auto count = static_cast<std::uint32_t>(parts.size());
    begins.assign(count + 1, 0);
    const shm::KeyHash& hash = core.job.key_hash();
    for (const std::uint64_t key : keys) ++begins[shm::part_of(hash, key, count) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    by_part.resize(keys.size());
    places.resize(keys.size());
    std::vector<std::size_t> next(begins.begin(), begins.end() - 1);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t at = next[shm::part_of(hash, keys[i], count)]++;
      by_part[at] = keys[i], places[at] = i;
    }
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::size_t first = is_divided ? begins[p] : 0, past = is_divided ? begins[p + 1] : keys.size();
    const std::span<const std::uint64_t> own =
        is_divided ? std::span<const std::uint64_t>(by_part).subspan(first, past - first) : keys;
    if (own.empty()) continue;
    core.threads.split(own.size(), grain, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
      shm::TablePart& table = *parts[p];
      shm::TableLane& lane = lanes[p][thread];
      // Ask, enter, follow three times, work. A row is the third or an earlier one of its bucket for 49 of 50 keys.
      constexpr std::uint64_t kSteps = 6;
      std::array<shm::TablePart::Batch, kSteps> batches;  // one for each step
      const std::uint64_t count = (end - begin + shm::kPins - 1) / shm::kPins;
      for (std::uint64_t number = 0; number < count + kSteps - 1; ++number) {
        const auto of_step = [&](std::uint64_t step) -> shm::TablePart::Batch* {
          return number >= step && number - step < count ? &batches[(number - step) % kSteps] : nullptr;
        };
        const std::uint64_t asked = begin + number * shm::kPins;
        if (auto* const batch = of_step(0))
          *batch = table.ask(own.subspan(asked, std::min<std::uint64_t>(shm::kPins, end - asked)));
        if (auto* const batch = of_step(1)) table.enter(*batch, to_write);
        for (std::uint64_t step = 2; step + 1 < kSteps; ++step)
          if (auto* const batch = of_step(step)) table.follow(*batch, to_write);
        if (auto* const batch = of_step(kSteps - 1)) {
          const std::uint64_t at = asked - (kSteps - 1) * shm::kPins;
          body(table, lane, *batch, {is_divided ? &places[first + at] : nullptr, at});
        }
      }
    });
  }
}

Table Worker::table(const TableSpec& spec) {
  Impl& impl = owned();
  impl.refuse_recorded("a table by key");
  auto made =
      std::make_unique<TableState>(impl, impl.mode, spec, [&impl]() -> const Checkpoint& { return impl.begun_with(); });
  for (const auto& known : impl.tables)
    if (known->spec.name == spec.name) return Table(known.get());
  impl.tables.push_back(std::move(made));
  return Table(impl.tables.back().get());
}

const std::string& Table::name() const noexcept { return state_->spec.name; }
std::uint64_t Table::row_size() const noexcept { return state_->spec.row_size; }

// One line when a table has as many rows as /dev/shm has memory for. All workers of the job together write it once; if
// the one that is to write it dies before it has, none does, and the doctor's advice remains.
void TableState::tell_of_memory() {
  for (const auto& of_part : lanes)
    for (const shm::TableLane& lane : of_part) has_told = has_told || lane.has_lacked_memory;
  if (!has_told || !parts.front()->may_tell()) return;
  const TableStatistics now = statistics();
  Wait(core.options, std::nullopt, 1)
      .log(fmt::format(
          "worker {}: table '{}' has {} of at most {} rows, and /dev/shm has no memory for more: from now "
          "on it {}; give "
          "/dev/shm more memory, or declare fewer rows",
          core.rank, spec.name, now.rows, now.max_rows,
          traits_of(spec.evict).makes_space ? "evicts rows to make space for new keys" : "refuses new keys"));
}

TableStatistics TableState::statistics() const {
  TableStatistics all;
  std::uint64_t free_bytes = shm::shm_free_bytes();
  for (const auto& part : parts)
    shm::add_part(all, part->record(), part->segment(), free_bytes,
                  [&](TableCounter which) { return part->counted(which); });
  return all;
}

namespace {

// What this worker's lanes have counted.
std::uint64_t counted(const TableState& state, TableCounter which) {
  std::uint64_t sum = 0;
  for (const auto& of_part : state.lanes)
    for (const shm::TableLane& lane : of_part)
      sum += lane.shared->counters[static_cast<std::uint32_t>(which)].load_relaxed();  // relaxed: its own
  return sum;
}

// The rows of a batch, with nullptr for a key that has none.
using RowsBody = FunctionRef<void(std::span<float* const> rows, TableState::Places places)>;

// Calls body() while the rows of keys, of which each has one or gets one, are pinned.
void for_pinned_rows(TableState& state, std::span<const std::uint64_t> keys, std::uint64_t grain, bool admits_all,
                     RowsBody body) {
  state.for_batches(keys, grain, true,
                    [&](shm::TablePart& table, shm::TableLane& lane, const auto& batch, auto places) {
                      std::array<float*, shm::kPins> rows;
                      table.pin(lane, batch, state, admits_all, rows.data());
                      body(std::span(rows).first(batch.keys.size()), places);
                      table.unpin(lane);
                    });
  if (!state.has_told) [[likely]]
    state.tell_of_memory();
}

// Makes rows for the keys that a pull has not found, once for each of them.
void make_rows(TableState& state, std::span<const std::uint64_t> keys, std::span<const bool> found) {
  std::vector<std::uint64_t> absent;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (!found[i]) absent.push_back(keys[i]);
  std::sort(absent.begin(), absent.end());
  absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
  for_pinned_rows(state, absent, kGrain, false, [](const auto&, auto) {});
}

}  // namespace

std::uint64_t Table::pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found,
                          bool create) {
  TableState& state = *state_;
  state.core.job.refuse_inherited("worker");
  state.require_size(keys.size(), out.size(), state.spec.row_size, "pull");
  if (!found.empty()) state.require_flags(keys.size(), found.size(), "pull");
  std::unique_ptr<bool[]> flags;
  if (create && found.empty()) {
    flags = std::make_unique<bool[]>(keys.size());
    found = {flags.get(), keys.size()};
  }
  if (state.core.notes_pulls) state.mode->note_pull();
  const std::uint64_t width = state.spec.row_size, record = state.form().record();
  const std::uint64_t hits = counted(state, TableCounter::kHits);
  const auto pull_by = [&](const auto& read) {  // read(to, row)
    state.for_batches(keys, kGrain, false,
                      [&](shm::TablePart& table, shm::TableLane& lane, const auto& batch, auto place) {
                        std::uint64_t there = 0;
                        for (std::size_t i = 0; i < batch.keys.size(); ++i) {
                          float* const to = out.data() + place(i) * width;
                          const bool has_row = table.read(lane, batch, i, [&](const float* row) { read(to, row); });
                          if (!has_row) state.initial_values(batch.keys[i], to);
                          if (!found.empty()) found[place(i)] = has_row;
                          there += has_row;
                        }
                        table.count(lane, TableCounter::kHits, there);
                        table.count(lane, TableCounter::kMisses, batch.keys.size() - there);
                      });
  };
  update::with_element_value(state.settings, state.core.live.settings.lr, [&](const auto& value_of) {
    if (state.spec.dtype == DType::kBFloat16)
      pull_by([&](float* to, const float* row) { shm::read_bfloat16(to, row, record, width, value_of); });
    else
      pull_by([&](float* to, const float* row) { shm::read_elements(to, row, record, width, value_of); });
  });
  state.core.count(Counter::kPulls).bump_relaxed(1);
  const std::uint64_t there = counted(state, TableCounter::kHits) - hits;
  if (create && there < keys.size()) make_rows(state, keys, found);
  return there;
}

namespace {

// Updates the rows of the keys, each of which has one or gets one.
PushedKeys update_rows(TableState& state, std::span<const std::uint64_t> keys, std::uint64_t grain, bool admits_all,
                       RowsBody update) {
  const std::uint64_t made = counted(state, TableCounter::kMade),
                      unadmitted = counted(state, TableCounter::kUnadmitted),
                      refused = counted(state, TableCounter::kRefused);
  for_pinned_rows(state, keys, grain, admits_all, update);
  PushedKeys pushed;
  pushed.made = counted(state, TableCounter::kMade) - made;
  pushed.unadmitted = counted(state, TableCounter::kUnadmitted) - unadmitted;
  pushed.refused = counted(state, TableCounter::kRefused) - refused;
  pushed.updated = keys.size() - pushed.unadmitted - pushed.refused;
  state.core.count(Counter::kPushes).bump_relaxed(1);
  return pushed;
}

// Calls body(row, index of its key) for each row of a batch.
template <class Body>
[[gnu::always_inline]] inline void for_each_row(std::span<float* const> rows, TableState::Places places, Body&& body) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i] != nullptr) body(rows[i], places(i));
}

}  // namespace

PushedKeys Table::push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  TableState& state = *state_;
  WorkerCore& core = state.core;
  core.job.refuse_inherited("worker");
  state.require_size(keys.size(), gradients.size(), state.spec.row_size, "push");
  if (core.limits_pushes && state.mode->drops_pushes()) {
    core.count(Counter::kPushes).bump_relaxed(1);
    return {};
  }
  static_cast<void>(state.sums.combine(keys, gradients));
  gradients = gradients.first(keys.size() * state.spec.row_size);
  float scale = 1.0F;
  if (core.live.settings.clip_norm > 0 && !update::traits_of(state.settings.rule).is_sum)
    scale = update::clip_scale(update::squared_norm(gradients.data(), gradients.size()), core.live.settings.clip_norm);
  state.settings.momentum = core.live.settings.momentum;
  state.settings.beta1 = core.live.settings.beta1;
  const std::uint64_t width = state.spec.row_size;
  const bool is_bfloat16 = state.spec.dtype == DType::kBFloat16;
  return update::with_element_update(state.settings, core.row_rate(), scale, [&](const auto& update) {
    return update_rows(state, keys, kGrain, false, [&](const auto& rows, auto places) {
      // In registers, where they suffice: an exchange might change what lies in memory.
      const auto here = update;
      const std::uint64_t elements = width;
      const float* const first = gradients.data();
      const Adds adds = core.config.adds;
      for_each_row(rows, places, [&](float* row, std::size_t i) {
        if (is_bfloat16)
          shm::update_row(state.pushed_row(keys[i], row), first + i * elements, elements, adds, here);
        else
          shm::update_row(row, first + i * elements, elements, adds, here);
      });
    });
  });
}

PushedKeys Table::assign(std::span<const std::uint64_t> keys, std::span<const float> values,
                         std::span<const float> slots) {
  TableState& state = *state_;
  state.core.job.refuse_inherited("worker");
  const std::uint64_t width = state.spec.row_size;
  state.require_size(keys.size(), values.size(), width, "assign");
  const shm::RowForm form = state.form();
  if (!slots.empty()) state.require_size(keys.size(), slots.size(), form.state_size(), "assign with state");
  // One thread, so that the last values of a repeated key stay.
  const std::uint64_t grain = keys.size() + 1;
  if (!slots.empty()) {
    std::vector<float> raw(form.raw_size());
    return update_rows(state, keys, grain, true, [&](const auto& rows, auto places) {
      for_each_row(rows, places, [&](float* row, std::size_t i) {
        form.compose(state.settings, state.core.live.settings.lr, values.data() + i * width,
                     slots.data() + i * form.state_size(), raw.data());
        shm::update_exact(row, raw.data(), raw.size(), [](float, float given) { return given; });
      });
    });
  }
  return update::with_element_reset(state.settings, state.core.live.settings.lr, [&](const auto& change) {
    return update_rows(state, keys, grain, true, [&](const auto& rows, auto places) {
      for_each_row(rows, places, [&](float* row, std::size_t i) {
        const float* const given = values.data() + i * width;
        if (form.is_bfloat16())
          shm::update_row(shm::BFloat16Row<shm::RoundToNearest>{row, {}}, given, width, Adds::kExact, change);
        else
          shm::update_row(row, given, width, Adds::kExact, change);
      });
    });
  });
}

std::uint64_t Table::contains(std::span<const std::uint64_t> keys, std::span<bool> found) {
  TableState& state = *state_;
  state.core.job.refuse_inherited("worker");
  state.require_flags(keys.size(), found.size(), "contains");
  state.for_batches(keys, keys.size() + 1, false,
                    [&](shm::TablePart& table, shm::TableLane& lane, const auto& batch, auto place) {
                      for (std::size_t i = 0; i < batch.keys.size(); ++i)
                        found[place(i)] = table.contains(lane, batch, i);
                    });
  return static_cast<std::uint64_t>(std::count(found.begin(), found.end(), true));
}

void Table::prefetch(std::span<const std::uint64_t> keys) const noexcept {
  if (state_->core.job.is_inherited()) return;  // nothing is mapped
  const auto fetch = [](const shm::TablePart& part, std::span<const std::uint64_t> some) {
    shm::TablePart::Batch batch = part.ask(some);
    part.enter(batch, true);
    part.follow(batch, true);
  };
  for (std::size_t at = 0; at < keys.size(); at += shm::kPins) {
    const std::span<const std::uint64_t> some = keys.subspan(at, std::min<std::size_t>(shm::kPins, keys.size() - at));
    if (state_->parts.size() == 1) {
      fetch(*state_->parts.front(), some);
      continue;
    }
    const auto parts = static_cast<std::uint32_t>(state_->parts.size());
    for (const std::uint64_t& key : some)
      fetch(*state_->parts[shm::part_of(state_->core.job.key_hash(), key, parts)], {&key, 1});
  }
}

std::uint64_t Table::evict(std::span<const std::uint64_t> keys) {
  TableState& state = *state_;
  state.core.job.refuse_inherited("worker");
  std::uint64_t evicted = 0;
  state.for_batches(keys, keys.size() + 1, false,
                    [&](shm::TablePart& table, shm::TableLane& lane, const auto& batch, auto) {
                      evicted += table.evict(lane, batch.keys);
                    });
  return evicted;
}

std::uint64_t Table::expire() {
  TableState& state = *state_;
  state.core.job.refuse_inherited("worker");
  std::uint64_t evicted = 0;
  for (std::size_t p = 0; p < state.parts.size(); ++p)
    evicted += state.parts[p]->tend(state.lanes[p].front(), state.parts[p]->rows_used());
  return evicted;
}

TableDump Table::dump(std::uint64_t since, const std::function<void(const TableRow&)>& row,
                      const std::function<void(std::uint64_t)>& evicted) {
  TableState& state = *state_;
  state.core.job.refuse_inherited("worker");
  const std::uint32_t dump = state.parts.front()->next_dump();
  std::uint32_t from = since >> 32 == state.version_tag ? static_cast<std::uint32_t>(since) : 0;
  if (from >= dump) from = 0;  // of no dump yet
  std::vector<std::uint64_t> gone;
  for (std::size_t p = 0; p < state.parts.size(); ++p)
    if (!state.parts[p]->begin_dump(state.lanes[p].front(), dump, from, gone)) from = 0;
  const TableDump done{.version = state.version_tag << 32 | dump, .is_full = from == 0};
  if (evicted && !done.is_full)
    for (const std::uint64_t key : gone) evicted(key);
  if (!row) return done;
  const shm::RowForm form = state.form();
  std::vector<float> raw(form.raw_size());
  TableRow one{.key = 0, .values = std::vector<float>(form.width()), .state = std::vector<float>(form.state_size())};
  update::with_element_value(state.settings, state.core.live.settings.lr, [&](const auto& value_of) {
    for (const auto& part : state.parts)
      part->for_each(
          from, from == 0,
          [&](std::uint64_t key, const float* elements) {
            one.key = key;
            shm::racing_copy(raw.data(), elements, raw.size());
          },
          [&] {
            form.read_values(raw.data(), one.values.data(), value_of);
            form.split_state(raw.data(), one.state.data());
            row(one);
          });
  });
  return done;
}

std::vector<std::string> Table::slots() const { return state_->form().slots(); }

std::uint64_t Table::state_size() const noexcept { return state_->form().state_size(); }

TableStatistics Table::statistics() const {
  state_->core.job.refuse_inherited("worker");
  return state_->statistics();
}

}  // namespace ps_shm
