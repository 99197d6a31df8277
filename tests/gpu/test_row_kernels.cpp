// The kernels of rows: gathering them from mapped host memory, sorting a push's row numbers, summing up its gradients.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "gpu/tables.hpp"
#include "kernels/rows.hpp"
#include "shm/base/atomic.hpp"
#include "update/elements.hpp"

namespace {

using namespace ps_shm::test;
using namespace ps_shm::device;
using ps_shm::kernels::RowIds;
using ps_shm::kernels::RowPart;
using ps_shm::kernels::RowSort;
using ps_shm::kernels::RowTable;
using ps_shm::kernels::RowValue;

constexpr float kGuard = -77.0F;
constexpr std::uint32_t kRegionBits = 14;
constexpr std::size_t kRegion = std::size_t{1} << kRegionBits;

// Host memory in regions that need not be contiguous on the device.
class Shard {
 public:
  explicit Shard(std::size_t bytes) {
    for (std::size_t begin = 0; begin < bytes; begin += kRegion) regions_.emplace_back(cuda(), kRegion);
  }
  float& at(std::size_t offset) {
    return *reinterpret_cast<float*>(regions_.at(offset / kRegion).on_host() + offset % kRegion);
  }
  std::vector<std::uint64_t> addresses() const {
    std::vector<std::uint64_t> all;
    for (const auto& region : regions_) all.push_back(reinterpret_cast<std::uint64_t>(region.on_device()));
    return all;
  }

 private:
  std::vector<PinnedMemory<std::byte>> regions_;
};

struct Shape {
  std::uint32_t elements = 16, record = 1;
  std::uint64_t pad = 0;  // floats after a row
  std::uint32_t parts = 1;
  bool is_dealt = false;
  std::uint64_t rows = 301;
  RowValue value = RowValue::kFirst;
};

// A table with random records, in its own shards.
class Table {
 public:
  Table(Bench& bench, const Shape& shape) : shape_(shape), stride_(shape.elements * shape.record + shape.pad) {
    std::vector<RowPart> parts;
    std::uint64_t first_row = 0;
    for (std::uint32_t part = 0; part < shape.parts; ++part) {
      const std::uint64_t rows = shape.rows / shape.parts + (part < shape.rows % shape.parts ? 1 : 0);
      const std::size_t offset = 4096 + 48 * part, bytes = offset + rows * stride_ * sizeof(float);
      shards_.emplace_back(bytes);
      regions_.push_back(bench.put(shards_.back().addresses()));
      parts.push_back(
          {.regions = regions_.back().on_device(), .offset = offset, .first_row = shape.is_dealt ? part : first_row});
      first_row += rows;
      const std::vector<float> values = random_floats(rows * stride_, 7 + part);
      for (std::size_t i = 0; i < values.size(); ++i) shards_.back().at(offset + i * sizeof(float)) = 4 * values[i];
    }
    host_parts_ = parts;
    parts_ = bench.put(parts);
    table_ = {.parts = parts_->on_device(),
              .part_count = shape.parts,
              .is_dealt = shape.is_dealt ? 1U : 0U,
              .region_bits = kRegionBits,
              .elements = shape.elements,
              .record_floats = shape.record,
              .value = shape.value,
              .row_floats = stride_,
              .rows = shape.rows,
              .l1 = 0.5F,
              .l2 = 0.25F,
              .beta = 1.0F,
              .inverse_rate = 10.0F};
  }

  const RowTable& get() const { return table_; }

  float* record(std::uint64_t row, std::uint64_t element) {
    std::uint32_t part = 0;
    std::uint64_t local = row;
    if (shape_.is_dealt) {
      part = static_cast<std::uint32_t>(row % shape_.parts);
      local = row / shape_.parts;
    } else {
      while (part + 1 < shape_.parts && host_parts_[part + 1].first_row <= row) ++part;
      local = row - host_parts_[part].first_row;
    }
    return &shards_[part].at(host_parts_[part].offset + (local * stride_ + element * shape_.record) * sizeof(float));
  }
  float value(std::uint64_t row, std::uint64_t element) {
    const float* x = record(row, element);
    if (shape_.value == RowValue::kFirst) return x[0];
    ps_shm::update::Settings settings;
    settings.ftrl_beta = table_.beta;
    settings.l1 = table_.l1;
    settings.l2 = table_.l2;
    return ps_shm::update::Ftrl::Value::of(settings, table_.inverse_rate, x[0], x[1]);
  }

