// Adding and assigning in sync mode: contributions to a step, applied in rank order before and after the mean gradient.
#include <doctest/doctest.h>

#include <functional>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/server.hpp"
#include "support/job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr std::uint64_t kElements = 1000;  // four chunks

std::vector<float> all(float value) { return std::vector<float>(kElements, value); }

JobConfig in_steps(std::uint32_t workers, Reduce reduce, const Optimizer& optimizer = {.lr = 0.5F}) {
  return config_of(
      {.workers = workers, .mode = Mode::kSync, .reduce = reduce, .chunk_bytes = 1024, .optimizer = optimizer});
}

// Each rank does its part of every step; returns the values afterwards, or nothing if the elements differ.
using Part = std::function<void(Worker&, const Variable&)>;
std::vector<float> run(const JobConfig& config, const std::vector<Part>& parts, int steps = 1) {
  Server server(config);
  std::vector<float> values(kElements);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < parts.size(); ++rank)
    threads.emplace_back([&, rank] {
      Worker worker(options(config, rank));
      const Variable variable = worker.variable({.name = "v", .shape = {kElements}, .regularize = true}, zero);
      for (int step = 0; step < steps; ++step) {
        parts[rank](worker, variable);
        worker.step();
      }
      worker.barrier();
      if (rank == 0) worker.pull(variable, values);
      worker.barrier();
    });
  for (std::thread& thread : threads) thread.join();
  return values;
}

}  // namespace

TEST_CASE("a step assigns in rank order, then moves by the mean gradient, then adds") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(int(reduce));
    const Part assign_ten = [](Worker& worker, const Variable& v) { worker.assign(v, all(10)); };
    const Part assign_twenty = [](Worker& worker, const Variable& v) { worker.assign(v, all(20)); };
    const Part push_two = [](Worker& worker, const Variable& v) { worker.push(v, all(2)); };
    const Part push_four = [](Worker& worker, const Variable& v) { worker.push(v, all(4)); };
    const Part add_twice = [](Worker& worker, const Variable& v) {
      worker.add(v, all(0.25F));
      worker.add(v, all(1));
    };
    const Part nothing = [](Worker&, const Variable&) {};
    CHECK(run(in_steps(3, reduce), {assign_ten, push_two, add_twice}) == all(10 - 1 + 1.25F));
    CHECK(run(in_steps(3, reduce), {add_twice, assign_twenty, assign_ten}) == all(10 + 1.25F));
    CHECK(run(in_steps(4, reduce), {assign_twenty, push_four, push_two, assign_ten}) == all(10 - 1.5F));
    CHECK(run(in_steps(2, reduce), {nothing, add_twice}, 3) == all(3 * 1.25F));
    CHECK(run(in_steps(2, reduce), {push_two, push_four}, 2) == all(-3));
    // Decay shows the order.
    const JobConfig decaying = in_steps(3, reduce, {.lr = 0.5F, .l2 = 0.5F});
    CHECK(run(decaying, {add_twice, push_two, assign_ten}) == all(10 - 0.5F * (2 + 5) + 1.25F));
  }
}

TEST_CASE("if a worker assigns twice in a step the last assignment wins, and a reset stays in effect") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    const JobConfig config = in_steps(2, reduce, {.rule = UpdateRule::kMomentum, .lr = 0.5F, .momentum = 0.5F});
    int step = 0;
    const Part assigns = [&](Worker& worker, const Variable& v) {
      if (step++ == 0) return worker.push(v, all(2));
      if (step > 2) return worker.push(v, all(0));
      worker.assign(v, all(7), Slots::kReset);
      worker.assign(v, all(8));
    };
    const Part nothing = [](Worker&, const Variable&) {};
    CHECK(run(config, {assigns, nothing}, 3) == all(8));  // no momentum of the first step is left
  }
}

TEST_CASE("adam counts from zero after a reset, and its first step may be that of the same step") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic})
    for (const bool has_push : {false, true}) {
      CAPTURE(int(reduce));
      const JobConfig config =
          in_steps(2, reduce, {.rule = UpdateRule::kAdam, .lr = 0.5F, .beta1 = 0.5F, .beta2 = 0.75F});
      int mine = 0, others = 0;
      const Part resets = [&](Worker& worker, const Variable& v) {
        if (mine++ == 2) return static_cast<void>(worker.assign(v, all(8), Slots::kReset));
        worker.push(v, all(2));
      };
      const Part pushes = [&](Worker& worker, const Variable& v) {
        if (others++ != 2 || has_push) worker.push(v, all(2));
      };
      for (const float value : run(config, {resets, pushes}, 5))
        REQUIRE(value == doctest::Approx(8 - 0.5F * (has_push ? 3 : 2)).epsilon(1e-5));
    }
}

