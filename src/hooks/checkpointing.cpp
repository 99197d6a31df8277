// The hook that saves checkpoints of the job.
#include <optional>
#include <string>
#include <utility>

#include "hooks/due.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "persistence/checkpoint_saver.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm {
namespace {

using hooks::seconds_now;

class Checkpointing final : public Hook {
 public:
  explicit Checkpointing(CheckpointingOptions options) : options_(std::move(options)), saver_(settings_of(options_)) {}

  void begin(StepLoop& loop) override {
    if (!loop.worker().is_chief()) return;
    dir_.emplace(options_.dir);
    saver_.begin(seconds_now(), loop.last().global_step, loop.last().global_step);
  }

  void after_step(StepLoop& loop, const StepReport& report) override {
    if (!dir_) return;
    saver_.add_loss(report.loss);
    const double now = seconds_now();
    if (!saver_.due().is_now(now, report.global_step)) return;
    saver_.due().move_past(now, report.global_step);
    save(loop);
  }

  void end(StepLoop& loop) override {
    if (dir_ && loop.worker().global_step() != saver_.saved()) save(loop);
    dir_.reset();
  }

 private:
  static persistence::SaverSettings settings_of(const CheckpointingOptions& options) {
    const config::Interval every = hooks::interval_of(options.every);
    if (options.dir.empty()) throw Error("checkpointing: `dir` is empty; name the folder");
    if (options.keep == 0) throw Error("checkpointing: `keep` is 0; keep at least 1");
    const auto log = [to = options.log](const std::string& line) { hooks::tell(to, line); };
    return {.dir = options.dir, .every = every, .retention = {.newest = options.keep}, .say = log, .warn = log};
  }

  void save(StepLoop& loop) {
    std::string folder;
    try {
      const double began = seconds_now();
      const JobView view(loop.worker().config().job);
      CheckpointOptions options;
      options.group = options_.group;
      options.loss = saver_.mean_loss();
      folder = Checkpoint::save(view, options_.dir, options);
      saver_.reset_losses();
      saver_.written(folder, Checkpoint(folder).global_step(), seconds_now() - began, loop.worker().config().restore);
    } catch (const Error& error) {
      return saver_.failed(error.what());
    }
    loop.saved(folder);
  }

  const CheckpointingOptions options_;
  persistence::CheckpointSaver saver_;
  std::optional<persistence::CheckpointDir> dir_;
};

}  // namespace

std::shared_ptr<Hook> checkpointing(CheckpointingOptions options) {
  return std::make_shared<Checkpointing>(std::move(options));
}

}  // namespace ps_shm