 private:
  Shape shape_;
  std::uint64_t stride_;
  std::vector<Shard> shards_;
  std::vector<DeviceMemory<std::uint64_t>> regions_;
  std::vector<RowPart> host_parts_;
  std::optional<DeviceMemory<RowPart>> parts_;
  RowTable table_{};
};

std::vector<std::uint64_t> random_ids(std::size_t count, std::uint64_t rows, std::uint32_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<std::uint64_t> ids(count);
  for (auto& id : ids) id = generator() % rows;
  return ids;
}

// Ids on the device, in either width.
struct Ids {
  Ids(Bench& bench, const std::vector<std::uint64_t>& given, bool is_wide)
      : wide(bench.put(given)),
        narrow(bench.put(std::vector<std::uint32_t>(given.begin(), given.end()))),
        get{.values = is_wide ? static_cast<const void*>(wide.on_device()) : narrow.on_device(),
            .is_wide = is_wide ? 1U : 0U,
            .pad = 0,
            .count = given.size()} {}
  DeviceMemory<std::uint64_t> wide;
  DeviceMemory<std::uint32_t> narrow;
  RowIds get;
};

// Pulls into memory that begins `shift` floats after an aligned address; checks every float around it, too.
void pulls_right(const Shape& shape, const std::vector<std::uint64_t>& ids, bool is_wide, std::size_t shift) {
  CAPTURE(shape.elements);
  CAPTURE(shape.record);
  CAPTURE(shape.pad);
  CAPTURE(shape.parts);
  CAPTURE(shape.is_dealt);
  Bench bench;
  Table table(bench, shape);
  const Ids given(bench, ids, is_wide);
  std::vector<float> expected(ids.size() * shape.elements + 8, kGuard);
  const auto out = bench.put(expected);
  const auto outside = pinned<std::uint64_t>({0});
  bench.run(kernels().pull_rows(table.get(), given.get, out.on_device() + shift, outside.on_device(), bench.stream()));
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::uint32_t e = 0; e < shape.elements; ++e)
      expected[shift + i * shape.elements + e] = table.value(ids[i], e);
  CHECK(differing(bench.get(out), expected) == 0);
  CHECK(outside.host()[0] == 0);
}

// The working memory of sort_rows.
struct Sort {
  explicit Sort(std::uint64_t most)
      : given(cuda(), most),
        sorted(cuda(), most),
        given_places(cuda(), most),
        places(cuda(), most),
        begins(cuda(), most),
        distinct(cuda(), 1) {
    std::size_t bytes = 0;
    REQUIRE(kernels().sort_rows_temp_bytes(most, bytes) == kSuccess);
    temp_storage = DeviceMemory<std::byte>(cuda(), bytes);
    get = {.given = given.on_device(),
           .sorted = sorted.on_device(),
           .given_places = given_places.on_device(),
           .places = places.on_device(),
           .begins = begins.on_device(),
           .distinct = distinct.on_device(),
           .temp_storage = temp_storage.on_device(),
           .temp_storage_bytes = bytes,
           .most = most};
  }
  DeviceMemory<std::uint64_t> given, sorted;
  DeviceMemory<std::uint32_t> given_places, places, begins, distinct;
  DeviceMemory<std::byte> temp_storage;
  RowSort get;
};

// The positions of each row in a push.
std::map<std::uint64_t, std::vector<std::uint32_t>> places_of(const std::vector<std::uint64_t>& ids) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> places;
  for (std::size_t i = 0; i < ids.size(); ++i) places[ids[i]].push_back(static_cast<std::uint32_t>(i));
  return places;
}

