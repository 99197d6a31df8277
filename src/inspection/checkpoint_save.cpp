// Checkpoint::save: a snapshot of a job, written as a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/base/racing.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/table/row_form.hpp"
#include "shm/table/table_segment.hpp"
#include "update/elements.hpp"

namespace ps_shm {
namespace {

// The variables of a snapshot, in the order of their names. They are read when they are written.
persistence::CheckpointArrays arrays_of(const Snapshot& snapshot, const std::vector<VariableInfo>& variables,
                                        const std::function<bool()>& stop_requested) {
  persistence::CheckpointArrays all;
  for (const VariableInfo& variable : variables) {
    const auto array = [&](const std::string& slot) {
      return [&, name = variable.name, slot](std::uint64_t begin, std::span<std::byte> out) {
        if (stop_requested && stop_requested()) throw Interrupted();
        snapshot.read(name, begin, out, slot);
      };
    };
    all.add({.name = variable.name,
             .dtype = variable.dtype,
             .shape = variable.shape,
             .updates = snapshot.updates(variable.name),
             .is_point_in_time = snapshot.is_point_in_time(variable.name),
             .slots = {}},
            array(""));
    for (std::size_t slot = 0; slot < variable.slots.size(); ++slot) {
      std::vector<std::uint64_t> shape = variable.shape;
      if (slot + variable.row_slots >= variable.slots.size()) shape.resize(1);  // of rows
      all.add_slot(variable.slots[slot], std::move(shape), array(variable.slots[slot]));
    }
  }
  return all;
}

// The tables by key of the job, in the order of their names. They are read when they are written.
class SavedTables {
 public:
  SavedTables(const JobConfig& config, float lr, const std::function<bool()>& stop_requested)
      : config_(config), lr_(lr), stop_requested_(stop_requested) {
    shm::AttachOutcome outcome;
    const auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
    if (!job) return;
    for (shm::Segment& segment : shm::find_tables(*job)) {
      const std::string name(shm::text_of(shm::table_record(segment).name));
      parts_[name].push_back(std::make_unique<shm::TablePart>(std::move(segment), [](std::uint32_t) { return true; }));
    }
    std::erase_if(parts_, [](const auto& one) { return one.second.front()->record().parts != one.second.size(); });
  }

  bool empty() const noexcept { return parts_.empty(); }

  void add_to(persistence::CheckpointArrays& all) const {
    for (const auto& [name, parts] : parts_) {
      const shm::TableShm& record = parts.front()->record();
      const shm::RowForm form(record);
      all.add_table({.stored = {.name = name,
                                .dtype = form.dtype(),
                                .row_size = form.width(),
                                .rows = 0,
                                .rule = update::traits_of(static_cast<UpdateRule>(record.rule)).name,
                                .slots = form.slots(),
                                .row_slots = form.row_slots()},
                     .dump = [this, &parts = parts](const auto& append) { dump(parts, append); }});
    }
  }

 private:
  using Parts = std::vector<std::unique_ptr<shm::TablePart>>;

  void dump(const Parts& parts, const persistence::CheckpointArrays::AppendRow& append) const {
    const shm::TableShm& record = parts.front()->record();
    const shm::RowForm form(record);
    const update::Settings settings = update::settings_of(config_.optimizer, static_cast<UpdateRule>(record.rule),
                                                          std::bit_cast<float>(record.regularize), DType::kFloat32,
                                                          std::bit_cast<float>(record.lr_scale));
    std::vector<float> raw(form.raw_size()), values(form.width()), state(form.state_size());
    std::uint64_t key = 0;
    update::with_element_value(settings, lr_, [&](const auto& value_of) {
      for (const auto& part : parts)
        part->for_each(
            0, false,
            [&](std::uint64_t of, const float* elements) {
              key = of;
              shm::racing_copy(raw.data(), elements, raw.size());
            },
            [&] {
              if (stop_requested_ && stop_requested_()) throw Interrupted();
              form.read_values(raw.data(), values.data(), value_of);
              form.split_state(raw.data(), state.data());
              append(key, values, state);
            });
    });
  }

