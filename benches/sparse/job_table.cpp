// Rows of a real job's in-place variable: exact, and racy.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "schemes.hpp"

namespace ps_shm::bench {
namespace {

JobConfig config_of(bool is_exact, int workers, const Task& task) {
  static int number = 0;
  JobConfig config;
  config.job = fmt::format("bench-{}-{}", getpid(), number++);
  config.workers = std::uint32_t(workers);
  config.layout = Layout::kInplace;
  config.adds = is_exact ? Adds::kExact : Adds::kRacy;
  config.optimizer.lr = task.lr;
  config.seed = task.seed;
  return config;
}

// What a worker's process holds.
struct Member {
  Worker worker;
  Variable variable;
  Loop loop;
  using Id = std::uint32_t;
  static constexpr bool kSumsUp = true;

  void pull(std::span<const std::uint32_t> ids, std::span<float> out) { worker.pull_rows(variable, ids, out); }
  void push(std::span<const std::uint32_t> ids, std::span<const float> gradients) {
    worker.push_rows(variable, ids, gradients);
  }
  void prefetch(std::span<const std::uint32_t> ids) const noexcept { worker.prefetch_rows(variable, ids); }
};

Worker join(const JobConfig& config, int number) {
  WorkerOptions options;
  options.job = config.job;
  options.rank = std::uint32_t(number);
  options.log = [](const std::string&) {};  // large tables take their time to be initialised
  return Worker(std::move(options));
}

Variable declare(Worker& worker, const train::SparseModel& model, std::uint64_t seed) {
  VariableSpec spec;
  spec.name = model.table().name;
  spec.shape.assign(model.table().shape.begin(), model.table().shape.end());
  spec.layout = Layout::kInplace;
  return worker.variable(spec, [&](std::span<float> out) { model.initialize(seed, 0, out); });
}

class JobTable : public Table {
 public:
  JobTable(bool is_exact, int workers, const Task& task)
      : task_(task),
        workers_(workers),
        name_(task.make_model()->table().name),
        config_(config_of(is_exact, workers, task)),
        server_(config_) {}

  std::vector<Ran> run(const Span& span, std::uint64_t epoch) final {
    if (task_.back_off != 1.0F) {
      JobControl(config_.job).change([&](LiveSettings& settings) {
        settings.lr = task_.lr * std::pow(task_.back_off, float(epoch));
      });
    }
    return run_processes(workers_, span, [&](int number) {
      Worker worker = join(config_, number);
      const Variable variable = declare(worker, *task_.make_model(), task_.seed);
      const std::shared_ptr<Member> member(new Member{std::move(worker), variable, Loop(task_, number, epoch)});
      return Work{.prepare = [] {},
                  .rounds = [member](std::uint64_t count) -> std::uint64_t {
                    for (; count > 0; --count) {
                      member->loop.run_batch(*member);
                      member->worker.step();
                    }
                    return 0;
                  }};
    });
  }

  std::vector<float> values() const final { return JobView(config_.job).values(name_); }
  std::optional<StalenessSummary> staleness() const final { return JobView(config_.job).staleness(); }

 private:
  const Task& task_;
  int workers_;
  std::string name_;
  JobConfig config_;
  Server server_;
};

}  // namespace

std::unique_ptr<Table> make_job_table(bool is_exact, int workers, const Task& task) {
  return std::make_unique<JobTable>(is_exact, workers, task);
}

}  // namespace ps_shm::bench
