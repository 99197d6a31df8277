#include "inspection/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/table/census.hpp"
#include "shm/table/row_form.hpp"
#include "shm/table/table_counts.hpp"
#include "shm/table/table_segment.hpp"
#include "update/elements.hpp"
#include "update/rules.hpp"

namespace ps_shm {
namespace {

using shm::TableCounter;
using shm::TableShm;

const TableShm& record_of(const TablePartView& part) { return shm::table_record(part.segment); }

const shm::TableLaneShm* lanes_of(const TablePartView& part) {
  return reinterpret_cast<const shm::TableLaneShm*>(part.segment.data() + shm::kLanesOffset);
}

// Those that have memory: reading others would take some.
std::uint64_t rows_in_use(const TablePartView& part) {
  const std::uint64_t next = record_of(part).rows_next.load_acquire();      // (table.A1)
  const std::uint64_t backed = record_of(part).rows_backed.load_acquire();  // (table.A1)
  return std::min({next, backed, part.checked->max_rows, part.segment.allocated_bytes() / part.checked->row_bytes});
}

std::uint64_t rows_in_use(const TableView& table) {
  std::uint64_t rows = 0;
  for (const TablePartView& part : table) rows += rows_in_use(part);
  return rows;
}

// False: there is none, or it belongs to an earlier job of that name, which the next worker removes.
bool open_part(const shm::JobSegments& job, const std::string& name, TablePartView& part) {
  shm::AttachOutcome outcome;
  try {
    outcome = part.segment.open(name, shm::Access::kReadOnly, shm::kTrustAnybody);
  } catch (const Error& error) {
    shm::fail_damaged(name, error.what());  // its header requires more than can be mapped
  }
  if (outcome == shm::AttachOutcome::kAbsent) return false;
  if (outcome != shm::AttachOutcome::kReady) throw shm::attach_error(outcome, name);
  if (part.segment.header().instance != job.instance()) return false;
  part.checked = std::make_unique<TableShm>();
  if (!shm::is_table(part.segment, job, *part.checked)) shm::fail_damaged(name, "it is not a table of that job");
  return true;
}

}  // namespace

std::vector<TableView> open_tables(const shm::JobSegments& job) {
  std::vector<TableView> tables;
  for (std::uint32_t number = 0; number < shm::kMaxTables; ++number) {
    TableView table;
    for (std::uint32_t part = 0, parts = 1; part < parts; ++part) {
      TablePartView opened;
      if (!open_part(job, shm::table_name(job.job(), number, part), opened)) break;
      parts = opened.checked->parts;
      table.push_back(std::move(opened));
    }
    if (table.empty()) break;
    if (table.size() == table.front().checked->parts) tables.push_back(std::move(table));  // otherwise being made
  }
  return tables;
}

TableView open_table_named(const shm::JobSegments& job, const std::string& name) {
  std::vector<std::string> names;
  for (TableView& table : open_tables(job)) {
    names.emplace_back(shm::text_of(table.front().checked->name));
    if (names.back() == name) return std::move(table);
  }
  throw Error(
      fmt::format("there is no table '{}': job '{}' has {}", name, job.job(), config::what_there_is(name, names)),
      ErrorCode::kNotFound);
}

void require_whole(const TableView& table) {
  for (const TablePartView& part : table)
    if (part.segment.was_cut_off() || part.segment.file_bytes() < part.checked->bytes)
      shm::fail_damaged(part.segment.name(), "it has been truncated");
}

TableInfo describe(const TableView& table) {
  const TableShm& first = *table.front().checked;
  TableInfo info;
  TableSpec& spec = info.spec;
  spec.name = shm::text_of(first.name);
  spec.row_size = first.row_elements;
  spec.dtype = static_cast<DType>(first.dtype);
  spec.rule = static_cast<UpdateRule>(first.rule);
  spec.evict = static_cast<Evict>(first.evict);
  spec.ttl = double(first.ttl_ns) / 1e9;
  spec.admit_after = first.admit_after;
  spec.touch_on_pull = first.touch_on_pull != 0;
  spec.initial_range = std::bit_cast<float>(first.initial_range);
  spec.seed = first.seed;
  spec.regularize = std::bit_cast<float>(first.regularize);
  spec.lr_scale = std::bit_cast<float>(first.lr_scale);
  info.parts = first.parts;
  info.row_bytes = first.row_bytes;
  TableStatistics& all = info.statistics;
  std::uint64_t free_bytes = shm::shm_free_bytes();
  for (const TablePartView& part : table) {
    const auto counted = [&](TableCounter which) {
      std::uint64_t sum = 0;
      for (std::uint32_t lane = 0; lane < part.checked->lanes; ++lane)
        sum += lanes_of(part)[lane].counters[static_cast<std::uint32_t>(which)].load_relaxed();  // relaxed: diagnostic
      return sum;
    };
    shm::add_part(all, *part.checked, part.segment, free_bytes, counted);
    const std::uint64_t bits = record_of(part).bits.hint();
    info.buckets += std::uint64_t{1} << std::min<std::uint64_t>(bits, part.checked->max_bits);
  }
  spec.max_rows = all.max_rows;
  return info;
}

TableCensus count_rows(const shm::JobSegments& job, const TableView& table, std::uint64_t most) {
  constexpr std::size_t kMostFaults = 10, kHottest = 10;
  TableCensus found;
  std::vector<std::uint64_t> owners(job.ranks());  // 0: nobody alive
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
    if (job.is_alive(rank)) owners[rank] = job.worker(rank).holders.load_acquire();  // (ranks.J4)
  found.has_living_workers = std::any_of(owners.begin(), owners.end(), [](std::uint64_t owner) { return owner != 0; });
  const std::uint64_t in_use = rows_in_use(table);
  // Odd, so that the buckets are not all of those that a small table had already.
  const std::uint64_t share = most == 0 || in_use <= most ? 1 : in_use / most | 1;
  std::vector<std::uint64_t> chains;
  for (const TablePartView& part : table) {
    shm::PartCensus census =
        shm::take_census(part.segment, *part.checked, {.share = share, .is_in_use = found.has_living_workers});
    found.sampled += census.sampled;
    found.with_keys += census.linked;
    found.free += census.free;
    found.sealed += census.sealed;
    found.being_made += census.claimed + census.unlinked;
    found.dead += census.dead;
    found.skipped += census.passed;
    chains.resize(std::max(chains.size(), census.chains.size()));
    for (std::size_t length = 0; length < census.chains.size(); ++length) chains[length] += census.chains[length];
    for (std::string& fault : census.faults)
      if (found.faults.size() < kMostFaults)
        found.faults.push_back(fmt::format("/dev/shm/{}: {}", part.segment.name(), fault));
    for (const auto& [key, frequency] : census.hottest) found.hottest.push_back({key, frequency});
    std::set<std::uint64_t> pinned;
    const std::uint32_t threads = job.lanes() / job.ranks();
    for (std::uint32_t lane = 0; lane < part.checked->lanes; ++lane)
      for (const auto& pin : lanes_of(part)[lane].pins)
        if (const std::uint64_t found_pin = pin.load_acquire();  // (table.E3)
            found_pin != 0 && shm::owner_of_pin(found_pin) == owners[lane / threads])
          pinned.insert(shm::row_of_pin(found_pin));
    found.pinned += pinned.size();
  }
  std::stable_sort(found.hottest.begin(), found.hottest.end(),
                   [](const TableCensus::Used& a, const TableCensus::Used& b) { return a.frequency > b.frequency; });
  found.hottest.resize(std::min(found.hottest.size(), kHottest));
  std::uint64_t buckets = 0, rows = 0, seen = 0;
  for (std::size_t length = 0; length < chains.size(); ++length)
    buckets += chains[length], rows += length * chains[length];
  if (buckets != 0) found.mean_chain = double(rows) / double(buckets);
  for (std::size_t length = 0; length < chains.size(); ++length) {
    if (seen < buckets - buckets / 100) found.p99_chain = length;
    seen += chains[length];
  }
  found.longest_chain = chains.empty() ? 0 : chains.size() - 1;
  return found;
}

namespace {

// Calls use(row, mark) for the rows that have keys, each as it is at one moment, of one in `share` rows, from the row
// number `first` of each part on. Ends when it returns false.
template <class Use>
void for_rows(const shm::JobSegments& job, const TableView& table, float lr, std::uint64_t first,
              std::uint64_t share, Use&& use) {
  constexpr int kTries = 100;  // of a row that is evicted and made again all the time
  const TableShm& record = *table.front().checked;
  const update::Settings settings = update::settings_of(job.config().optimizer, static_cast<UpdateRule>(record.rule),
                                                        std::bit_cast<float>(record.regularize), DType::kFloat32,
                                                        std::bit_cast<float>(record.lr_scale));
  TableRow row{.key = 0, .values = std::vector<float>(record.row_elements), .state = {}};
  update::with_element_value(settings, lr, [&](const auto& value_of) {
    for (const TablePartView& part : table) {
      const TableShm& checked = *part.checked;
      if (checked.rule != record.rule || checked.row_elements != record.row_elements || checked.dtype != record.dtype)
        shm::fail_damaged(part.segment.name(), "its rows are not like those of the table's first part");
      const shm::RowForm form(checked);
      for (std::uint64_t number = first, end = rows_in_use(part); number < end; number += share) {
        const auto& there = *reinterpret_cast<const shm::TableRowShm*>(part.segment.data() + checked.rows_offset +
                                                                       number * checked.row_bytes);
        for (int tries = 0; tries < kTries; ++tries) {
          const std::uint64_t word = there.word.load_acquire();  // (table.R1)
          if (shm::state_of(word) != shm::RowState::kLive && shm::state_of(word) != shm::RowState::kSealed) break;
          row.key = there.key.load_relaxed();
          form.read_values(reinterpret_cast<const float*>(&there + 1), row.values.data(), value_of);
          const std::uint32_t mark = there.mark.load_relaxed();  // relaxed: table.R3 tells whose row it was
          shm::fence_acquire();                                  // (table.R3)
          if (there.word.load_relaxed() != word) continue;       // (table.R3)
          if (!use(row, mark)) return;
          break;
        }
      }
    }
  });
}

}  // namespace

std::vector<TableRow> copy_rows(const shm::JobSegments& job, const TableView& table, float lr,
                                std::uint64_t most, std::vector<std::uint32_t>* marks) {
  std::vector<TableRow> rows;
  for_rows(job, table, lr, 0, 1, [&](const TableRow& row, std::uint32_t mark) {
    rows.push_back(row);
    if (marks != nullptr) marks->push_back(mark);
    return rows.size() != most;
  });
  return rows;
}

OddRows find_odd_rows(const shm::JobSegments& job, const TableView& table, std::uint64_t most, std::uint64_t turn) {
  OddRows found;
  const std::uint64_t rows = std::max<std::uint64_t>(most / table.front().checked->row_elements, 1);
  if (most != 0) found.share = std::max<std::uint64_t>((rows_in_use(table) + rows - 1) / rows, 1);
  for_rows(job, table, shm::read_live(job).settings.lr, turn % found.share, found.share,
           [&](const TableRow& row, std::uint32_t) {
             ++found.sampled;
             const std::size_t odd = first_odd(row.values);
             if (odd == row.values.size()) return true;
             if (found.odd++ == 0) found.key = row.key, found.element = odd, found.value = row.values[odd];
             return true;
           });
  require_whole(table);
  return found;
}

std::size_t first_odd(std::span<const float> values) noexcept {
  float sum = 0;  // of zeros, or NaN: avoids a branch for each value
  for (const float value : values) sum += value * 0.0F;
  if (sum == 0.0F) return values.size();
  return static_cast<std::size_t>(
      std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); }) - values.begin());
}

shm::JobSegments TableReader::attached(const std::string& job) {
  shm::AttachOutcome outcome;
  std::optional<shm::JobSegments> found =
      shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
  if (!found) throw shm::attach_error(outcome, shm::control_name(job));
  return std::move(*found);
}

TableReader::TableReader(const std::string& job, const std::string& table)
    : job_(attached(job)), table_(open_table_named(job_, table)) {}

std::vector<TableRow> TableReader::rows(std::vector<std::uint32_t>& marks) const {
  std::vector<TableRow> found = copy_rows(job_, table_, shm::read_live(job_).settings.lr, 0, &marks);
  require_whole(table_);
  return found;
}

}  // namespace ps_shm