TEST_CASE("two kinds of contribution by a worker to one variable in a step are an error, and the step continues") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(int(reduce));
    Job job(in_steps(1, reduce));
    Worker worker = job.join();
    const Variable v = worker.variable({.name = "v", .shape = {kElements}}, zero);
    const Variable w = worker.variable({.name = "w", .shape = {1}}, zero);
    worker.add(v, all(1));
    worker.push(w, 1.0F);
    CHECK_THROWS_WITH_AS(worker.push(v, all(1)),
                         "variable 'v' was added to in this step and cannot be pushed before step(): in sync mode a "
                         "worker may do only one of these to a variable in a step",
                         Error);
    CHECK_THROWS_AS(worker.assign(v, all(1)), Error);
    CHECK_THROWS_AS(worker.add(w, 1.0F), Error);
    worker.step();
    worker.push(v, all(2));  // another step
    CHECK_THROWS_AS(worker.add(v, all(1)), Error);
    worker.step();
    CHECK(pulled(worker, v) == all(1 - 1));
    CHECK(worker.pull(w) == -0.5F);
  }
}

TEST_CASE("additions count in no gradient's norm, even if the limit came after the push") {
  Job job(in_steps(1, Reduce::kOrdered));
  Worker worker = job.join();
  const Variable v = worker.variable({.name = "v", .shape = {kElements}}, zero);
  const Variable w = worker.variable({.name = "w", .shape = {1}}, zero);
  worker.add(v, all(100));
  worker.push(w, 4.0F);
  JobControl(job.name.text()).change([](LiveSettings& live) { live.clip_norm = 1.0F; });
  worker.step();
  CHECK(worker.pull(w) == -0.5F);
  worker.add(v, all(100));
  worker.push(w, 4.0F);
  worker.step();
  CHECK(worker.pull(w) == -1.0F);
  CHECK(pulled(worker, v) == all(200));
}

TEST_CASE("an assignment is the same if its values already lie in the worker's gradient memory") {
  Job job(in_steps(1, Reduce::kOrdered));
  Worker worker = job.join();
  const Variable v = worker.variable({.name = "v", .shape = {kElements}}, zero);
  const std::span<float> buffer = worker.gradient(v);
  std::fill(buffer.begin(), buffer.end(), 3.0F);
  CHECK(worker.assign(v, buffer).of_chunks.empty());
  worker.step();
  std::fill(buffer.begin(), buffer.end(), 4.0F);
  worker.add(v, buffer);
  worker.step();
  CHECK(pulled(worker, v) == all(7));
}

TEST_CASE("the bits of a step do not depend on which worker applies it") {
  std::vector<std::vector<float>> found;
  for (std::uint32_t again = 0; again < 4; ++again) {
    JobConfig config = in_steps(3, Reduce::kOrdered, {.rule = UpdateRule::kAdam, .lr = 0.5F});
    config.threads = again % 2 + 1;
    const auto numbers = [](float by) {
      std::vector<float> values(kElements);
      for (std::size_t i = 0; i < kElements; ++i) values[i] = by / float(i + 3);
      return values;
    };
    found.push_back(run(config,
                        {[&](Worker& worker, const Variable& v) { worker.add(v, numbers(1)); },
                         [&](Worker& worker, const Variable& v) { worker.push(v, numbers(-7)); },
                         [&](Worker& worker, const Variable& v) { worker.add(v, numbers(0.3F)); }},
                        20));
    CHECK(found.back() == found.front());
  }
}

TEST_CASE("what a predecessor of the rank had not published is discarded in its successor's step") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(int(reduce));
    Job job(in_steps(1, reduce));
    {
      Worker first = job.join(0);
      const Variable v = first.variable({.name = "v", .shape = {kElements}}, zero);
      first.step();
      first.add(v, all(1));
    }
    Worker second = job.join(0);
    const Variable v = second.variable("v");
    second.push(v, all(0));
    second.step();
    CHECK(pulled(second, v) == all(0));
  }
}
