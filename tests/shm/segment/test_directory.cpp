// The variable directory: declaring, finding, disagreements, and the placement of variables.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "support/error_text.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using test::contains;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

VariableSpec spec(const std::string& name, std::vector<std::uint64_t> shape = {10}) {
  VariableSpec made;
  made.name = name;
  made.shape = std::move(shape);
  return made;
}

std::string declare_error(Directory& directory, const VariableSpec& wanted) {
  try {
    directory.declare(wanted, 0, kTaskByte);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

using Range = std::pair<std::uint64_t, std::uint64_t>;

void check_disjoint(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) CHECK(ranges[i].second <= ranges[i + 1].first);
}

}  // namespace

TEST_CASE("directory: a new job's directory is empty") {
  TestJob job;
  const Directory directory(job.segments);
  CHECK(directory.count() == 0);
  CHECK(directory.find("w") == kNoVariable);
}

TEST_CASE("directory: a declared variable is found with its declared settings") {
  TestJob job;
  Directory directory(job.segments);
  VariableSpec wanted = spec("layer/1.weights:0", {3, 5, 7});
  wanted.rule = UpdateRule::kAdd;
  wanted.regularize = 0.5F;
  wanted.lr_scale = 2;
  const std::uint32_t position = directory.declare(wanted, 2, kTaskByte).front();
  CHECK(directory.find(wanted.name) == position);
  const VariableShm& record = directory.at(position);
  CHECK(record.name == wanted.name);
  CHECK(record.elements == 105);
  CHECK(shape_to_string(record.extents, record.axes) == "[3, 5, 7]");
  CHECK(record.rule == std::uint32_t(UpdateRule::kAdd));
  CHECK(record.flags == 0);
  CHECK(std::bit_cast<float>(record.regularize) == 0.5F);
  CHECK(std::bit_cast<float>(record.lr_scale) == 2.0F);
  CHECK(record.slots == 2);
  CHECK(record.init.load_acquire() == 0);
}

TEST_CASE("directory: names are listed in the order of declaration") {
  TestJob job;
  Directory directory(job.segments);
  for (const char* name : {"b", "a", "c"}) directory.declare(spec(name), 0, kTaskByte);
  CHECK(directory.names() == std::vector<std::string>{"b", "a", "c"});
}

TEST_CASE("directory: the same declaration again gives the same variable") {
  TestJob job;
  Directory directory(job.segments);
  directory.declare(spec("a"), 0, kTaskByte);
  const std::uint32_t position = directory.declare(spec("b"), 0, kTaskByte).front();
  JobSegments attached = job.attach();
  CHECK(Directory(attached).declare(spec("b"), 0, kRankByte).front() == position);
  CHECK(directory.count() == 2);
}

TEST_CASE("directory: a name that is a prefix of another is a different one") {
  TestJob job;
  Directory directory(job.segments);
  directory.declare(spec("weights"), 0, kTaskByte);
  CHECK(directory.find("weight") == kNoVariable);
  CHECK(directory.find("weights2") == kNoVariable);
}

TEST_CASE("directory: a disagreement is an error that names variable, setting and both sides") {
  TestJob job;
  Directory directory(job.segments);
  directory.declare(spec("w", {2, 3}), 0, kTaskByte);
  VariableSpec other = spec("w", {2, 3});
  std::string what, theirs, yours;
  SUBCASE("shape") { other.shape = {3, 2}, what = "shape", theirs = "[2, 3]", yours = "[3, 2]"; }
  SUBCASE("axes") { other.shape = {6}, what = "shape", theirs = "[2, 3]", yours = "[6]"; }
  SUBCASE("rule") { other.rule = UpdateRule::kAdd, what = "update rule", theirs = "sgd", yours = "add"; }
  SUBCASE("layout") { other.layout = Layout::kInplace, what = "layout", theirs = "versioned", yours = "inplace"; }
  SUBCASE("l2") { other.regularize = 0.5F, what = "factor of l2 and weight decay", theirs = "0", yours = "0.5"; }
  SUBCASE("rate") { other.lr_scale = 2, what = "factor of the learning rate", theirs = "1", yours = "2"; }
  CHECK(contains(declare_error(directory, other),
                 "'w' already exists with " + what + " " + theirs + ", but " + yours + " was requested"));
  CHECK(directory.count() == 1);
}

TEST_CASE("directory: a record of another dtype is a disagreement") {
  TestJob job;
  Directory directory(job.segments);
  VariableShm& record = directory.at(directory.declare(spec("w"), 0, kTaskByte).front());
  record.dtype = std::uint32_t(DType::kInt64);
  CHECK(contains(declare_error(directory, spec("w")), "dtype int64, but float32 was requested"));
}

