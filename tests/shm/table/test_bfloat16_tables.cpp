// Tables by key of bfloat16: updated by every rule bit for bit as their float32 form with rounding, exactly once by each
// push, and stored in half the memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <latch>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "persistence/tensor_reader.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/table/table_segment.hpp"
#include "support/error_text.hpp"
#include "support/folder.hpp"
#include "support/rule_reference.hpp"
#include "support/table_job.hpp"
#include "support/twins.hpp"
#include "update/bfloat16.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr float kRate = 0.1F;

TableSpec bfloat16_spec(std::uint64_t max_rows, std::uint64_t width = 3) {
  TableSpec spec = spec_of(max_rows, width);
  spec.dtype = DType::kBFloat16;
  return spec;
}

// Rows that round by the number of a row's push.
struct ReferenceTable {
  TwinRows rows;
  std::uint64_t seed;
  std::map<std::uint64_t, std::uint64_t> pushes;

  ReferenceTable(const JobConfig& config, const TableSpec& spec)
      : rows(config.optimizer, spec.regularize, spec.row_size, kRate),
        seed(update::rounding_seed(*config.seed, spec.name)) {}

  void push(std::uint64_t key, const float* gradient) {
    rows.push(key, gradient, update::rounding_key(update::mixed(seed ^ key), pushes[key]++));
  }
};

}  // namespace

TEST_CASE("table of bfloat16: every rule follows its float32 form with rounding, bit for bit, however rows lie") {
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    if (!works_in_place(rule)) continue;
    for (const std::uint64_t width : {1U, 5U, 8U, 300U}) {
      CAPTURE(std::string(to_string(rule)));
      CAPTURE(width);
      JobConfig config = row_config(rule);
      config.optimizer.l1 = rule == UpdateRule::kFtrl ? 0.01F : 0.0F;
      config.optimizer.weight_decay = rule == UpdateRule::kAdamW ? 0.1F : 0.0F;
      config.seed = 7;
      TableSpec spec = bfloat16_spec(100, width);
      spec.regularize = 1.0F;
      TableJob job(spec, config);
      ReferenceTable reference(config, spec);
      const Keys keys = some_keys(20);
      const Floats first = job.pull(keys);  // as they are without rows
      for (const float value : first) REQUIRE(value == rounded(value));
      for (std::size_t i = 0; i < keys.size(); ++i) reference.rows.begin(keys[i], first.data() + i * width);
      std::mt19937_64 random(3);
      for (int round = 0; round < 12; ++round) {
        Keys some;
        std::sample(keys.begin(), keys.end(), std::back_inserter(some), 13, random);
        Floats gradients(some.size() * width);
        for (float& one : gradients) one = float(random() % 64) / 32 - 1;
        CHECK(job.table.push(some, gradients).updated == some.size());
        for (std::size_t i = 0; i < some.size(); ++i) reference.push(some[i], gradients.data() + i * width);
      }
      CHECK(job.pull(keys) == reference.rows.values(keys));
      job.table.dump(0, [&](const TableRow& row) {
        const TwinRows::Row& there = reference.rows.at(row.key);
        if (update::traits_of(rule).has_row_state()) CHECK(row.state.back() == there.state);
        if (reference.rows.record() == 4) CHECK(row.state[2 * width] == there.numbers[3]);
      });
    }
  }
}

TEST_CASE("table of bfloat16: racy updates and several threads have the same bits, as long as nobody else pushes" *
          doctest::skip(shm::kThreadSanitizer)) {  // it does not support oneTBB's locks
  JobConfig config = row_config(UpdateRule::kSgd);
  const Keys keys = some_keys(4000);
  Floats gradients(keys.size() * 5);
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = float(i % 89) / 89 - 0.5F;
  std::vector<Floats> all;
  for (const Adds adds : {Adds::kExact, Adds::kRacy})
    for (const std::uint32_t threads : {1U, 3U}) {
      config.job = unique_job_name();
      config.adds = adds;
      config.threads = threads;
      TableJob job(bfloat16_spec(5000, 5), config);
      for (int round = 0; round < 3; ++round) job.table.push(keys, gradients);
      all.push_back(job.pull(keys));
      CHECK(all.back() == all.front());
    }
}

