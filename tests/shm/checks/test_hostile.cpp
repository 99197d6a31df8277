// Damaged segments: every word altered, every length truncated, segments exchanged. A process that attaches works or
// gets an Error: never a signal, never a hang.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/table_layout.hpp"
#include "shm/segment/truncation.hpp"
#include "support/hostile.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"

namespace {

using namespace ps_shm;
using test::Bytes;
using test::SegmentFile;

constexpr unsigned kSeconds = 60;  // for one case, which waits for fractions of a second

bool is_full() { return std::getenv("PS_SHM_TEST_FULL") != nullptr; }

// One word of a segment.
struct Place {
  std::string segment;
  std::size_t offset;
};

// A job with a history: one worker has pushed and left, another one died in the middle of a push.
struct PastJob {
  test::TestJob job;
  std::vector<VariableSpec> specs;
  std::vector<TableSpec> tables;
  std::map<std::string, Bytes> healthy;  // by segment

  PastJob(const JobConfig& config, bool has_inplace, std::vector<TableSpec> with_tables = {})
      : job(config), specs(specs_of(has_inplace)), tables(std::move(with_tables)) {
    for (std::uint32_t task = 1; task < config.ps_tasks; ++task) job.segments.add_task(task, {});
    test::train_once(job.name.text(), specs, tables);
    const shm::VariableShm& record = job.segments.record(0);
    shm::FreeBufferShm& free_buffer = free_buffer_of_dead(record);
    free_buffer.note_chunk.store_relaxed(record.first_chunk);
    free_buffer.note_word.store_relaxed(shm::make_word(0, record.data_offset >> record.buffer_class));
    free_buffer.note_gain.store_relaxed(record.data_offset >> record.buffer_class);
    free_buffer.record.store_relaxed(shm::kValidFreeBuffer | shm::kFreeBufferInFlight |
                                     shm::free_buffer_of(0, record, job.segments.lane(1, 0), 0));
    for (const std::string& name : job.name.segments()) healthy[name] = SegmentFile(name).read();
  }

  static std::vector<VariableSpec> specs_of(bool has_inplace) {
    std::vector<VariableSpec> specs = {{.name = "w", .shape = {40, 30}}, {.name = "b", .shape = {30}}};
    if (has_inplace) {
      specs.push_back({.name = "rows", .shape = {3000}, .rule = UpdateRule::kAdd, .layout = Layout::kInplace});
      specs.push_back({.name = "count", .shape = {}, .rule = UpdateRule::kAdd, .layout = Layout::kInplace});
    }
    return specs;
  }

  shm::FreeBufferShm& free_buffer_of_dead(const shm::VariableShm& record) {
    const std::uint32_t lane = job.segments.lane(1, 0);
    return job.segments.free_buffer_table(record.shard, lane).free_buffers[record.buffer_class - shm::kMinClass][0];
  }

  // Call this only in a child of the process that made it: the child is left with the old mappings.
  void restore() const {
    for (const std::string& name : job.name.segments())
      if (!healthy.contains(name)) shm::unlink_segment(name);
    for (const auto& [name, bytes] : healthy) SegmentFile(name, O_RDWR | O_CREAT).replace(bytes);
  }