TEST_CASE("directory: an unknown update rule or layout is refused") {
  TestJob job;
  Directory directory(job.segments);
  VariableSpec wanted = spec("w");
  wanted.rule = UpdateRule{99};
  CHECK(contains(declare_error(directory, wanted), "there is no update rule 99"));
  wanted = {.name = "x", .shape = {1}, .layout = static_cast<Layout>(77)};
  CHECK(contains(declare_error(directory, wanted), "there is no layout 77"));
  CHECK(directory.count() == 0);
}

TEST_CASE("directory: names that it cannot store are refused") {
  TestJob job;
  Directory directory(job.segments);
  for (const std::string& name :
       {std::string(), std::string(128, 'x'), std::string("a b"), std::string("a\n"), std::string("\xc3\xa9")})
    CHECK(contains(declare_error(directory, spec(name)), "is not a valid variable name"));
  CHECK_THROWS_AS(directory.declare(spec(std::string("a\0b", 3)), 0, kTaskByte), Error);
  CHECK(directory.count() == 0);
  CHECK_NOTHROW(directory.declare(spec(std::string(127, 'x')), 0, kTaskByte));
  CHECK(directory.find(std::string(127, 'x')) == 0);
}

TEST_CASE("directory: shapes that it cannot store are refused") {
  TestJob job;
  Directory directory(job.segments);
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 32;
  CHECK(contains(declare_error(directory, spec("w", {0})), "every extent must be at least 1"));
  CHECK(contains(declare_error(directory, spec("w", {5, 0, 5})), "every extent must be at least 1"));
  CHECK(contains(declare_error(directory, spec("w", {kMuch, kMuch})), "product at most 2^40"));  // 2^64 wraps to 0
  CHECK(contains(declare_error(directory, spec("w", std::vector<std::uint64_t>(9, 1))), "the maximum is 8"));
  CHECK(directory.count() == 0);
  CHECK(directory.at(directory.declare(spec("w", {}), 0, kTaskByte).front()).elements == 1);
  CHECK(directory.at(directory.declare(spec("v", std::vector<std::uint64_t>(8, 2)), 0, kTaskByte).front()).elements ==
        256);
}

TEST_CASE("directory: an unknown dtype is refused") {
  TestJob job;
  Directory directory(job.segments);
  VariableSpec wanted = spec("w");
  wanted.dtype = DType{99};
  CHECK(contains(declare_error(directory, wanted), "there is no dtype 99"));
}

TEST_CASE("directory: an in-place variable is refused in sync mode") {
  TestJob job({.mode = Mode::kSync});
  Directory directory(job.segments);
  VariableSpec wanted = spec("w");
  wanted.layout = Layout::kInplace;
  CHECK(contains(declare_error(directory, wanted), "'w' is in-place"));
}

TEST_CASE("directory: a variable larger than the shard is an error, and the next one fits") {
  TestJob job;
  Directory directory(job.segments);
  const std::uint64_t too_much = shm_capacity_bytes() / sizeof(float) + (1 << 24);  // whatever others free meanwhile
  CHECK(contains(declare_error(directory, spec("huge", {too_much})), "cannot reserve"));
  CHECK(directory.declare(spec("small"), 0, kTaskByte).front() == 0);
  CHECK(job.segments.record(1).claim.load_acquire() == 0);  // the record of the refused one is reused
}