TEST_CASE(
    "table of bfloat16: the mean of many pushes is that of float32, where rounding to nearest would lose them all") {
  constexpr std::uint64_t kRows = 500, kWidth = 8;
  constexpr int kPushes = 40;
  JobConfig config = row_config(UpdateRule::kSgd);
  TableJob job(bfloat16_spec(kRows, kWidth), config);
  const Keys keys = some_keys(kRows);
  job.table.assign(keys, Floats(kRows * kWidth, 1.0F));
  for (int round = 0; round < kPushes; ++round) job.push(keys, -kSmallStep / kRate);
  check_mean_of_small_steps(job.pull(keys), kPushes);
}

TEST_CASE("table of bfloat16: no push is lost, and none is applied twice, beside others") {
  constexpr std::uint64_t kWidth = 15;  // exchanges of 16, 8, 4 and 2 bytes
  constexpr int kWorkers = 3, kPushes = 10'000;
  JobConfig config = row_config(UpdateRule::kAdd);
  TableSpec spec = bfloat16_spec(64, kWidth);
  spec.initial_range = 0;
  TableJob job(spec, config);
  const Keys keys = some_keys(5);
  std::latch all_are_there(kWorkers);
  std::vector<std::thread> pushers;
  for (int w = 0; w < kWorkers; ++w)
    pushers.emplace_back([&] {
      Worker worker(options(config));
      Table table = worker.table(spec);
      all_are_there.arrive_and_wait();
      const Floats up(keys.size() * kWidth, 1.0F), down(keys.size() * kWidth, -1.0F);
      for (int push = 0; push < kPushes; ++push) table.push(keys, up), table.push(keys, down);
      table.push(keys, up);
    });
  for (std::thread& one : pushers) one.join();
  for (const float value : job.pull(keys)) REQUIRE(value == float(kWorkers));
}

TEST_CASE("table of bfloat16: the same pushes give the same bits again, another seed and another name do not") {
  const auto run = [](std::uint64_t seed, const std::string& name) {
    JobConfig config = row_config(UpdateRule::kSgd);
    config.seed = seed;
    TableSpec spec = bfloat16_spec(200, 16);
    spec.name = name;
    TableJob job(spec, config);
    const Keys keys = some_keys(100);
    const auto push = [&] {
      for (int round = 0; round < 5; ++round) job.push(keys, 0.001F);
      return job.pull(keys);
    };
    Floats first = push();
    CHECK(job.table.evict(keys) == keys.size());  // the rows that are made then lie where others were
    CHECK(push() == first);
    return first;
  };
  CHECK(run(1, "items") == run(1, "items"));
  CHECK(run(1, "items") != run(2, "items"));
  CHECK(run(1, "items") != run(1, "users"));
}

TEST_CASE("table of bfloat16: rows take half of the bytes, under every rule") {
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    if (!works_in_place(rule)) continue;
    CAPTURE(std::string(to_string(rule)));
    const auto bytes = [&](DType dtype) {
      TableSpec spec = spec_of(100, 64);
      spec.dtype = dtype;
      TableJob job(spec, row_config(rule));
      const TableInfo info = JobView(job.config.job).tables().front();
      CHECK(info.spec.dtype == dtype);
      return info.row_bytes - sizeof(shm::TableRowShm);
    };
    const std::uint64_t of_row = update::traits_of(rule).has_row_state() ? 16 : 0;  // with what aligns the next row
    CHECK(2 * (bytes(DType::kBFloat16) - of_row) == bytes(DType::kFloat32) - of_row);
  }
}

TEST_CASE("table of bfloat16: values are assigned to the nearest, and rows go on with the state of a dump") {
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    if (!works_in_place(rule)) continue;
    CAPTURE(std::string(to_string(rule)));
    const TableSpec spec = bfloat16_spec(100, 3);
    TableJob job(spec, row_config(rule)), other(spec, row_config(rule));
    const Keys keys = some_keys(50);
    Floats given(keys.size() * 3);
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = float(i) / 77 - 1;
    job.table.assign(keys, given);
    const Floats there = job.pull(keys);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (rule == UpdateRule::kFtrl)  // its z is what is rounded
        REQUIRE(there[i] == doctest::Approx(given[i]).epsilon(1.0 / 256));
      else
        REQUIRE(there[i] == rounded(given[i]));
    }
    for (int round = 0; round < 4; ++round) job.push(keys, 0.3F);
    job.table.dump(0, [&](const TableRow& row) { other.table.assign({&row.key, 1}, row.values, row.state); });
    TableCopy ours, theirs;
    ours.follow(job.table), theirs.follow(other.table);
    CHECK(ours.rows == theirs.rows);
  }
}