void sorts_right(const std::vector<std::uint64_t>& ids, std::uint64_t rows, std::uint64_t most, bool is_wide) {
  CAPTURE(ids.size());
  CAPTURE(rows);
  Bench bench;
  Sort sort(most);
  const Ids given(bench, ids, is_wide);
  const auto outside = pinned<std::uint64_t>({0});
  bench.run(kernels().sort_rows(given.get, rows, sort.get, outside.on_device(), bench.stream()));
  CHECK(outside.host()[0] == 0);
  const auto expected = places_of(ids);
  REQUIRE(bench.get(sort.distinct)[0] == expected.size());
  const auto distinct = bench.get(sort.given);
  const auto places = bench.get(sort.places), begins = bench.get(sort.begins);
  std::size_t wrong = 0, row = 0, at = 0;
  for (const auto& [id, of_row] : expected) {
    wrong += distinct[row] != id || begins[row] != at;
    for (const std::uint32_t place : of_row) wrong += places[at++] != place;
    ++row;
  }
  CHECK(wrong == 0);
}

// With `is_whole`, sums of integers, which floats represent exactly in any order; otherwise of other values, where a
// row with few gradients is summed in their order.
void sends_right(const std::vector<std::uint64_t>& ids, std::uint32_t elements, std::uint32_t piece_rows, bool is_whole,
                 std::size_t shift) {
  CAPTURE(ids.size());
  CAPTURE(elements);
  CAPTURE(piece_rows);
  Bench bench;
  Sort sort(ids.size());
  const Ids given(bench, ids, true);
  std::vector<float> gradients = random_floats(shift + ids.size() * elements, 5);
  if (is_whole)
    for (float& g : gradients) g = std::floor(g * 100);
  const auto on_device = bench.put(gradients);
  const auto expected_places = places_of(ids);
  const std::size_t pieces = (ids.size() + piece_rows - 1) / piece_rows;
  const auto arrived = pinned(std::vector<std::uint32_t>(pieces + 1, 0));
  const auto outside = pinned<std::uint64_t>({0});
  const auto sent_ids = pinned(std::vector<std::uint64_t>(ids.size() + 1, 12345));
  const auto sums = pinned(std::vector<float>(shift + ids.size() * elements + 8, kGuard));
  bench.run(kernels().sort_rows(given.get, std::uint64_t{1} << 33, sort.get, outside.on_device(), bench.stream()));
  bench.run(kernels().send_rows(sort.get, ids.size(), on_device.on_device() + shift, elements, piece_rows,
                                sent_ids.on_device(), sums.on_device() + shift, arrived.on_device(), bench.stream()));
  std::vector<std::uint64_t> expected_ids(ids.size() + 1, 12345);
  std::vector<float> expected(sums.count(), kGuard);
  std::size_t row = 0;
  for (const auto& [id, places] : expected_places) {
    expected_ids[row] = id;
    for (std::uint32_t e = 0; e < elements; ++e) {
      float sum = gradients[shift + std::size_t{places[0]} * elements + e];
      for (std::size_t k = 1; k < places.size(); ++k) sum += gradients[shift + std::size_t{places[k]} * elements + e];
      expected[shift + row * elements + e] = sum;
    }
    ++row;
  }
  CHECK(differing({sums.host().begin(), sums.host().end()}, expected) == 0);
  CHECK(std::equal(expected_ids.begin(), expected_ids.end(), sent_ids.on_host()));
  std::size_t wrong = arrived.host()[pieces] != 0;
  for (std::size_t piece = 0, left = expected_places.size(); piece < pieces; ++piece) {
    const std::size_t here = std::min<std::size_t>(left, piece_rows);
    wrong += arrived.host()[piece] != 1 + here;
    left -= here;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("pull rows: of any width, with state beside the elements or after the row, from any address") {
  for (const std::uint32_t elements : {1U, 2U, 3U, 4U, 5U, 16U, 31U, 64U, 128U, 130U, 260U})
    for (const std::uint32_t record : {1U, 2U, 3U, 4U})
      for (const bool is_padded : {false, true})
        pulls_right({.elements = elements,
                     .record = record,
                     .pad = is_padded ? 4 - elements * record % 4 : 0,
                     .parts = 1 + elements % 3,
                     .is_dealt = elements % 2 == 0},
                    random_ids(97, 301, elements), record % 2 == 0, elements % 4 == 0 && record == 2 ? 1 : 0);
}

TEST_CASE("pull rows: parts by range and by hash, one and many, uneven ones too") {
  std::vector<std::uint64_t> all(301);
  std::iota(all.rbegin(), all.rend(), 0U);
  for (const std::uint32_t parts : {1U, 2U, 3U, 7U, 64U})
    for (const bool is_dealt : {false, true}) pulls_right({.parts = parts, .is_dealt = is_dealt}, all, true, 0);
}

TEST_CASE("pull rows: more rows than a grid has groups, and the same row repeatedly") {
  pulls_right({.elements = 1, .rows = 5000}, random_ids(100'000, 5000, 3), false, 0);
  pulls_right({.elements = 20}, std::vector<std::uint64_t>(3000, 299), true, 0);
  pulls_right({}, {}, true, 0);
}

TEST_CASE("pull rows: FTRL's values have the same bits as the CPU's") {
  for (const std::uint32_t elements : {1U, 2U, 7U, 16U, 130U})
    pulls_right({.elements = elements, .record = 2, .rows = 300, .value = RowValue::kFtrl}, random_ids(500, 300, 4),
                elements != 7, 0);
  Bench bench;
  Table table(bench, {.elements = 4, .record = 2, .value = RowValue::kFtrl});
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float pairs[4][2] = {{kNan, 1.0F}, {0.5F, 4.0F}, {-0.0F, 0.0F}, {-3.0F, 1e-40F}};  // z at l1 gives 0
  for (std::uint64_t e = 0; e < 4; ++e) std::copy_n(pairs[e], 2, table.record(9, e));
  const Ids ids(bench, {9}, true);
  const auto out = bench.put(std::vector<float>(4, kGuard));
  const auto outside = pinned<std::uint64_t>({0});
  bench.run(kernels().pull_rows(table.get(), ids.get, out.on_device(), outside.on_device(), bench.stream()));
  std::vector<float> expected;
  for (std::uint64_t e = 0; e < 4; ++e) expected.push_back(table.value(9, e));
  CHECK(differing(bench.get(out), expected) == 0);
  CHECK(expected[1] == 0.0F);
}

TEST_CASE("pull rows: a nonexistent row is reported and neither read nor written, the others are pulled") {
  for (const bool is_wide : {false, true})
    for (const std::uint64_t outside_id : {std::uint64_t{301}, std::uint64_t{0xffffffff}, ~std::uint64_t{0}}) {
      if (!is_wide && outside_id > 0xffffffff) continue;
      Bench bench;
      Table table(bench, {.parts = 3});
      const std::vector<std::uint64_t> ids{300, outside_id, 0};
      const Ids given(bench, ids, is_wide);
      std::vector<float> expected(3 * 16, kGuard);
      const auto out = bench.put(expected);
      const auto outside = pinned<std::uint64_t>({0});
      bench.run(kernels().pull_rows(table.get(), given.get, out.on_device(), outside.on_device(), bench.stream()));
      for (std::uint32_t e = 0; e < 16; ++e) {
        expected[e] = table.value(300, e);
        expected[32 + e] = table.value(0, e);
      }
      CHECK(differing(bench.get(out), expected) == 0);
      CHECK(outside.host()[0] == outside_id);
    }
}

TEST_CASE("put rows: each goes to its place, with its answer, and nothing else is written") {
  for (const std::uint32_t elements : {1U, 3U, 4U, 31U, 32U, 33U, 130U})
    for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 700U})
      for (const bool has_flags : {true, false}) {
        Bench bench;
        const std::size_t all = 3 * count + 5;
        std::vector<std::uint64_t> places(all);
        std::iota(places.begin(), places.end(), 0U);
        std::shuffle(places.begin(), places.end(), std::mt19937(elements));
        places.resize(count);
        const std::vector<float> values = random_floats(count * elements, elements);
        std::vector<std::uint8_t> flags(count), expected_flags(all, 1);
        std::vector<float> expected(all * elements, kGuard);
        for (std::size_t i = 0; i < count; ++i) {
          flags[i] = i % 3 == 0;
          if (has_flags) expected_flags[places[i]] = flags[i];
          std::copy_n(values.data() + i * elements, elements, expected.data() + places[i] * elements);
        }
        const auto places_there = bench.put(places);
        const auto values_there = bench.put(values);
        const auto flags_there = bench.put(flags), found = bench.put(std::vector<std::uint8_t>(all, 1));
        const auto out = bench.put(std::vector<float>(all * elements, kGuard));
        bench.run(kernels().put_rows({.places = places_there.on_device(),
                                      .values = values_there.on_device(),
                                      .found = reinterpret_cast<const bool*>(flags_there.on_device()),
                                      .count = count,
                                      .elements = elements,
                                      .pad = 0},
                                     out.on_device(), has_flags ? reinterpret_cast<bool*>(found.on_device()) : nullptr,
                                     bench.stream()));
        CHECK(differing(bench.get(out), expected) == 0);
        CHECK(bench.get(found) == expected_flags);
      }
}

TEST_CASE("sort rows: equal ones are adjacent and keep their order, each is there once") {
  for (const std::size_t count : {1, 2, 31, 257, 4096, 70'001})
    for (const std::uint64_t rows : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{255}, std::uint64_t{256},
                                     std::uint64_t{257}, std::uint64_t{1'000'003}, std::uint64_t{1} << 40})
      sorts_right(random_ids(count, rows, 6), rows, count + count % 3, rows > 0xffffffff || count % 2 == 0);
  std::vector<std::uint64_t> descending(1000);
  std::iota(descending.rbegin(), descending.rend(), 0U);
  sorts_right(descending, 1000, 1000, false);
}

TEST_CASE("sort rows: a nonexistent row is reported; an empty list is sorted to an empty one") {
  Bench bench;
  Sort sort(4);
  const auto outside = pinned<std::uint64_t>({0});
  const Ids ids(bench, {3, 5, 4}, true), none(bench, {}, true);
  bench.run(kernels().sort_rows(ids.get, 5, sort.get, outside.on_device(), bench.stream()));
  CHECK(outside.host()[0] == 5);
  bench.run(kernels().sort_rows(none.get, 5, sort.get, outside.on_device(), bench.stream()));
  bench.run(kernels().send_rows(sort.get, 0, nullptr, 4, 1, nullptr, nullptr, nullptr, bench.stream()));
  CHECK(kernels().sort_rows({.values = ids.wide.on_device(), .is_wide = 1, .pad = 0, .count = 5}, 5, sort.get,
                            outside.on_device(), bench.stream()) != kSuccess);
}

TEST_CASE("send rows: each row's sum arrives once, with its number, piece by piece") {
  for (const std::uint32_t elements : {1U, 3U, 4U, 16U, 33U, 128U, 200U})
    for (const std::uint32_t piece_rows : {1U, 7U, 64U, 5000U})
      sends_right(random_ids(1000, 600, elements), elements, piece_rows, false, elements == 16 ? 1 : 0);
  sends_right(random_ids(40'000, std::uint64_t{1} << 33, 8), 4, 100, false, 0);
}

TEST_CASE("send rows: rows that occur in most gradients are summed up like the others") {
  for (const std::uint32_t elements : {1U, 3U, 16U, 128U, 200U}) {
    std::vector<std::uint64_t> ids = random_ids(20'000, 100'000, elements);
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (i % 4 != 0) ids[i] = i % 8 < 4 ? 5 : 6 + i % 1000 / 400;  // some thousands each
    sends_right(ids, elements, 512, true, 0);
    sends_right(std::vector<std::uint64_t>(127 + elements, 3), elements, 1, true, 0);
  }
}

TEST_CASE("send rows: the same push has the same sums, bit for bit, in each run") {
  Bench bench;
  std::vector<std::uint64_t> ids = random_ids(30'000, 50, 9);
  const Ids given(bench, ids, true);
  Sort sort(ids.size());
  const auto gradients = bench.put(random_floats(ids.size() * 16, 10));
  const auto outside = pinned<std::uint64_t>({0});
  const auto sent_ids = pinned(std::vector<std::uint64_t>(ids.size(), 0));
  const auto arrived = pinned(std::vector<std::uint32_t>(ids.size(), 0));
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    const auto sums = pinned(std::vector<float>(ids.size() * 16, kGuard));
    bench.run(kernels().sort_rows(given.get, 50, sort.get, outside.on_device(), bench.stream()));
    bench.run(kernels().send_rows(sort.get, ids.size(), gradients.on_device(), 16, 7, sent_ids.on_device(),
                                  sums.on_device(), arrived.on_device(), bench.stream()));
    std::vector<float> got(sums.host().begin(), sums.host().end());
    if (run == 0) first = got;
    CHECK(differing(got, first) == 0);
  }
}
