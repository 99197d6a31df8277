// How old a gradient is, in two ways: by its step (the global steps that other workers have counted between its pull
// and its push, by which the age limit decides) and by each chunk (the pushes of others that it meets there).
//
//   ages --workers N --chunks C --seconds S --sleep-us T [--slow F]
//
// Each worker is a thread that pulls one variable of C chunks of 32 KiB, sleeps in place of computing a gradient, from
// half of T to one and a half, the last worker F times as long, and pushes. Prints one JSON object: the number of
// pushes by {age of the step, age of the youngest chunk, age of the oldest chunk}, and the rate of all pushes.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"

namespace {

using namespace ps_shm;

struct Options {
  std::uint32_t workers = 8;
  std::uint64_t chunks = 16;
  double seconds = 1, sleep_us = 4000, slow = 1;
};

struct Seen {
  std::map<std::array<std::uint64_t, 3>, std::uint64_t> ages{};  // counts
  double pushes_per_second = 0;
};

// Returns what this worker has seen.
Seen push_until(const std::atomic<bool>& is_over, Worker& worker, const Options& options) {
  constexpr std::uint64_t kChunkFloats = 8176;  // 32 KiB less the header of a buffer
  const std::vector<Variable> variables = {
      worker.variable({.name = "v", .shape = {options.chunks * kChunkFloats}, .rule = UpdateRule::kSgd},
                      [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); })};
  std::vector<float> values(options.chunks * kChunkFloats), gradient(values.size(), 1e-6F);
  const std::array<std::span<const float>, 1> gradients = {gradient};
  const std::array<std::span<float>, 1> outs = {values};
  std::array<Versions, 1> versions;
  const bool is_slow = worker.rank() + 1 == options.workers;
  std::mt19937_64 random(worker.rank());
  std::uniform_real_distribution<double> share(0.5, 1.5);
  Seen seen;
  std::uint64_t pushes = 0;
  const auto began = std::chrono::steady_clock::now();
  for (; pushes == 0 || !is_over; ++pushes) {  // one also where it has begun late
    const std::uint64_t step = worker.global_step();
    worker.pull_if_changed(variables[0], values, versions[0]);
    const std::vector<std::uint64_t> pulled = versions[0].of_chunks;
    std::this_thread::sleep_for(
        std::chrono::duration<double, std::micro>(options.sleep_us * share(random) * (is_slow ? options.slow : 1)));
    const std::uint64_t age = worker.global_step() - step;
    worker.push(variables, gradients, outs, versions);
    std::uint64_t youngest = ~std::uint64_t{0}, oldest = 0;
    for (std::size_t chunk = 0; chunk < pulled.size(); ++chunk) {
      const std::uint64_t others = versions[0].of_chunks[chunk] - pulled[chunk] - 1;
      youngest = std::min(youngest, others), oldest = std::max(oldest, others);
    }
    worker.step();
    ++seen.ages[{age, youngest, oldest}];
  }
  seen.pushes_per_second =
      static_cast<double>(pushes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return seen;
}

Seen measure(const Options& options) {
  JobConfig config;
  config.job = fmt::format("ages-{}", getpid());
  config.workers = options.workers;
  config.max_workers = std::max(16U, options.workers);
  config.chunk_bytes = 32 << 10;
  Server server(config);
  std::atomic<bool> is_over = false;
  std::mutex mutex;
  Seen all;
  std::string failure;
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < options.workers; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Worker worker(WorkerOptions{.job = config.job, .rank = rank});
        worker.wait_for_workers();
        const Seen seen = push_until(is_over, worker, options);
        const std::lock_guard lock(mutex);
        for (const auto& [age, count] : seen.ages) all.ages[age] += count;
        all.pushes_per_second += seen.pushes_per_second;
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failure = error.what();
      }
    });
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw Error(failure);
  return all;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const double value = std::atof(argv[i + 1]);
    if (name == "--workers" && value >= 1 && value <= kMaxWorkers)
      options.workers = static_cast<std::uint32_t>(value);
    else if (name == "--chunks" && value >= 1 && value <= 4096)
      options.chunks = static_cast<std::uint64_t>(value);
    else if (name == "--seconds" && value > 0)
      options.seconds = value;
    else if (name == "--sleep-us" && value > 0)
      options.sleep_us = value;
    else if (name == "--slow" && value >= 1)
      options.slow = value;
    else
      return fmt::print(stderr, "ages: {} {} is not possible\n", name, argv[i + 1]), 2;
  }
  std::string rows;
  const Seen seen = measure(options);
  for (const auto& [age, count] : seen.ages)
    rows += fmt::format("{}[{}, {}, {}, {}]", rows.empty() ? "" : ", ", age[0], age[1], age[2], count);
  fmt::print("{{\"workers\": {}, \"chunks\": {}, \"pushes_per_second\": {}, \"ages\": [{}]}}\n", options.workers,
             options.chunks, seen.pushes_per_second, rows);
} catch (const std::exception& error) {
  return fmt::print(stderr, "ages: {}\n", error.what()), 1;
}