TEST_CASE("table of bfloat16: checkpoints store its rows in bfloat16, and a table of either type begins with them") {
  const Folder folder;
  const JobConfig config = row_config(UpdateRule::kAdagrad);
  TableJob job(bfloat16_spec(1000, 5), config);
  const Keys keys = some_keys(333);
  job.push(keys, 0.7F), job.push(keys, -0.2F);
  const Checkpoint saved(Checkpoint::save(JobView(config.job), folder.path()));
  saved.verify();
  CHECK(saved.tables().front().dtype == DType::kBFloat16);
  const auto tensor =
      persistence::TensorFile(saved.folder() + "/tables-00002-of-00003.safetensors").tensors().at("items.rows");
  CHECK(tensor.dtype == "BF16");
  CHECK(tensor.bytes == keys.size() * 5 * 2);
  for (const std::uint64_t count : {1U, 7U, 100U}) {  // rows at once
    Keys some(count);
    Floats rows(count * 5);
    saved.read_rows("items", 3, some, rows);
    CHECK(job.pull(some) == rows);
  }
  TableCopy ours;
  ours.follow(job.table);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    JobConfig next = config;
    next.job = unique_job_name();
    next.restore = saved.folder();
    TableSpec spec = spec_of(1000, 5);
    spec.dtype = dtype;
    TableJob restored(spec, next);
    TableCopy theirs;
    theirs.follow(restored.table);
    CHECK(ours.rows == theirs.rows);
  }
}

TEST_CASE("table of bfloat16: a checkpoint whose files are of another type is damaged") {
  const Folder folder;
  const JobConfig config = row_config(UpdateRule::kSgd);
  TableJob job(bfloat16_spec(100, 4), config);
  job.push(some_keys(50), 1.0F);
  const std::string saved = Checkpoint::save(JobView(config.job), folder.path());
  const std::string described = saved + "/checkpoint.json";
  std::string text;
  {
    std::ifstream file(described);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto opened_with = [&](const std::string& dtype) {
    std::string changed = text;
    const std::size_t at = changed.find("\"bfloat16\"");
    REQUIRE(at != std::string::npos);
    changed.replace(at, 10, dtype);
    std::ofstream(described) << changed;
    return error_of([&] {
      const Checkpoint checkpoint(saved);
      Keys keys(50);
      Floats rows(200);
      checkpoint.read_rows("items", 0, keys, rows);
    });
  };
  CHECK(opened_with("\"bfloat16\"") == "none");
  CHECK(contains(opened_with("\"float32\""), "items.rows is not as"));
  CHECK(contains(opened_with("\"int32\""), "a table of an invalid size or dtype"));
  CHECK(contains(opened_with("\"bfloat17\""), "unknown dtype 'bfloat17'"));
}

TEST_CASE("table of bfloat16: what is not possible is said, and a segment of another type is no table") {
  TableJob job(bfloat16_spec(100, 8), row_config(UpdateRule::kSgd));
  CHECK(contains(error_of([&] { job.worker.table(spec_of(100, 8)); }),
                 "table 'items' already exists with dtype bfloat16, but float32 was requested"));
  TableSpec spec = spec_of(100);
  spec.name = "others";
  spec.dtype = DType::kFloat16;
  CHECK(
      contains(error_of([&] { job.worker.table(spec); }), "its dtype is float16, and rows are of float32 or bfloat16"));
  // The sizes in the record of this table would be right for any type but bfloat16.
  TableSpec floats = spec_of(100, 8);
  floats.name = "floats";
  job.worker.table(floats);
  const std::vector<std::vector<std::uint32_t>> wrong = {{static_cast<std::uint32_t>(DType::kFloat32)},
                                                         {0, static_cast<std::uint32_t>(DType::kInt32), 1000}};
  for (std::uint32_t number = 0; number < 2; ++number) {
    shm::Segment segment;
    REQUIRE(segment.open(shm::table_name(job.config.job, number, 0), shm::Access::kReadWrite) ==
            shm::AttachOutcome::kReady);
    auto& record = *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset);
    const std::uint32_t there = record.dtype;
    for (const std::uint32_t dtype : wrong[number]) {
      record.dtype = dtype;
      CHECK(contains(error_of([&] { JobView(job.config.job).tables(); }), "it is not a table of that job"));
    }
    record.dtype = there;
  }
}
