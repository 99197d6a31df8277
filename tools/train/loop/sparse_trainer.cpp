#include "train/loop/sparse_trainer.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "train/log/digest.hpp"
#include "train/loop/example_steps.hpp"
#include "train/loop/gpu_examples.hpp"
#include "train/loop/local_table.hpp"
#include "train/loop/row_decay.hpp"
#include "train/models/sparse/sparse_metrics.hpp"
#include "update/bytes.hpp"

namespace ps_shm::train {
namespace {

// Times are measured in one of so many batches: measuring each example would slow all of them down.
constexpr std::uint64_t kTimedBatches = 16;

// The table's rows in the parameter server.
struct ServerRows {
  Worker& worker;
  const Variable& table;
  using Id = std::uint32_t;
  static constexpr bool kSumsUp = true;

  void pull(std::span<const std::uint32_t> ids, std::span<float> out) const { worker.pull_rows(table, ids, out); }
  void push(std::span<const std::uint32_t> ids, std::span<const float> gradients) const {
    worker.push_rows(table, ids, gradients);
  }
  void prefetch(std::span<const std::uint32_t> ids) const noexcept { worker.prefetch_rows(table, ids); }
};

// Rows of a table by key.
struct KeyedRows {
  Table& table;
  using Id = std::uint64_t;
  static constexpr bool kSumsUp = true;

