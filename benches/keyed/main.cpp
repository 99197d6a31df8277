// keyed: rows that are found by a 64-bit key, in a job's table and in what else one could use; google-benchmark's output.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../processes.hpp"
#include "../report.hpp"
#include "store.hpp"
#include "train/data/random.hpp"
#include "train/data/sparse/zipf.hpp"

namespace ps_shm::bench {

std::uint64_t key_of(std::uint64_t id) noexcept { return std::max<std::uint64_t>(1, train::mix(id)); }
std::uint64_t id_in_order(std::uint64_t number, std::uint64_t keys) noexcept {
  return number * 2'654'435'761 % keys;  // a prime, which divides no number of keys
}

std::span<const Contestant> contestants() {
  static constexpr Contestant kAll[] = {
      {"table", make_table}, {"bfloat16", make_bfloat16}, {"dictionary", make_dictionary, false},
      {"tbb", make_tbb},     {"striped", make_striped},   {"boost", make_boost},
      {"redis", make_redis}};
  return kAll;
}

namespace {

constexpr std::uint64_t kBatch = 256;      // keys of a call
constexpr std::uint64_t kDrawn = 1 << 19;  // keys of a process, drawn before the clock starts
constexpr double kPatience = 900;

struct Settings {
  std::uint64_t keys = 10'000'000, few_rows = 1'000'000, width = 16;
  double exponent = 1.0, seconds = 0.5;
  std::vector<int> processes = {1, 2};
  std::vector<std::string> who;
  bool pins = false;
};

std::uint64_t cpu_ns() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// run_processes() with threads of this process.
std::vector<Ran> run_threads(int count, const Span& span, const std::function<Work(int)>& make) {
  using Clock = std::chrono::steady_clock;
  std::vector<Ran> ran(static_cast<std::size_t>(count));
  std::vector<std::exception_ptr> errors(ran.size());
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number)
    threads.emplace_back([&, number] {
      const auto own = static_cast<std::size_t>(number);
      try {
        const Work work = make(number);
        work.prepare();
        ++ready;
        while (ready.load() < count) std::this_thread::yield();
        const auto begin = Clock::now();
        const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
        while (ran[own].rounds < span.most && (ran[own].rounds < span.least || seconds() < span.seconds)) {
          ran[own].retries += work.rounds(span.batch);
          ran[own].rounds += span.batch;
        }
        ran[own].seconds = seconds();
      } catch (...) {
        errors[own] = std::current_exception();
        ++ready;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return ran;
}

std::vector<Ran> run(const Store& store, int count, const Span& span, const std::function<Work(int)>& make) {
  return store.is_of_threads() ? run_threads(count, span, make) : run_processes(count, span, make);
}

// Each round takes one batch of `keys`, from the first to the last, and begins again. Its "retries" are the nanoseconds of
// processor time that it took, with this process's share of what a server took.
Work work_on(Store& store, int number, int processes, std::vector<std::uint64_t> keys, std::uint64_t width,
             const std::string& what) {
  struct State {
    std::shared_ptr<Access> access;
    std::vector<std::uint64_t> keys;
    std::vector<float> values, gradients;
    std::size_t at = 0;
    std::uint64_t found = 0;
  };
  const auto state = std::make_shared<State>(State{store.open(number), std::move(keys), {}, {}});
  state->values.resize(kBatch * width);
  state->gradients.assign(kBatch * width, 1.0F);
  const auto taken = [&store, processes] {
    return cpu_ns() + store.cpu_ns_elsewhere() / static_cast<std::uint64_t>(processes);
  };
  const auto rounds = [state, width, what, taken](std::uint64_t count) -> std::uint64_t {
    const std::uint64_t begin = taken();
    for (; count > 0; --count) {
      const std::size_t size = std::min<std::size_t>(kBatch, state->keys.size() - state->at);
      const std::span<const std::uint64_t> some(state->keys.data() + state->at, size);
      if (what == "lookup")
        state->found += state->access->lookup(some);
      else if (what == "pull")
        state->access->pull(some, std::span(state->values).first(size * width));
      else
        state->access->push(some, std::span<const float>(state->gradients).first(size * width));
      state->at += size;
      if (state->at == state->keys.size()) state->at = 0;
    }
    if (what == "lookup" && state->found == 0) throw std::runtime_error("no key is found");
    return taken() - begin;
  };
  // Once through all: what a new process has not touched yet takes a page fault each.
  return {.prepare = [=] { rounds((state->keys.size() + kBatch - 1) / kBatch); }, .rounds = rounds};
}

// At least `least` keys, if there are so many.
std::vector<std::uint64_t> draw(const Settings& settings, bool is_zipf, int number, std::uint64_t least) {
  std::mt19937_64 random(static_cast<std::uint64_t>(number) + 7);
  const train::ZipfSampler zipf(settings.keys, is_zipf ? settings.exponent : 0.0);
  std::vector<std::uint64_t> keys(std::min(std::max(kDrawn, least), std::max(kBatch, settings.keys / kBatch * kBatch)));
  for (std::uint64_t& key : keys) key = key_of(zipf(random) - 1);
  return keys;
}

// Pushes all keys, divided among the processes, once; returns M rows/s: by the clock, and of processor time.
std::pair<double, double> fill(Store& store, const Settings& settings, int processes) {
  const auto share_of = [&](int number) {
    std::vector<std::uint64_t> keys;
    for (auto i = static_cast<std::uint64_t>(number); i < settings.keys; i += static_cast<std::uint64_t>(processes))
      keys.push_back(key_of(id_in_order(i, settings.keys)));
    return keys;
  };
  const auto ran = run(store, processes, {.seconds = 0, .least = 1, .most = 1}, [&](int number) {
    std::vector<std::uint64_t> keys = share_of(number);
    const std::uint64_t batches = (keys.size() + kBatch - 1) / kBatch;
    const Work work = work_on(store, number, processes, std::move(keys), settings.width, "push");
    return Work{.prepare = [] {}, .rounds = [=](std::uint64_t) { return work.rounds(batches); }};
  });
  double longest = 0, cpu = 0;
  for (const Ran& one : ran) longest = std::max(longest, one.seconds), cpu += double(one.retries) * 1e-9;
  const double all = double(settings.keys) * 1e-6;
  return {all / longest, all / cpu * processes};
}

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings) {}

  void add_cases() {
    for (const Contestant& contestant : contestants()) {
      if (!settings_.who.empty() &&
          std::find(settings_.who.begin(), settings_.who.end(), contestant.name) == settings_.who.end())
        continue;
      for (const int count : settings_.processes) {
        for (const char* what : {"lookup", "pull", "push"})
          for (const bool is_zipf : {true, false})
            add(fmt::format("{}/{}/{}/processes:{}", what, contestant.name, is_zipf ? "zipf" : "uniform", count),
                [=, this](benchmark::State& state) { measure(state, filled(contestant), what, is_zipf, count, 0); });
        if (contestant.makes_rows)
          add(fmt::format("insert/{}/processes:{}", contestant.name, count),
              [=, this](benchmark::State& state) { insert(state, contestant, count); });
        if (std::string(contestant.name) == "table")
          for (const bool is_zipf : {true, false})
            add(fmt::format("push_evicting/table/{}/processes:{}", is_zipf ? "zipf" : "uniform", count),
                [=, this](benchmark::State& state) {
                  // so many that they do not all have rows once they were pushed
                  measure(state, small(), "push", is_zipf, count, 4 * settings_.few_rows);
                });
      }
    }
  }

  bool has_failed() const { return has_failed_; }

 private:
  void add(const std::string& name, std::function<void(benchmark::State&)> body) {
    benchmark::RegisterBenchmark(name.c_str(), [this, body](benchmark::State& state) {
      for (auto _ : state) try {
          body(state);
        } catch (const Absent& error) {
          state.SkipWithError(error.what());
          return;
        } catch (const std::exception& error) {
          has_failed_ = true;
          state.SkipWithError(error.what());
          return;
        }
    })->Unit(benchmark::kMillisecond);
  }

  Shape shape(std::uint64_t rows) const {
    return {settings_.keys, rows, settings_.width,
            *std::max_element(settings_.processes.begin(), settings_.processes.end())};
  }
  // Rows for all, with some that processes keep for themselves.
  Shape full_shape() const { return shape(settings_.keys + settings_.keys / 64 + 4096); }

  Store& filled(const Contestant& contestant) {
    std::unique_ptr<Store>& store = stores_[contestant.name];
    if (!store) {
      store = contestant.make(full_shape());
      if (contestant.makes_rows) fill(*store, settings_, 1);
    }
    return *store;
  }
  Store& small() {
    if (!small_) {
      small_ = make_table(shape(settings_.few_rows));
      fill(*small_, settings_, 1);
    }
    return *small_;
  }

  void measure(benchmark::State& state, Store& store, const std::string& what, bool is_zipf, int count,
               std::uint64_t drawn) {
    const auto ran = run(store, count, {.seconds = settings_.seconds, .batch = 16}, [&](int number) {
      return work_on(store, number, count, draw(settings_, is_zipf, number, drawn), settings_.width, what);
    });
    double of_cpu = 0;
    for (const Ran& one : ran) of_cpu += double(one.rounds * kBatch) / double(one.retries) * 1e3;
    state.counters["M_rows/s"] = sum_of_rates(ran) * kBatch * 1e-6;
    state.counters["M_rows/cpu_s"] = of_cpu;
  }

  void insert(benchmark::State& state, const Contestant& contestant, int count) {
    const std::unique_ptr<Store> store = contestant.make(full_shape());
    const auto [rate, of_cpu] = fill(*store, settings_, count);
    state.counters["M_rows/s"] = rate;
    state.counters["M_rows/cpu_s"] = of_cpu;
    state.counters["bytes/key"] = double(store->bytes()) / double(settings_.keys);
  }

  Settings settings_;
  std::map<std::string, std::unique_ptr<Store>> stores_;
  std::unique_ptr<Store> small_;
  bool has_failed_ = false;
};

int run_all(int argc, char** argv) {
  CLI::App app(
      "Rows by 64-bit keys: lookups, pulls, pushes and inserts, in M rows/s. Others are google-benchmark's: "
      "--benchmark_filter, --benchmark_repetitions.");
  Settings settings;
  bool is_smoke = false;
  app.allow_extras();
  app.add_option("--keys", settings.keys, "that are used")
      ->check(CLI::Range(1000, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--few-rows", settings.few_rows, "of the table that evicts")->capture_default_str();
  app.add_option("--width", settings.width, "floats of a row")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--exponent", settings.exponent, "of Zipf's law")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "of a measurement")->capture_default_str();
  app.add_option("--processes", settings.processes, "for how many")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--who", settings.who, "table, bfloat16, dictionary, tbb, striped, boost, redis; all")->delimiter(',');
  app.add_flag("--pin", settings.pins, "each process to a core of its own");
  app.add_flag("--smoke", is_smoke, "every case once, tiny: whether it works; the figures mean nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!may_report("keyed")) return 1;
  if (is_smoke) settings.keys = 20'000, settings.few_rows = 2'000, settings.seconds = 1e-3;
  pin_processes(settings.pins);
  set_patience(kPatience);
  end_at_signals();
  Bench bench(settings);
  bench.add_cases();
  std::vector<std::string> rest = app.remaining();
  rest.insert(rest.begin(), argv[0]);
  std::vector<char*> arguments;
  for (std::string& one : rest) arguments.push_back(one.data());
  const int code =
      run_benchmarks(static_cast<int>(arguments.size()), arguments.data(), is_smoke ? 1 : 5,
                     fmt::format("{} keys, rows of {} floats, batches of {} keys, {}", settings.keys, settings.width,
                                 kBatch, settings.pins ? "each process on a core of its own" : "not pinned"),
                     {"--benchmark_min_time=0"});
  return code != 0 ? code : bench.has_failed() ? 1 : 0;
}

}  // namespace
}  // namespace ps_shm::bench

int main(int argc, char** argv) { return ps_shm::bench::run_all(argc, argv); }