  // The words with a meaning: headers, settings and state, and the used entries of tables.
  std::vector<Place> words_in_use() {
    std::vector<Place> places;
    const auto add = [&](const std::string& segment, std::size_t begin, std::size_t bytes) {
      for (std::size_t offset = begin; offset < begin + bytes; offset += 4) places.push_back({segment, offset});
    };
    const std::string control = job.name.control();
    const shm::Directory directory(job.segments);
    add(control, 0, sizeof(shm::HeaderShm) - sizeof shm::HeaderShm::reserved);
    add(control, shm::kStateOffset, sizeof(shm::JobStateShm) - sizeof shm::JobStateShm::reserved);
    add(control, shm::kIndexOffset, 4 * (directory.count() + 2));
    add(control, shm::kSettingsOffset, 4 + job.segments.settings().bytes);
    add(control, shm::kEventsOffset, 4 * sizeof(shm::EventShm));
    add(control, shm::control_bytes(job.segments.ranks()), sizeof(shm::VariableShm) * (directory.count() + 1));
    add(control, shm::kWorkersOffset, sizeof(shm::WorkerShm) * 2);
    for (std::uint32_t shard = 0; shard < job.segments.config().ps_tasks; ++shard) {
      const std::string name = shm::shard_name(job.name.text(), shard);
      add(name, 0, sizeof(shm::HeaderShm) - sizeof shm::HeaderShm::reserved);
      add(name, shm::kFreeBuffersOffset, 2 * sizeof(shm::FreeBufferTableShm));
    }
    for (std::uint32_t position = 0; position < directory.count(); ++position) {
      const shm::VariableShm& record = directory.at(position);
      const std::string name = shm::shard_name(job.name.text(), record.shard);
      for (std::uint64_t piece = 0; piece < std::min<std::uint64_t>(record.pieces, 2); ++piece) {
        const std::size_t word = record.words_offset + piece * sizeof(shm::PieceWordShm);
        add(name, word, 8);
        add(name, word + offsetof(shm::PieceWordShm, wanted), 4);
        if (record.layout == static_cast<std::uint32_t>(Layout::kVersioned))
          add(name, record.data_offset + (piece << record.buffer_class), sizeof(shm::BufferHeaderShm));
      }
    }
    return places;
  }

  // The same of the first table.
  std::vector<Place> words_of_table() {
    std::vector<Place> places;
    const std::string name = shm::table_name(job.name.text(), 0, 0);
    const auto add = [&](std::size_t begin, std::size_t bytes) {
      for (std::size_t offset = begin; offset < begin + bytes; offset += 4) places.push_back({name, offset});
    };
    shm::TableShm record = {};
    std::memcpy(static_cast<void*>(&record), healthy.at(name).data() + shm::kTableOffset, sizeof record);
    add(0, sizeof(shm::HeaderShm) - sizeof shm::HeaderShm::reserved);
    add(shm::kTableOffset, offsetof(shm::TableShm, pad4));
    add(shm::kLanesOffset, sizeof(shm::TableLaneShm));
    add(record.buckets_offset, 16 * sizeof(std::uint64_t));
    for (std::uint64_t row = 0; row < 12; ++row)
      add(record.rows_offset + row * record.row_bytes, offsetof(shm::TableRowShm, changed));
    return places;
  }

