#include "common/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cli/command_line.hpp"
#include "cli/output.hpp"
#include "common/children.hpp"
#include "common/digits.hpp"
#include "common/sparse_setup.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "train/loop/trainer.hpp"

namespace ps_shm::tools {
namespace {

class Dense final : public Workload {
 public:
  explicit Dense(const TrainingSettings& training) {
    train::DataSplit data = load_dense_data(training);
    model_ = train::make_model(training.model, data.train.features, data.train.classes);
    examples_ = data.train.count;
    batch_ = training.batch != 0 ? training.batch : train::default_batch(data.train);
    test_ = std::move(data.test);
  }

  std::span<const train::ParameterSpec> variables() const override { return model_->parameters(); }

  report::Metrics evaluate(std::span<const std::span<const float>> values) override {
    std::vector<const float*> parameters;
    for (const std::span<const float> one : values) parameters.push_back(one.data());
    return report::metrics_of(model_->evaluate(parameters, test_));
  }

  std::uint64_t examples() const override { return examples_; }
  std::uint64_t batch() const override { return batch_; }

 private:
  train::Dataset test_;
  std::unique_ptr<train::Model> model_;
  std::uint64_t examples_ = 0, batch_ = 0;
};

class Sparse final : public Workload {
 public:
  explicit Sparse(const TrainingSettings& training) : setup_(training, true), is_keyed_(training.sparse.keyed) {}

  std::span<const train::ParameterSpec> variables() const override {
    return {&setup_.model().table(), is_keyed_ ? std::size_t{0} : std::size_t{1}};
  }
  report::Metrics evaluate(std::span<const std::span<const float>> values) override {
    return setup_.evaluate(values[0]);
  }
  bool is_judged_by_training_data() const override { return setup_.is_judged_by_training_data(); }
  std::optional<double> epochs(std::uint64_t steps) const override {
    return double(steps) * double(setup_.batch()) / double(setup_.examples());
  }
  std::uint64_t examples() const override { return setup_.examples(); }
  std::uint64_t batch() const override { return setup_.batch(); }

 private:
  SparseSetup setup_;
  bool is_keyed_;
};

// The steps that take so many epochs together: only the last step may exceed them.
std::uint64_t steps_of(std::uint64_t epochs, std::uint64_t examples, std::uint64_t of_step) {
  __extension__ typedef unsigned __int128 Product;
  const Product steps = (Product{epochs} * examples + of_step - 1) / of_step;
  return static_cast<std::uint64_t>(std::clamp<Product>(steps, 1, std::numeric_limits<std::uint64_t>::max()));
}

}  // namespace

std::vector<std::span<const float>> spans_of(const std::vector<std::vector<float>>& values) {
  return {values.begin(), values.end()};
}

train::LoadHooks load_hooks() { return {is_stop_requested, tell}; }

std::unique_ptr<Workload> load_workload(const TrainingSettings& training) {
  if (training.is_sparse()) return std::make_unique<Sparse>(training);
  return std::make_unique<Dense>(training);
}

train::DataSplit load_dense_data(const TrainingSettings& training) {
  train::DataSplit data = train::load_data(training.data, train::embedded_digits(), load_hooks());
  check_batch(training, data.train.count);
  return data;
}

void check_batch(const TrainingSettings& training, std::uint64_t examples) {
  if (training.batch > examples)
    throw Error(
        fmt::format("--batch {}: exceeds the {} training examples of {}", training.batch, examples, training.data));
}

void complete_job(std::uint64_t examples, std::uint64_t batch, const TrainingSettings& training, JobConfig& job) {
  const std::uint64_t of_step = batch * training.push_every * pushes_of_step(job);
  if (training.steps != 0)
    job.steps = training.steps;
  else if (training.epochs != 0 || training.is_sparse())
    job.steps = steps_of(training.epochs != 0 ? training.epochs : kDefaultSparseEpochs, examples, of_step);
  else
    job.steps = std::max<std::uint64_t>(1, train::default_steps(training.data) / training.push_every);
  if (training.epoch_schedule.empty()) return;
  job.optimizer.schedule = resolve_schedule(training.epoch_schedule, 1);
  job.optimizer.schedule.decay_steps = static_cast<float>(double(examples) / double(of_step));  // not rounded
}

}  // namespace ps_shm::tools
