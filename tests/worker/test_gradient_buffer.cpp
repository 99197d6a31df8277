// Worker::gradient: memory for a gradient that is pushed without a copy; and what is published with it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

void fill(std::span<float> out, float first) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + float(i);
}

}  // namespace

TEST_CASE("gradient buffer: it is as large as the variable, aligned, and stays at its address") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const Placement placement : {Placement::kRoundRobin, Placement::kPartition}) {
      Job job({.mode = mode, .optimizer = {.lr = 1.0F}, .ps_tasks = 2, .placement = placement});
      Worker worker = job.join();
      const Variable small = worker.variable({.name = "small", .shape = {3}}, zero);
      const std::span<float> buffer = worker.gradient(small);
      fill(buffer, 1);
      const Variable large = worker.variable({.name = "large", .shape = {5000, 3}}, zero);
      const std::span<float> other = worker.gradient(large);
      fill(other, 7);
      CHECK(buffer.size() == 3);
      CHECK(other.size() == 15000);
      CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
      CHECK(reinterpret_cast<std::uintptr_t>(other.data()) % 64 == 0);
      CHECK(worker.gradient(small).data() == buffer.data());
      CHECK(buffer[2] == 3);
    }
}

TEST_CASE("gradient buffer: a push from there has the same effect as one from elsewhere, step after step") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
      if (mode == Mode::kAsync && reduce == Reduce::kAtomic) continue;
      Job job({.mode = mode, .reduce = reduce, .optimizer = {.lr = 1.0F}});
      Worker worker = job.join();
      const Variable a = worker.variable({.name = "a", .shape = {20000}}, zero);
      const Variable b = worker.variable({.name = "b", .shape = {20000}}, zero);
      const std::span<float> buffer = worker.gradient(a);
      std::vector<float> elsewhere(20000);
      for (int step = 0; step < 5; ++step) {
        fill(buffer, float(step));
        fill(elsewhere, float(step));
        worker.push(a, buffer);
        worker.push(b, elsewhere);
        worker.step();
      }
      const JobView view = job.view();
      CHECK(view.values("a") == view.values("b"));
      CHECK(view.values("a")[7] == -5.0F * 7 - 10.0F);
    }
}

TEST_CASE("gradient buffer: in sync mode it replaces earlier pushes of the step, and later ones are added to it") {
  Job job({.mode = Mode::kSync, .optimizer = {.lr = 1.0F}});
  Worker worker = job.join();
  const Variable variable = worker.variable({.name = "v", .shape = {2}}, zero);
  const std::vector<float> ones(2, 1.0F);
  const std::span<float> buffer = worker.gradient(variable);
  worker.push(variable, ones);
  std::fill(buffer.begin(), buffer.end(), 10.0F);
  worker.push(variable, buffer);
  worker.push(variable, ones);
  worker.step();
  CHECK(job.view().values("v") == std::vector<float>(2, -11.0F));
}

TEST_CASE("gradient buffer: several workers' gradients give the mean") {
  Job job({.workers = 3, .mode = Mode::kSync, .optimizer = {.lr = 1.0F}});
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number)
    threads.emplace_back([&, number] {
      Worker worker = job.join();
      const Variable variable = worker.variable({.name = "v", .shape = {3000}}, zero);
      const std::span<float> buffer = worker.gradient(variable);
      for (int step = 0; step < 50; ++step) {
        std::fill(buffer.begin(), buffer.end(), float(3 * number));
        worker.push(variable, buffer);
        worker.step();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(job.view().values("v") == std::vector<float>(3000, -150.0F));
}

TEST_CASE("gradient norm: a limit that was set after a gradient was published applies to it") {
  Job job({.workers = 2, .mode = Mode::kSync, .optimizer = {.lr = 1.0F}});
  Worker first = job.join(), second = job.join();
  const Variable a = first.variable({.name = "v", .shape = {4}}, zero);
  const Variable b = second.variable({.name = "v", .shape = {4}}, zero);
  const Variable added =
      first.variable({.name = "added", .shape = {1}, .rule = UpdateRule::kAdd}, zero);  // not part of the norm
  const std::vector<float> gradient(4, 5.0F);                                           // norm 10
  std::thread waiting([&] {
    first.push(a, gradient);
    first.push(added, std::vector<float>(1, 1000.0F));
    first.step();
  });
  JobControl(job.name.text()).change([](LiveSettings& settings) { settings.clip_norm = 1; });
  second.push(b, gradient);
  second.step();
  waiting.join();
  CHECK(job.view().values("v")[3] == doctest::Approx(-0.5F));
  CHECK(job.view().values("added")[0] == 1000.0F);
}