TEST_CASE("directory: variables, their buffers and free buffers do not overlap and lie within the shard") {
  TestJob job;
  Directory directory(job.segments);
  int number = 0;
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const std::uint64_t size : {1, 3, 240, 241, 5000, 40'000, 1'000'000})
      for (const std::uint64_t slots : {0, 1, 2}) {
        VariableSpec wanted = spec("v" + std::to_string(number++), {size});
        wanted.layout = layout;
        directory.declare(wanted, layout == Layout::kInplace ? 0 : slots, kTaskByte);
      }
  std::vector<Range> shard{{0, job.segments.shard_data_offset()}}, gradients{{0, kGradientsOffset}}, chunks;
  std::map<std::uint32_t, std::uint64_t> free_buffers;  // by buffer class
  for (std::uint32_t position = 0; position < directory.count(); ++position) {
    const VariableShm& variable = directory.at(position);
    CHECK(variable.pieces * variable.piece_elements >= variable.elements);
    CHECK((variable.pieces - 1) * variable.piece_elements < variable.elements);
    CHECK(variable.words_offset % kWriterLine == 0);
    shard.emplace_back(variable.words_offset, variable.words_offset + variable.pieces * sizeof(PieceWordShm));
    gradients.emplace_back(variable.gradient_offset, variable.gradient_end);
    CHECK(variable.gradient_offset % kCacheLine == 0);
    CHECK(variable.gradient_end - variable.gradient_offset >= variable.elements * sizeof(float));
    CHECK(variable.shard_end <= job.segments.shard(0).file_bytes());
    if (variable.layout == std::uint32_t(Layout::kInplace) && variable.elements == 1) {
      CHECK(variable.data_offset == variable.words_offset);  // it is part of its counter's word
      continue;
    }
    if (variable.layout == std::uint32_t(Layout::kInplace)) {
      shard.emplace_back(variable.data_offset, variable.data_offset + variable.elements * sizeof(float));
      continue;
    }
    const std::uint64_t buffer = std::uint64_t{1} << variable.buffer_class;
    CHECK(variable.buffer_class >= kMinClass);
    CHECK(variable.buffer_class <= kMaxClass);
    CHECK(variable.data_offset % buffer == 0);
    CHECK(variable.free_buffers_offset % buffer == 0);
    CHECK(variable.piece_elements * sizeof(float) * (1 + variable.slots) + sizeof(BufferHeaderShm) <= buffer);
    shard.emplace_back(variable.data_offset, variable.data_offset + variable.pieces * buffer);
    chunks.emplace_back(variable.first_chunk, variable.first_chunk + variable.pieces);
    const auto [known, first] = free_buffers.emplace(variable.buffer_class, variable.free_buffers_offset);
    CHECK(known->second == variable.free_buffers_offset);  // shared by all of the class
    if (first)
      shard.emplace_back(variable.free_buffers_offset,
                         variable.free_buffers_offset + job.segments.ranks() * kFreeBuffersPerClass * buffer);
  }
  CHECK(free_buffers.size() > 2);
  check_disjoint(shard);
  check_disjoint(gradients);
  check_disjoint(chunks);
}

TEST_CASE("directory: a full one accepts no new name and still finds the old ones") {
  TestJob job;
  Directory directory(job.segments);
  for (std::uint32_t number = 0; number < kMaxVariables; ++number)
    REQUIRE(directory.declare(spec("v" + std::to_string(number), {}), 0, kTaskByte).front() == number);
  CHECK(contains(declare_error(directory, spec("one more")), "is not a valid variable name"));
  CHECK(contains(declare_error(directory, spec("one-more")), "is full"));
  CHECK(directory.declare(spec("v77", {}), 0, kTaskByte).front() == 77);
  CHECK(directory.count() == kMaxVariables);
}

TEST_CASE("directory: threads that declare concurrently create one record for each name") {
  TestJob job;
  constexpr std::uint32_t kThreads = 4, kNames = 40;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::uint32_t>> found(kThreads, std::vector<std::uint32_t>(kNames));
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      Directory directory(job.segments);
      for (std::uint32_t i = 0; i < kNames; ++i) {
        const std::uint32_t name = thread % 2 == 0 ? i : kNames - 1 - i;
        found[thread][name] =
            directory.declare(spec("v" + std::to_string(name), {name + 1}), 0, kRankByte + thread).front();
      }
    });
  for (std::thread& thread : threads) thread.join();
  const Directory directory(job.segments);
  CHECK(directory.count() == kNames);
  for (std::uint32_t name = 0; name < kNames; ++name) {
    CHECK(directory.at(found[0][name]).name == "v" + std::to_string(name));
    CHECK(directory.at(found[0][name]).elements == name + 1);
    for (std::uint32_t thread = 1; thread < kThreads; ++thread) CHECK(found[thread][name] == found[0][name]);
  }
  std::set<std::uint32_t> records;
  for (std::uint32_t position = 0; position < kNames; ++position)
    records.insert(job.segments.index(position).load_acquire());
  CHECK(records.size() == kNames);
}

TEST_CASE("directory: a record claimed by a dead declarer is reused only by the next owner of its byte") {
  TestJob job;
  Directory directory(job.segments);
  job.segments.make_record(0);
  job.segments.record(0).claim.store_release(kRankByte + 5 + 1);
  directory.declare(spec("other"), 0, kTaskByte);
  CHECK(job.segments.index(0).load_acquire() == 2);
  directory.declare(spec("successor"), 0, kRankByte + 5);
  CHECK(job.segments.index(1).load_acquire() == 1);
}

TEST_CASE("directory: an index that does not name a record is reported as damage and not followed (directory.D7)") {
  TestJob job;
  Directory(job.segments).declare(spec("w"), 0, kTaskByte);
  for (const std::uint32_t number : {kMaxVariables, kMaxVariables + 1, ~std::uint32_t{0}}) {
    CAPTURE(number);
    job.segments.index(0).store_release(number);
    CHECK_THROWS_WITH_AS(Directory(job.segments).at(0), doctest::Contains("index 0 names record"), Error);
  }
  job.segments.index(0).store_release(1);
  CHECK(Directory(job.segments).at(0).name == std::string("w"));
}