  // Both the worker and the view must work or give an Error, each on the same damage.
  template <class Damage>
  void attach_to(Damage&& damage) const {
    restore();
    damage();
    std::string refusal;
    try {
      test::inspect_all(job.name.text());
    } catch (const Error& error) {
      refusal = error.what();
    }
    test::train_once(job.name.text(), specs, tables);
    if (!refusal.empty()) throw Error(refusal);
  }
};

// The new value of a word, in its first `width` bytes.
struct Alteration {
  std::size_t width;
  std::uint64_t value;
};
std::vector<Alteration> alterations(const Bytes& bytes, std::size_t offset) {
  std::uint32_t narrow;
  std::uint64_t wide = 0;
  std::memcpy(&narrow, bytes.data() + offset, 4);
  std::vector<Alteration> all = {{4, 0}, {4, 1}, {4, ~0U}, {4, narrow + 1}, {4, 0x7fffffff}, {4, narrow ^ 0x10000}};
  if (offset % 8 != 0) return all;
  std::memcpy(&wide, bytes.data() + offset, 8);
  for (const std::uint64_t value : {~std::uint64_t{0}, std::uint64_t{1} << 40, std::uint64_t{1} << 62, wide - 1})
    all.push_back({8, value});
  std::erase_if(all, [&](const Alteration& a) { return a.width == 8 ? a.value == wide : a.value == narrow; });
  return all;
}

JobConfig settings(Mode mode, Reduce reduce = Reduce::kOrdered) {
  return test::config_of({.max_workers = 3,
                          .mode = mode,
                          .reduce = reduce,
                          .optimizer = {.rule = UpdateRule::kMomentum},
                          .step_timeout = Seconds(0.2)});
}

JobConfig partitioned() {
  JobConfig config = settings(Mode::kSsp);
  config.ps_tasks = 2;
  config.placement = Placement::kPartition;
  config.place["b"] = 1;
  return config;
}

TableSpec table_spec() {
  return {.name = "items", .row_size = 3, .max_rows = 128, .rule = UpdateRule::kAdagrad, .ttl = 1000};
}

void report(const test::Cases& cases, std::size_t count, const auto& name_of) {
  for (const auto& wrong : cases.wrong) FAIL_CHECK(fmt::format("{}: {}", name_of(wrong.number), wrong.reason));
  if (cases.wrong.empty()) CHECK(cases.worked + cases.refused == count);
  CHECK(cases.refused != 0);
}

// Tries a fraction of the alterations unless PS_SHM_TEST_FULL is set; each kind of job tries a different fraction.
void alter_every_word(PastJob past, std::size_t share, bool of_table = false) {
  struct Case {
    Place place;
    Alteration alteration;
  };
  constexpr std::size_t kShares = 10;
  std::vector<Case> all;
  std::size_t number = 0;
  for (const Place& place : of_table ? past.words_of_table() : past.words_in_use())
    for (const Alteration& alteration : alterations(past.healthy.at(place.segment), place.offset))
      if (is_full() || ++number % kShares == share) all.push_back({place, alteration});
  const test::Cases cases(all.size(), kSeconds, [&](std::size_t i) {
    const Case& one = all[i];
    past.attach_to(
        [&] { SegmentFile(one.place.segment).write(one.place.offset, &one.alteration.value, one.alteration.width); });
  });
  report(cases, all.size(), [&](std::size_t i) {
    return fmt::format("{} at {}: {} bytes to {:#x}", all[i].place.segment, all[i].place.offset,
                       all[i].alteration.width, all[i].alteration.value);
  });
}

}  // namespace

TEST_CASE("hostile: any word altered, in an asynchronous job with versioned and in-place variables") {
  alter_every_word(PastJob(settings(Mode::kAsync), true), 0);
}

TEST_CASE("hostile: any word altered, in a job of two shards with partitioned variables and clocks") {
  alter_every_word(PastJob(partitioned(), true), 1);
}

TEST_CASE("hostile: any word altered, in a synchronous job") {
  alter_every_word(PastJob(settings(Mode::kSync), false), 2);
}

TEST_CASE("hostile: any word altered, in a synchronous job with accumulators") {
  alter_every_word(PastJob(settings(Mode::kSync, Reduce::kAtomic), false), 3);
}

TEST_CASE("hostile: any word altered, of a table by key") {
  alter_every_word(PastJob(settings(Mode::kAsync), false, {table_spec()}), 4, true);
}

TEST_CASE("hostile: a segment truncated to any length") {
  PastJob past(partitioned(), true, {table_spec()});
  std::vector<Place> all;  // here the offset is the new length
  for (const auto& [name, bytes] : past.healthy) {
    for (std::size_t length = 0; length < bytes.size(); length += std::max<std::size_t>(64, bytes.size() / 200))
      all.push_back({name, length});
    for (const std::size_t length : {1UL, 8UL, 511UL, 512UL, 513UL, 4095UL, 4096UL, bytes.size() - 1})
      all.push_back({name, length});
  }
  const test::Cases cases(all.size(), kSeconds, [&](std::size_t i) {
    past.attach_to(
        [&] { SegmentFile(all[i].segment).cut(std::min(all[i].offset, past.healthy.at(all[i].segment).size())); });
  });
  report(cases, all.size(), [&](std::size_t i) { return fmt::format("{} cut to {}", all[i].segment, all[i].offset); });
}