  JobConfig config_;
  float lr_;
  const std::function<bool()>& stop_requested_;
  std::map<std::string, Parts> parts_;
};

// The number of examples that each rank had trained on. Ignores workers that are not alive and have a rank beyond the
// job's number of workers: they had only joined temporarily.
std::vector<std::uint64_t> examples_of(const std::vector<WorkerInfo>& workers, const JobConfig& config,
                                       std::uint64_t step) {
  std::vector<std::uint64_t> examples;
  for (const WorkerInfo& worker : workers) {
    const bool is_alive = worker.state == WorkerState::kAlive;
    if (!is_alive && worker.rank >= config.workers) continue;
    examples.resize(std::max<std::size_t>(examples.size(), worker.rank + 1));
    // sync: as of that step; a worker's own count may include the step under way.
    const bool is_by_step = traits_of(config.mode).steps_together() && is_alive && worker.step_examples != 0;
    examples[worker.rank] = worker.restored_examples +
                            (is_by_step ? worker.examples_offset + step * worker.step_examples : worker.examples);
  }
  return examples;
}

// async: the counts from before the snapshot point, so that nothing counts that is not in the snapshot. sync: the
// counts after it, once each worker has reported the size of a step, which it does just after its first one.
std::vector<WorkerInfo> workers_behind(const JobView& job, std::uint64_t step, std::uint64_t first_step) {
  constexpr int kLooks = 50;
  for (int look = 1;; ++look) {
    std::vector<WorkerInfo> workers = job.workers();
    const bool has_said = std::all_of(workers.begin(), workers.end(), [](const WorkerInfo& worker) {
      return worker.state != WorkerState::kAlive || worker.step_examples != 0;
    });
    if (has_said || step == first_step || look == kLooks) return workers;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

std::string Checkpoint::save(const JobView& job, const std::string& dir, const CheckpointOptions& options) {
  std::vector<WorkerInfo> workers = job.workers();
  const Snapshot snapshot = job.snapshot(
      {.wait = options.wait, .at_step = options.at_step, .stop_requested = options.stop_requested},
      options.group);
  const JobInfo info = job.info();
  const bool is_sync = traits_of(info.config.mode).steps_together();
  if (is_sync && !snapshot.partial_ranks().empty())
    throw Error(fmt::format("all workers of job '{}' died while step {} was being applied: a part of it is in the "
                            "variables; continue from the previous checkpoint",
                            info.config.job, snapshot.global_step()),
                ErrorCode::kInvalidState);
  if (is_sync) workers = workers_behind(job, snapshot.global_step(), info.config.first_step);
  std::vector<VariableInfo> variables = job.variables();  // read after the snapshot: contains all of its variables
  const std::vector<std::string> there = snapshot.variables();
  std::erase_if(variables, [&](const VariableInfo& one) {
    return std::find(there.begin(), there.end(), one.name) == there.end();
  });
  const JobConfig config = config::with_live(info.config, info.live);
  const SavedTables tables(config, info.live.lr, options.stop_requested);
  if (variables.empty() && tables.empty())
    throw Error(fmt::format("job '{}' has nothing to save yet: no variable is initialised, and there is no table",
                            info.config.job),
                ErrorCode::kInvalidState);
  std::sort(variables.begin(), variables.end(),
            [](const VariableInfo& a, const VariableInfo& b) { return a.name < b.name; });
  persistence::CheckpointFacts facts{
      .job = config.job,
      .global_step = snapshot.global_step(),
      .loss = options.loss,
      .settings = persistence::settings_as_text(config),
      .lr = double(config.optimizer.schedule.rate(info.live.lr, snapshot.global_step())),
      .examples = examples_of(workers, config, snapshot.global_step()),
      .partial_ranks = snapshot.partial_ranks(),
      .variables = {},
      .tables = {},
      .files = {}};
  persistence::CheckpointArrays arrays = arrays_of(snapshot, variables, options.stop_requested);
  tables.add_to(arrays);
  return persistence::write_checkpoint(dir, std::move(facts), arrays, options.max_file_bytes);
}

}  // namespace ps_shm
