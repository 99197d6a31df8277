// Walks the hot paths through the public API, each so often within measured(), for a tool that counts instructions in
// that function alone: see benches/instructions/check, which runs this under callgrind.
//
// Prints its environment, then a line per path in the order in which it walks them. One process and one worker: what
// contention costs is benches/micro's to measure, not to count.
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"

namespace {

using Operation = std::function<void()>;

}  // namespace

// The name that callgrind is told. A call of an empty operation costs some five instructions, which are counted, too.
extern "C" [[gnu::noinline]] void measured(const Operation& operation, int calls) {
  for (int call = 0; call < calls; ++call) operation();
}

namespace {

// Walks one path: a few times before it is counted, so that nothing is done for the first time.
void walk(const std::string& path, int calls, const Operation& operation) {
  for (int call = 0; call < 10; ++call) operation();
  measured(operation, calls);
  fmt::print("path {} {}\n", path, calls);
}

struct Case {
  std::string path;
  std::size_t floats;
  ps_shm::UpdateRule rule;
  ps_shm::Layout layout;
  int calls;
};

// Floats from a cache line's begin on: how long a copy takes depends on where its ends lie, and the heap puts them anywhere.
class Floats {
 public:
  Floats(std::size_t count, float value) : buffer_(count + kLine, value) {
    void* first = buffer_.data();
    std::size_t bytes = buffer_.size() * sizeof(float);
    all_ = {static_cast<float*>(std::align(kLine * sizeof(float), count * sizeof(float), first, bytes)), count};
  }
  operator std::span<float>() const { return all_; }
  operator std::span<const float>() const { return all_; }

 private:
  static constexpr std::size_t kLine = 16;
  std::vector<float> buffer_;
  std::span<float> all_;
};

// A job in this process, with its one worker.
class Job {
 public:
  explicit Job(ps_shm::Mode mode) : server_(config(mode)), worker_(options()) {}

  ps_shm::Worker& worker() { return worker_; }

  ps_shm::Variable variable(const std::string& name, std::size_t floats, ps_shm::UpdateRule rule,
                            ps_shm::Layout layout) {
    ps_shm::VariableSpec spec{.name = name, .rule = rule, .layout = layout};
    if (floats > 1) spec.shape = {floats};
    return worker_.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.5F); });
  }

  ps_shm::Variable rows(const std::string& name, std::uint64_t rows, std::uint64_t width) {
    const ps_shm::VariableSpec spec{.name = name, .shape = {rows, width}, .layout = ps_shm::Layout::kInplace};
    return worker_.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.5F); });
  }

 private:
  static std::string name() { return fmt::format("instructions-{}", getpid()); }
  static ps_shm::JobConfig config(ps_shm::Mode mode) {
    ps_shm::JobConfig config;
    config.job = name();
    config.mode = mode;
    config.seed = 1;  // so that the rows of tables lie in the same places in each run
    return config;
  }
  static ps_shm::WorkerOptions options() { return {.job = name(), .rank = {}, .stop_requested = {}, .log = {}}; }

  ps_shm::Server server_;
  ps_shm::Worker worker_;
};