  void pull(std::span<const std::uint64_t> keys, std::span<float> out) const { table.pull(keys, out); }
  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) const {
    table.push(keys, gradients);
  }
  void prefetch(std::span<const std::uint64_t> keys) const noexcept { table.prefetch(keys); }
};

RowL2 decay_of(const Optimizer& optimizer, const SparseTrainOptions& options) noexcept {
  if (update::traits_of(optimizer.rule).regularizes_itself) return {};
  return {optimizer.l2, options.factor_l2.value_or(optimizer.l2)};
}

void check_rule(const Optimizer& optimizer) {
  const update::Traits& traits = update::traits_of(optimizer.rule);
  if (traits.is_sum)
    throw Error(fmt::format(
        "optimizer {} would only sum the gradients: use another one for a sparse model, such as sgd or adagrad",
        traits.name));
  if (traits.reads_by_rate && !optimizer.schedule.is_constant())
    throw Error(fmt::format(
        "optimizer {} computes rows from a fixed learning rate: use `lr-schedule` constant, or another `optimizer`",
        traits.name));
}

// Extrapolates the time of the phases of all batches from those that were measured.
void share_out(const PhaseSeconds& timed, double seconds, PhaseSeconds& phases) {
  const double sum = timed.pull + timed.gradient + timed.push;
  if (sum <= 0) return;
  phases.pull = seconds * timed.pull / sum;
  phases.gradient = seconds * timed.gradient / sum;
  phases.push = seconds * timed.push / sum;
}

void check_job(const JobConfig& config) {
  if (traits_of(config.mode).needs_versioned)
    throw Error(
        fmt::format("job {} has mode {}: rows are updated in place, without steps; start it with `mode` async or ssp",
                    config.job, to_string(config.mode)));
  check_rule(config.optimizer);
}

// Workers of a job have their rows either in a variable or in a table by key. Looked at before the own one is declared,
// as that would stay in the job, and after, as a worker of the other kind may join at the same moment.
void check_no_other_kind(const Worker& worker, const std::string& name, bool is_keyed) {
  const JobView job(worker.config().job);
  if (is_keyed) {
    for (const VariableInfo& variable : job.variables())
      if (variable.name == name)
        throw Error(
            fmt::format("job {} trains the model without `keyed`: its rows are in variable '{}'; join it without "
                        "`keyed`, or start another job",
                        worker.config().job, name),
            ErrorCode::kIncompatible);
  } else {
    for (const TableInfo& table : job.tables())
      if (table.spec.name == name)
        throw Error(fmt::format("job {} trains the model with `keyed`: its rows are in a table by key; join it with "
                                "`keyed`, or start another job",
                                worker.config().job),
                    ErrorCode::kIncompatible);
  }
}

template <class Rows>
SparseResult train_rows(Worker& worker, SparseModel& model, const SparseData& data, const SparsePart& part,
                        const SparseTrainOptions& options, Rows rows) {
  const JobConfig& config = worker.config();
  hooks::NanGuard guard = options.nan_guard(fmt::format("worker {}", worker.rank()), &worker);
  const RowDecay decay(decay_of(config.optimizer, options), data, part, model.table().shape[0]);
  SparseStream stream(data, part, options.seed.value_or(config::seed_of(config)), worker.rank());
  stream.skip(worker.examples_before());
  std::unique_ptr<GpuExamples> on_gpu;
  std::optional<ExampleSteps> on_cpu;
  if (options.gpu)
    on_gpu = make_gpu_examples(
        {worker, model, stream, decay, guard, options.batch, options.combine, *options.gpu, options.warn}, rows.table);
  else
    on_cpu.emplace(model, stream, decay, guard, options.batch, options.combine);

  SparseResult totals;
  Straggler straggler(options.delay, config::seed_of(config), worker.rank());
  TrainLog log(options, options.batch);
  const auto is_over = [&] { return worker.finished() || log.is_stop_requested(); };
  std::uint64_t steps = 0, global_steps = worker.global_step();
  double work_seconds = 0.0;
  PhaseSeconds timed;
  PhaseTimer timer(options.trace);
  try {
    while (!is_over()) {
      timer.begin_step(global_steps);
      straggler.begin_work();
      PhaseSeconds* const phases = steps % kTimedBatches == 0 ? &timed : nullptr;
      const double loss = on_gpu ? on_gpu->run(phases) : on_cpu->run(rows, phases);
      timer.end(work_seconds, "batch");
      if (straggler.is_one()) {
        const bool goes_on = straggler.slow_down(is_over);
        timer.end(totals.phases.delay, "delay");
        if (!goes_on) break;
      }
      if (options.is_observed(global_steps)) {
        StepView values{.step = global_steps, .steps = steps, .examples = steps * options.batch, .loss = loss};
        if (on_cpu) values.gradients = {{model.table().name, on_cpu->last_gradients()}};
        options.observer->observe(values);
        timer.begin();
      }
      global_steps = worker.step();
      timer.end(totals.phases.step, "step()");
      timer.end_step();
      worker.report(loss, ++steps * options.batch);
      log.enter(loss, global_steps);
    }
  } catch (const JobFinished&) {  // the ps was told to end while this worker waited
  } catch (const Interrupted&) {
  }
  totals.is_interrupted = log.is_stop_requested();
  share_out(timed, work_seconds, totals.phases);
  log.finish(totals);
  if (on_gpu) totals.gpu = on_gpu->report();
  return totals;
}

}  // namespace

SparseResult train_sparse(Worker& worker, SparseModel& model, const SparseData& data, const SparsePart& part,
                          const SparseTrainOptions& options, std::optional<Variable>* table) {
  const JobConfig& config = worker.config();
  check_job(config);
  VariableSpec spec;
  spec.name = model.table().name;
  spec.shape.assign(model.table().shape.begin(), model.table().shape.end());
  spec.dtype = options.dtype;
  spec.layout = Layout::kInplace;
  spec.regularize = update::traits_of(config.optimizer.rule).regularizes_itself;
  check_no_other_kind(worker, spec.name, false);
  const Variable variable = worker.variable(spec, [&](std::span<float> out) {
    update::fill_values(out, spec.element_count(), spec.dtype, [&](std::span<float> values) {
      model.initialize(config::seed_of(config), 0, values);
      options.replace_first(spec.name, values);
    });
  });
  check_no_other_kind(worker, spec.name, false);
  if (table != nullptr) *table = variable;
  return train_rows(worker, model, data, part, options, ServerRows{worker, variable});
}

