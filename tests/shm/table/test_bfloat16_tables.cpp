// Tables by key of bfloat16: which random bits round them, how checkpoints store them, and what is not possible. What
// pushes make of their rows: worker/test_values.cpp.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "persistence/tensor_reader.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/table/table_segment.hpp"
#include "support/error_text.hpp"
#include "support/folder.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

TableSpec bfloat16_spec(std::uint64_t max_rows, std::uint64_t width = 3) {
  TableSpec spec = spec_of(max_rows, width);
  spec.dtype = DType::kBFloat16;
  return spec;
}

}  // namespace

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
  std::fstream file(saved + "/tables-00001-of-00002.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::string header(200, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  file.seekp(static_cast<std::streamoff>(header.find("U64"))).write("I64", 3).flush();  // as large as before
  CHECK(contains(opened_with("\"bfloat16\""), "items.keys is not as"));
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