TEST_CASE("hostile: a segment in place of another one") {
  PastJob past(partitioned(), true);
  PastJob other(settings(Mode::kAsync), true);
  std::vector<std::pair<std::string, const Bytes*>> all;
  for (const auto& [name, bytes] : past.healthy) {
    for (const auto& [other_name, other_bytes] : past.healthy)
      if (name != other_name) all.emplace_back(name, &other_bytes);
    for (const auto& [other_name, other_bytes] : other.healthy) all.emplace_back(name, &other_bytes);
  }
  const Bytes noise(100000, 0xa5), nothing;
  for (const auto& [name, bytes] : past.healthy) {
    all.emplace_back(name, &noise);
    all.emplace_back(name, &nothing);
  }
  const test::Cases cases(all.size(), kSeconds, [&](std::size_t i) {
    past.attach_to([&] { SegmentFile(all[i].first).replace(*all[i].second); });
  });
  report(cases, all.size(), [&](std::size_t i) { return fmt::format("case {}: {}", i, all[i].first); });
  CHECK(cases.worked == 0);
}

TEST_CASE("hostile: the same job without damage works") {
  PastJob past(partitioned(), true);
  const test::Cases cases(1, kSeconds, [&](std::size_t) { past.attach_to([] {}); });
  CHECK(cases.worked == 1);
}

TEST_CASE("hostile: a reader of a segment that is truncated meanwhile reads zeros and gets an error") {
  PastJob past(partitioned(), true);
  test::Child child([&] {
    shm::survive_truncation();
    shm::Segment segment;
    if (segment.open(past.job.name.control(), shm::Access::kReadOnly) != shm::AttachOutcome::kReady) return 1;
    SegmentFile(past.job.name.control()).cut(0);
    const volatile std::byte* bytes = segment.data();
    int sum = 0;
    for (std::size_t at = 0; at < segment.header().reserved_bytes + 3 * shm::kPage; at += 64) sum |= int(bytes[at]);
    return sum == 0 && segment.was_cut_off() ? 0 : 2;
  });
  CHECK(child.join() == 0);
}

TEST_CASE("hostile: without survive_truncation() a truncation kills, and with it a bus error elsewhere still does") {
  PastJob past(partitioned(), true);
  const auto reads_beyond = [&](bool survives, bool watched) {
    test::Child child([&] {
      if (survives) shm::survive_truncation();
      shm::Segment segment;
      const auto access = watched ? shm::Access::kReadOnly : shm::Access::kReadWrite;
      static_cast<void>(segment.open(past.job.name.control(), access));
      SegmentFile(past.job.name.control()).cut(0);
      constexpr std::size_t kWithinPage = 5000;
      return int(const_cast<volatile std::byte*>(segment.data())[kWithinPage]);
    });
    return child.join() == 0;
  };
  CHECK(reads_beyond(true, true));
  past.restore();
  CHECK_FALSE(reads_beyond(false, true));
  past.restore();
  CHECK_FALSE(reads_beyond(true, false));
}

TEST_CASE("hostile: the inspector survives segments that are truncated and restored again and again") {
  PastJob past(partitioned(), true);
  const std::size_t looks = is_full() ? 20000 : 300;
  test::Child cutter([&] {
    for (std::size_t round = 0;; ++round)
      for (const auto& [name, bytes] : past.healthy) {
        const SegmentFile file(name);
        file.cut(round % 3 == 0 ? 0 : bytes.size() / 3 * (round % 3));
        file.replace(bytes);
      }
    return 0;
  });
  const test::Cases cases(looks, kSeconds, [&](std::size_t) {
    shm::survive_truncation();
    test::inspect_all(past.job.name.text());
  });
  cutter.kill();
  past.restore();
  report(cases, looks, [](std::size_t i) { return fmt::format("look {}", i); });
}