SparseResult train_keyed(Worker& worker, SparseModel& model, const SparseData& data, const SparsePart& part,
                         const SparseTrainOptions& options, const TableOptions& rows, std::optional<Table>* table) {
  const JobConfig& config = worker.config();
  check_job(config);
  TableSpec spec;
  spec.name = model.table().name;
  spec.row_size = model.table().shape[1];
  spec.dtype = options.dtype;
  spec.max_rows = rows.max_rows;
  spec.admit_after = rows.admit_after;
  spec.evict = rows.evict;
  spec.ttl = rows.ttl;
  spec.initial_range = model.initial_range();
  spec.seed = config::seed_of(config);
  spec.regularize = update::traits_of(config.optimizer.rule).regularizes_itself;
  check_no_other_kind(worker, spec.name, true);
  Table keyed = worker.table(spec);
  check_no_other_kind(worker, spec.name, true);
  if (table != nullptr) *table = keyed;
  return train_rows(worker, model, data, part, options, KeyedRows{keyed});
}

SparseMetrics evaluate(SparseModel& model, Table& table, const SparseData& data, const SparsePart& part) {
  return evaluate(
      model,
      [&](std::span<const std::uint64_t> keys, std::span<float> rows, std::span<bool> found) {
        table.pull(keys, rows, found);
      },
      data, part);
}

SparseAloneResult train_sparse_alone(const JobConfig& config, SparseModel& model, const SparseData& data,
                                     const SparsePart& part, const SparseTrainOptions& options) {
  check_rule(config.optimizer);
  hooks::NanGuard guard = options.nan_guard("standalone", nullptr);
  LocalTable table(config, model, options);
  const RowDecay decay(decay_of(config.optimizer, options), data, part, model.table().shape[0]);
  const std::uint64_t seed = options.seed.value_or(config::seed_of(config));
  SparseStream stream(data, part, seed, 0);
  stream.skip(options.examples_before());
  ExampleSteps examples(model, stream, decay, guard, options.batch, options.combine);

  SparseAloneResult result;
  Straggler straggler(options.delay, seed, 0);
  TrainLog log(options, options.batch);
  const auto is_over = [&] { return log.is_stop_requested(); };
  double loss = 0.0;
  std::uint64_t step = options.first_step(), seen = options.examples_before();
  const auto keep = [&](bool is_last) {
    if (options.keep)
      options.keep(step, loss, is_last, [&] { return LocalState{step, seen, table.arrays(model.table())}; });
  };
  while (step < config.steps && !is_over()) {
    straggler.begin_work();
    table.set_step(step);
    loss = table.with_rows([&](auto& rows) { return examples.run(rows); });
    if (!straggler.slow_down(is_over)) break;
    if (options.is_observed(step)) {
      const std::vector<float> values = table.values();
      options.observer->observe({.step = step,
                                 .steps = step,
                                 .examples = step * options.batch,
                                 .loss = loss,
                                 .gradients = {{model.table().name, examples.last_gradients()}},
                                 .parameters = {{model.table().name, values}}});
    }
    log.enter(loss, ++step);
    seen += options.batch;
    keep(false);
  }
  keep(true);
  result.is_interrupted = is_over();
  log.finish(result);
  result.table = table.values();
  return result;
}

std::uint64_t digest(const SparseModel& model, std::span<const float> table) {
  Digest all;
  all.add(model.table().name, table);
  return all.value();
}

std::uint64_t count_examples(const SparseInfo& info, const SparsePart& part) {
  if (part.test_share <= 0) return part.is_test ? 0 : info.examples;
  std::uint64_t count = 0;
  for (std::uint64_t example = 0; example < info.examples; ++example) count += part.has(example);
  return count;
}

}  // namespace ps_shm::train
