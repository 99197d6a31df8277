// Pushes, additions and assignments of several workers at once: sums are exact, chunks are consistent, and a pull of
// several variables never sees part of any of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "support/job.hpp"
#include "support/stress.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr std::uint32_t kWorkers = 4;
constexpr std::uint64_t kElements = 700;  // three chunks

template <class Body>
void run(const JobConfig& settings, std::uint64_t seed, Body&& body) {
  const Job job(settings);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
    threads.emplace_back([&, rank] {
      Worker worker = job.join(rank);
      std::mt19937_64 random(seed + rank);
      body(worker, random);
      worker.barrier();  // no worker ends the job while others use it
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("stress: every push and every add is in the sum, for every rule, for elements, rows and scalars") {
  const std::uint64_t seed = stress_seed(), rounds = stress_rounds(4000);
  for (const UpdateRule rule : {UpdateRule::kAdd, UpdateRule::kSgd})
    for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
      CAPTURE(to_string(layout));
      run({.workers = kWorkers, .layout = layout, .chunk_bytes = 1024, .optimizer = {.rule = rule, .lr = 1.0F}}, seed,
          [&](Worker& worker, std::mt19937_64& random) {
            const Variable v = worker.variable({.name = "v", .shape = {kElements / 7, 7}}, zero);
            const Variable s = worker.variable({.name = "s", .shape = {}}, zero);
            const float push = rule == UpdateRule::kAdd ? 1.0F : -1.0F;
            const std::vector<float> ones(kElements, 1.0F), pushed(kElements, push);
            std::vector<std::uint32_t> ids(kElements / 7);
            std::iota(ids.begin(), ids.end(), 0U);
            for (std::uint64_t round = 0; round < rounds; ++round) {
              switch (random() % (layout == Layout::kInplace ? 3 : 2)) {
                case 0:
                  worker.push(v, pushed);
                  break;
                case 1:
                  worker.add(v, ones);
                  break;
                default:
                  worker.add_rows(v, ids, ones);
              }
              if (random() % 2 == 0)
                worker.push(s, push);
              else
                worker.add(s, 1.0F);
            }
            worker.barrier();
            std::vector<float> sum(kElements);
            worker.pull(v, sum);
            CHECK(sum == std::vector<float>(kElements, float(kWorkers * rounds)));
            CHECK(worker.pull(s) == float(kWorkers * rounds));
          });
    }
}

TEST_CASE("stress: versions count pushes, adds and assignments alike, and every chunk is exactly one of them") {
  const std::uint64_t seed = stress_seed(), rounds = stress_rounds(4000);
  std::atomic<std::uint64_t> torn{0};
  run({.workers = kWorkers, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum, .lr = 1.0F}}, seed,
      [&](Worker& worker, std::mt19937_64& random) {
        const Variable v = worker.variable({.name = "v", .shape = {kElements}}, zero);
        const std::uint64_t chunk = 112;  // 1 KiB of values and momentum
        std::vector<float> values(kElements);
        for (std::uint64_t round = 0; round < rounds; ++round) {
          std::fill(values.begin(), values.end(), float(random() % 16));
          switch (random() % 3) {
            case 0:
              worker.push(v, values);
              break;
            case 1:
              worker.add(v, values);
              break;
            default:
              worker.assign(v, values, random() % 2 == 0 ? Slots::kKeep : Slots::kReset);
          }
          worker.pull(v, values);
          for (std::uint64_t i = 0; i < kElements; ++i) torn += !(values[i] == values[i / chunk * chunk]);
        }
        worker.barrier();
        if (worker.is_chief()) {
          const Versions versions = worker.assign(v, values);
          CHECK(versions.of_chunks.size() == (kElements + chunk - 1) / chunk);
          for (const std::uint64_t version : versions.of_chunks) CHECK(version == kWorkers * rounds + 1);
        }
      });
  CHECK(torn == 0);
}

TEST_CASE("stress: a pull of several variables sees all of a push, an add and an assignment, or nothing of it") {
  const std::uint64_t seed = stress_seed(), rounds = stress_rounds(3000);
  std::atomic<std::uint64_t> pulled{0}, split{0}, refused{0};
  run({.workers = kWorkers, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd, .lr = 1.0F}}, seed,
      [&](Worker& worker, std::mt19937_64& random) {
        std::vector<VariableSpec> specs;
        for (const char* name : {"pushed", "too", "added", "assigned"})
          specs.push_back({.name = name, .shape = {kElements}});
        const std::vector<Variable> variables =
            worker.variables(specs, [](std::size_t, std::span<float> out) { zero(out); });
        std::vector<std::vector<float>> values(variables.size(), std::vector<float>(kElements));
        const std::vector<std::span<float>> outs(values.begin(), values.end());
        const std::vector<float> ones(kElements, 1.0F);
        const std::vector<std::span<const float>> gradients(2, ones);
        const auto is_even = [&](std::size_t which) {
          return std::all_of(values[which].begin(), values[which].end(),
                             [&](float one) { return one == values[which][0]; });
        };
        for (std::uint64_t round = 0; round < rounds; ++round) {
          if (worker.is_chief() || random() % 8 == 0) {
            try {
              worker.pull_all(variables, outs);
              ++pulled;
              split += !is_even(0) || values[0] != values[1] || !is_even(2) || !is_even(3);
            } catch (const Error&) {
              ++refused;
            }
          } else if (random() % 2 == 0) {
            worker.push(std::span(variables).first(2), gradients);
          } else if (worker.rank() == 1) {  // of two concurrent assignments each might win in some chunks
            worker.assign(variables[3], std::vector<float>(kElements, float(round)));
          } else {
            worker.add(variables[2], ones);
          }
        }
      });
  MESSAGE(pulled.load() << " pulled, " << refused.load() << " refused");
  CHECK(split == 0);
  CHECK(pulled > 0);
}
