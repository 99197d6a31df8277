// Complete jobs in one process, with workers that use the fake GPU and workers that do not.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/digits.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "support/fake_cuda.hpp"
#include "support/job.hpp"
#include "train/loop/trainer.hpp"

namespace ps_shm::test {

inline const train::DataSplit& digits() {
  static const train::DataSplit data = train::load_data("digits", train::embedded_digits());
  return data;
}

// The same with each pixel `times` times, and so much darker that sums over them stay about as large. A model "mlp" of 17
// times has more than 2 MiB.
inline train::DataSplit wide_digits(std::size_t times = 17) {
  train::DataSplit wide = digits();
  for (train::Dataset* part : {&wide.train, &wide.test}) {
    std::vector<float> images;
    for (const float pixel : part->images)
      images.insert(images.end(), times, pixel / std::sqrt(static_cast<float>(times)));
    part->images = std::move(images);
    part->features *= times;
  }
  return wide;
}

struct Box {
  FakeCuda cuda;
  FakeKernels transfers{cuda};
  FakeModelKernels kernels{cuda};
  device::GpuInfo gpu;

  explicit Box(const FakeBox& kind = {}) : cuda(kind), gpu(device::probe_gpus(cuda).gpus.at(0)) {}
  ~Box() {
    CHECK(cuda.faults().empty());
    CHECK(cuda.live_allocations() == 0);
  }
  train::GpuPlace place() {
    return {.gpu = gpu, .enqueue = train::Enqueue::kAhead, .cuda = &cuda, .transfers = &transfers, .kernels = &kernels};
  }
};

inline JobConfig job(Mode mode, std::uint32_t workers, std::uint64_t steps) {
  return config_of({.workers = workers, .mode = mode, .staleness = mode == Mode::kSsp ? 2U : 0U, .steps = steps});
}

struct Trained {
  std::vector<std::vector<float>> parameters;  // at the end
  double accuracy = 0.0;
  std::uint64_t digest = 0;
  std::vector<train::TrainResult> results;  // by rank
};

// Keeps threads at about the same step: a thread that is ahead waits. Otherwise, on a busy machine, one thread may make
// all steps of a short job before the others have started.
class Pace {
 public:
  explicit Pace(std::size_t threads) : steps_(threads) {}

  // Waits for threads that are more than some steps behind.
  void step(std::size_t thread) {
    constexpr std::uint64_t kLead = 8;
    const std::uint64_t steps = ++steps_[thread];
    for (const std::atomic<std::uint64_t>& others : steps_)
      while (steps > kLead && others < steps - kLead) std::this_thread::yield();
  }
  void leave(std::size_t thread) { steps_[thread] = std::numeric_limits<std::uint64_t>::max(); }

 private:
  std::vector<std::atomic<std::uint64_t>> steps_;
};

// Runs a job whose worker of rank r trains with options[r].
inline Trained train_job(const JobConfig& config, const char* model_name,
                         const std::vector<train::TrainOptions>& options, const train::DataSplit& split = digits()) {
  const train::Dataset& data = split.train;
  Server server(config);
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t rank = 0; rank < options.size(); ++rank)
    workers.push_back(std::make_unique<Worker>(test::options(config, rank)));
  Trained trained;
  const auto evaluated = train::make_model(model_name, data.features, data.classes);
  std::vector<std::optional<train::TrainResult>> results(options.size());
  std::vector<std::string> errors(options.size());
  Pace pace(options.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < options.size(); ++rank)
    threads.emplace_back([&, rank] {
      train::TrainOptions own = options[rank];
      if (config.mode == Mode::kAsync)  // in the other modes steps wait for each other
        own.stop_requested = [&] {
          pace.step(rank);
          return options[rank].stop_requested && options[rank].stop_requested();
        };
      try {
        const auto model = train::make_model(model_name, data.features, data.classes);
        results[rank].emplace(train::train(*workers[rank], *model, data, own));
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        workers[rank]->leave();
      }
      pace.leave(rank);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw Error(error);
  std::vector<const float*> pointers;
  for (const train::ParameterSpec& spec : evaluated->parameters()) {
    std::vector<float>& values = trained.parameters.emplace_back(spec.count());
    workers[0]->pull(workers[0]->variable(spec.name), values);
    pointers.push_back(values.data());
  }
  trained.accuracy = evaluated->evaluate(pointers, split.test).accuracy;
  trained.digest = JobView(config.job).digest();
  for (auto& result : results) trained.results.push_back(std::move(*result));
  return trained;
}

// Two workers with a GPU, one without. As in processes of their own, a stream that waits stops the calls of one only.
inline std::vector<train::TrainOptions> mixed(std::array<Box, 2>& boxes, train::TrainOptions options,
                                              Wire wire = Wire::kFloat32) {
  std::vector<train::TrainOptions> all(3, options);
  for (const std::size_t rank : {0U, 1U}) {
    all[rank].gpu = boxes[rank].place();
    all[rank].gpu->wire = wire;
  }
  return all;
}

inline double worst_difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    for (std::size_t k = 0; k < a.parameters[i].size(); ++k)
      worst = std::max(worst, std::abs(double(a.parameters[i][k]) - double(b.parameters[i][k])));
  return worst;
}

// The distance between parameters that started equal after some steps of one worker each; both sum in float32.
inline constexpr double kRounding = 2e-5;

inline void check_same_as_processor(const JobConfig& config, const train::TrainOptions& options,
                                    const FakeBox& kind = {}, double resident_share = 0.5) {
  Box box(kind);
  const Trained expected = train_job(config, "mlp", {options});
  train::TrainOptions with_gpu = options;
  with_gpu.gpu = box.place();
  with_gpu.gpu->resident_share = resident_share;
  JobConfig again = config;
  again.job = unique_job_name();
  const Trained found = train_job(again, "mlp", {with_gpu});
  CHECK(worst_difference(expected, found) < kRounding);
  CHECK(found.results[0].last.loss == doctest::Approx(expected.results[0].last.loss).epsilon(1e-3));
  CHECK(found.results[0].last.steps == expected.results[0].last.steps);
  CHECK(found.results[0].last.examples == expected.results[0].last.examples);
  REQUIRE(found.results[0].gpu);
  CHECK(found.results[0].gpu->is_resident == (resident_share > 0));
}

}  // namespace ps_shm::test
