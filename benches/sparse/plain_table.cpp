// The base line: one loop over a table in memory of its own, with the trainer's arithmetic.
#include <chrono>

#include "schemes.hpp"
#include "train/loop/local_table.hpp"

namespace ps_shm::bench {
namespace {

class PlainTable : public Table {
 public:
  explicit PlainTable(const Task& task) : task_(task), table_(config_of(task), *task.make_model(), {}) {}

  // In this process, whose table it is. The first batch is not timed, as the others' are not that wait for each other.
  std::vector<Ran> run(const Span& span, std::uint64_t epoch) final {
    using Clock = std::chrono::steady_clock;
    Loop loop(task_, 0, epoch);
    table_.set_step(epoch);
    const auto begin = Clock::now();
    Ran ran;
    do {
      table_.with_rows([&](auto& rows) { loop.run_batch(rows); });
      ++ran.rounds;
      ran.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (ran.rounds < span.most && (ran.rounds < span.least || ran.seconds < span.seconds));
    return {ran};
  }

  std::vector<float> values() const final { return table_.values(); }

 private:
  static JobConfig config_of(const Task& task) {
    JobConfig config;
    config.optimizer.lr = task.lr;
    config.optimizer.schedule.kind = Schedule::Kind::kStep;  // a step is an epoch here
    config.optimizer.schedule.decay = task.back_off;
    config.optimizer.schedule.decay_steps = 1;
    config.seed = task.seed;
    return config;
  }

  const Task& task_;
  train::LocalTable table_;
};

}  // namespace

std::unique_ptr<Table> make_plain_table(const Task& task) { return std::make_unique<PlainTable>(task); }

}  // namespace ps_shm::bench
