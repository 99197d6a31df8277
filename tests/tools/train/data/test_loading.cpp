// Reading or making data: it can be stopped in each of its phases, and says how far it is.
#include "train/data/loading.hpp"

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "ps_shm/worker.hpp"
#include "support/folder.hpp"
#include "support/manual_clock.hpp"
#include "support/test_job.hpp"
#include "train/data/dataset.hpp"
#include "train/data/sparse/sparse_data.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;
using train::LoadHooks;
using train::SparseData;
using train::SparseSourceOptions;
using Load = std::function<void(const LoadHooks&)>;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// How often `load` asks whether to stop. It must stop at the first, the last and a middle one.
int polls_of(const Load& load) {
  int polls = 0;
  load({[&] { return ++polls, false; }});
  for (const int stop_at : {1, polls / 2, polls}) {
    CAPTURE(stop_at);
    int count = 0;
    CHECK_THROWS_AS(load({[&] { return ++count == stop_at; }}), Interrupted);
    CHECK(count == stop_at);
  }
  return polls;
}

Load sparse(const std::string& source) {
  return [=](const LoadHooks& hooks) {
    SparseSourceOptions options;
    static_cast<LoadHooks&>(options) = hooks;
    SparseData::read(source, options);
  };
}

Load dense(const std::string& source) {
  return [=](const LoadHooks& hooks) { train::load_data(source, {}, hooks); };
}

std::string idx(std::vector<std::uint32_t> header, const std::string& payload) {
  std::string bytes;
  for (const std::uint32_t word : header)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(word >> shift);
  return bytes + payload;
}

// Rows of text, of `bytes` in all.
std::string rows(std::size_t bytes, const std::function<std::string(std::size_t)>& row_of) {
  std::string text;
  for (std::size_t row = 0; text.size() < bytes; ++row) text += row_of(row);
  return text;
}

}  // namespace

TEST_CASE("loading: synthetic examples stop within the work on one, also before the first") {
  CHECK(polls_of(dense("synthetic:200000x2x4")) > 16 * 200'000 / 65'536 + 5 * 16);
  CHECK(polls_of(dense("synthetic:10x2x500")) > 625);
  CHECK(polls_of(sparse("zipf:100x500")) == 500);
  CHECK(polls_of(sparse("ratings:10x10x6400")) == 100);
}

TEST_CASE("loading: the files of MNIST stop while they are read and while they are converted") {
  const Folder folder;
  folder.write("train-images-idx3-ubyte", idx({0x803, 3 * 1024, 32, 32}, std::string(3 * kMiB, '\1')));
  folder.write("train-labels-idx1-ubyte", idx({0x801, 3 * 1024}, std::string(std::size_t{3} * 1024, '\1')));
  folder.write("t10k-images-idx3-ubyte", idx({0x803, 1, 32, 32}, std::string(1024, '\1')));
  folder.write("t10k-labels-idx1-ubyte", idx({0x801, 1}, std::string(1, '\1')));
  CHECK(polls_of(dense(folder.path())) >= 4 + 3 + 3);  // each file, and each MiB twice
}

TEST_CASE("loading: text stops at each MiB, and in the work behind it") {
  const Folder folder;
  constexpr std::size_t kText = 8 * kMiB, kBlocks = 8;
  const std::string one_based = rows(kText, [](std::size_t) { return "1 1:1\n"; });
  const int polls = polls_of(sparse(folder.write("one", one_based)));
  CHECK(polls >= int(kBlocks));
  // The last row renumbers all those before.
  CHECK(polls_of(sparse(folder.write("zero", one_based + "1 0:1\n"))) > polls);
  // Ratings are renumbered, too, and then all names are written.
  const std::string ratings = rows(kText, [](std::size_t row) { return std::to_string(row % 20'000) + "::7::5\n"; });
  CHECK(polls_of(sparse(folder.write("ratings", ratings))) >= int(kBlocks) + 1 + 2 * 20'000 / 4096);
}

TEST_CASE("loading: data that is shared stops while it is copied, and the next worker reads it") {
  const TestJob job;
  Worker worker({.job = job.name.text(), .log = [](const std::string&) {}});
  int polls = 0, stop_at = 0;
  SparseSourceOptions options;
  options.stop_requested = [&] { return ++polls == stop_at; };
  SparseData::read("zipf:100x64", options);
  stop_at = polls + 1, polls = 0;
  CHECK_THROWS_AS(SparseData::share(worker, "zipf:100x64", options), Interrupted);
  CHECK(polls == stop_at);
  CHECK(SparseData::share(worker, "zipf:100x64", options).info().examples == 64);
}

TEST_CASE("loading: every two seconds a line says how far it is") {
  ManualClock clock;
  std::vector<std::string> lines;
  const LoadHooks hooks = {[&] { return clock.advance(kSecond / 10), false; },
                           [&](const std::string& line) { lines.push_back(line); }};
  SparseSourceOptions options;
  static_cast<LoadHooks&>(options) = hooks;
  SparseData::read("zipf:100x40", options);
  CHECK(lines == std::vector<std::string>{"loading zipf:100x40: 48 %", "loading zipf:100x40: 98 %"});
  lines.clear();
  train::Loading text(hooks, "a9a");
  for (std::uint64_t mib = 1; mib <= 20; ++mib) text.at_bytes(mib * kMiB);
  CHECK(lines == std::vector<std::string>{"loading a9a: 20 MiB"});
}
