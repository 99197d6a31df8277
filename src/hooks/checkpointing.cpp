// The hook that saves checkpoints of the job.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "hooks/due.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm {
namespace {

using hooks::seconds_now;

class Checkpointing final : public Hook {
 public:
  explicit Checkpointing(CheckpointingOptions options)
      : options_(std::move(options)), every_(hooks::interval_of(options_.every)) {
    if (options_.dir.empty()) throw Error("checkpointing: `dir` is empty; name the folder");
    if (options_.keep == 0) throw Error("checkpointing: `keep` is 0; keep at least 1");
  }

  void begin(StepLoop& loop) override {
    if (!loop.worker().is_chief()) return;
    dir_.emplace(options_.dir);
    saved_ = loop.last().global_step;
    due_.emplace(every_, seconds_now(), saved_);
  }

  void after_step(StepLoop& loop, const StepReport& report) override {
    if (!dir_) return;
    losses_ += report.loss;
    ++count_;
    const double now = seconds_now();
    if (!due_->is_now(now, report.global_step)) return;
    due_->move_past(now, report.global_step);
    save(loop);
  }

  void end(StepLoop& loop) override {
    if (dir_ && loop.worker().global_step() != saved_) save(loop);
    dir_.reset();
  }

 private:
  void save(StepLoop& loop) {
    std::string folder;
    try {
      const double began = seconds_now(), loss = losses_ / double(count_);
      const JobView view(loop.worker().config().job);
      CheckpointOptions options;
      options.group = options_.group;
      if (std::isfinite(loss)) options.loss = loss;
      folder = Checkpoint::save(view, options_.dir, options);
      saved_ = Checkpoint(folder).global_step();
      losses_ = 0.0, count_ = 0;
      persistence::remove_old_checkpoints(options_.dir, {.newest = options_.keep}, folder,
                                          loop.worker().config().restore);
      hooks::tell(options_.log, fmt::format("checkpoint {} written in {:.2f} s", folder, seconds_now() - began));
    } catch (const Error& error) {
      return hooks::tell(options_.log, fmt::format("checkpoint failed: {}; training continues", error.what()));
    }
    loop.saved(folder);
  }

  const CheckpointingOptions options_;
  const config::Interval every_;
  std::optional<persistence::CheckpointDir> dir_;
  std::optional<config::Due> due_;
  std::uint64_t saved_ = 0, count_ = 0;
  double losses_ = 0.0;
};

}  // namespace

std::shared_ptr<Hook> checkpointing(CheckpointingOptions options) {
  return std::make_shared<Checkpointing>(std::move(options));
}

}  // namespace ps_shm