void walk_async() {
  Job job(ps_shm::Mode::kAsync);
  ps_shm::Worker& worker = job.worker();
  using enum ps_shm::UpdateRule;
  for (const Case& of : {
           Case{"scalar", 1, kAdd, ps_shm::Layout::kInplace, 1000},
           Case{"versioned/sgd/floats:1000", 1000, kSgd, ps_shm::Layout::kVersioned, 1000},
           Case{"versioned/adam/floats:1000", 1000, kAdam, ps_shm::Layout::kVersioned, 1000},
           Case{"inplace/sgd/floats:1000", 1000, kSgd, ps_shm::Layout::kInplace, 200},
           Case{"versioned/sgd/floats:100000", 100'000, kSgd, ps_shm::Layout::kVersioned, 20},
       }) {
    const ps_shm::Variable variable = job.variable(fmt::format("v{}", of.path), of.floats, of.rule, of.layout);
    const Floats values(of.floats, 0), gradient(of.floats, 1e-3F);
    walk("push/" + of.path, of.calls, [&] { worker.push(variable, gradient); });
    walk("pull/" + of.path, of.calls, [&] { worker.pull(variable, values); });
  }
  walk("step/async", 1000, [&] { worker.step(); });
}

void walk_rows() {
  Job job(ps_shm::Mode::kAsync);
  constexpr std::uint64_t kRows = 10'000, kIds = 50;
  std::vector<std::uint32_t> ids(kIds), repeated(kIds);
  for (std::uint32_t i = 0; i < kIds; ++i) ids[i] = i * 199, repeated[i] = i % 40 * 199;
  for (const std::size_t width : {1, 16}) {
    const ps_shm::Variable rows = job.rows(fmt::format("rows{}", width), kRows, width);
    const Floats values(kIds * width, 0), gradient(kIds * width, 1e-3F);
    walk(fmt::format("pull_rows/{}x{}", kIds, width), 500, [&] { job.worker().pull_rows(rows, ids, values); });
    walk(fmt::format("push_rows/{}x{}", kIds, width), 500, [&] { job.worker().push_rows(rows, ids, gradient); });
    walk(fmt::format("push_rows/{}x{}/repeated", kIds, width), 500,
         [&] { job.worker().push_rows(rows, repeated, gradient); });
  }
}

// Tables by key. What evicts is not walked: the hand draws its samples.
void walk_tables() {
  Job job(ps_shm::Mode::kAsync);
  constexpr std::uint64_t kRows = 10'000, kKeys = 50;
  std::vector<std::uint64_t> all(kRows), keys(kKeys), absent(kKeys), repeated(kKeys);
  for (std::uint64_t i = 0; i < kRows; ++i) all[i] = i * 0x9e3779b97f4a7c15;  // large, not in order
  for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = all[i * 199], absent[i] = ~keys[i], repeated[i] = keys[i % 40];
  for (const std::size_t width : {1, 16}) {
    ps_shm::Table table =
        job.worker().table({.name = fmt::format("table{}", width), .row_size = width, .max_rows = kRows});
    table.push(all, Floats(kRows * width, 0));
    const Floats values(kKeys * width, 0), gradient(kKeys * width, 1e-3F);
    walk(fmt::format("table/pull/{}x{}", kKeys, width), 500, [&] { table.pull(keys, values); });
    walk(fmt::format("table/pull/{}x{}/absent", kKeys, width), 500, [&] { table.pull(absent, values); });
    walk(fmt::format("table/push/{}x{}", kKeys, width), 500, [&] { table.push(keys, gradient); });
    walk(fmt::format("table/push/{}x{}/repeated", kKeys, width), 500, [&] { table.push(repeated, gradient); });
  }
}

void walk_sync() {
  Job job(ps_shm::Mode::kSync);
  ps_shm::Worker& worker = job.worker();
  walk("barrier", 1000, [&] { worker.barrier(); });
  walk("step/sync/empty", 1000, [&] { worker.step(); });
  for (const std::size_t floats : {1000, 100'000}) {
    const ps_shm::Variable variable =
        job.variable(fmt::format("v{}", floats), floats, ps_shm::UpdateRule::kSgd, ps_shm::Layout::kVersioned);
    const Floats gradient(floats, 1e-3F);
    walk(fmt::format("step/sync/floats:{}", floats), floats > 10'000 ? 20 : 500, [&] {
      worker.push(variable, gradient);
      worker.step();
    });
  }
}

const char* widest_vectors() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") ? "avx512f" : __builtin_cpu_supports("avx2") ? "avx2" : "sse2";
#else
  return "default";
#endif
}

}  // namespace

int main() try {
  fmt::print("environment compiler {}\nenvironment libc {}\nenvironment vectors {}\n", __VERSION__,
             gnu_get_libc_version(), widest_vectors());
  walk_async();
  walk_rows();
  walk_tables();
  walk_sync();
} catch (const ps_shm::Error& error) {
  fmt::print(stderr, "instructions: {}\n", error.what());
  return 1;
}
