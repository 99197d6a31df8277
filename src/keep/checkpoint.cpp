#include "ps/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "config/job_settings.hpp"
#include "keep/checkpoint_folder.hpp"
#include "keep/tensor_reader.hpp"
#include "ps/errors.hpp"

namespace ps {
namespace {

// The variables of a snapshot, in the order of their names; they are read when they are written.
keep::CheckpointArrays arrays_of(const Snapshot& snapshot, const std::vector<VariableInfo>& variables) {
  keep::CheckpointArrays all;
  for (const VariableInfo& variable : variables) {
    const auto array = [&](std::uint64_t which) {
      return [&snapshot, name = variable.name, which](std::uint64_t begin, std::span<std::byte> out) {
        snapshot.read(name, begin, out, which);
      };
    };
    all.add({.name = variable.name,
             .dtype = variable.dtype,
             .shape = variable.shape,
             .updates = snapshot.updates(variable.name),
             .is_fuzzy = snapshot.is_fuzzy(variable.name),
             .slots = {}},
            array(0));
    for (std::size_t slot = 0; slot < variable.slots.size(); ++slot) {
      std::vector<std::uint64_t> shape = variable.shape;
      if (slot + variable.row_slots >= variable.slots.size()) shape.resize(1);  // of rows
      all.add_slot(variable.slots[slot], std::move(shape), array(1 + slot));
    }
  }
  return all;
}

// How many examples each rank had trained on. Workers that are neither alive nor of the job's number were guests.
std::vector<std::uint64_t> examples_of(const std::vector<WorkerInfo>& workers, const JobConfig& config,
                                       std::uint64_t step) {
  std::vector<std::uint64_t> examples;
  for (const WorkerInfo& worker : workers) {
    const bool is_alive = worker.state == WorkerState::kAlive;
    if (!is_alive && worker.rank >= config.workers) continue;
    examples.resize(std::max<std::size_t>(examples.size(), worker.rank + 1));
    // sync: at that step; what a worker has counted may be of the step under way.
    const bool is_by_step = config.mode == Mode::kSync && is_alive && worker.step_examples != 0;
    examples[worker.rank] = worker.restored_examples +
                            (is_by_step ? worker.examples_offset + step * worker.step_examples : worker.examples);
  }
  return examples;
}

// async: as they were before the cut, so that nothing counts that is not in it. sync: behind it, when each worker has said
// what a step has; it does so just after its first one.
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

std::string shape_text(const std::vector<std::uint64_t>& shape, DType dtype) {
  return fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", "));
}

}  // namespace

struct PS_HIDDEN Checkpoint::Impl {
  explicit Impl(const std::string& path) : folder(path), facts(keep::read_facts(path)) {
    for (const keep::StoredFile& file : facts.files) {
      std::error_code error;
      const std::uint64_t bytes = std::filesystem::file_size(folder + "/" + file.name, error);
      if (error) throw Error(fmt::format("{}: cannot read {}: {}", folder, file.name, error.message()));
      if (bytes != file.facts.bytes)
        throw Error(
            fmt::format("{}: {} has {} bytes, and {} were written", folder, file.name, bytes, file.facts.bytes));
    }
  }

  const StoredVariable* find(const std::string& name) const {
    const auto found = std::find_if(facts.variables.begin(), facts.variables.end(),
                                    [&](const StoredVariable& one) { return one.name == name; });
    return found == facts.variables.end() ? nullptr : &*found;
  }

  const keep::TensorFile& file(const std::string& name) const {
    std::unique_ptr<keep::TensorFile>& file = open[name];
    if (!file) file = std::make_unique<keep::TensorFile>(folder + "/" + name);
    return *file;
  }

  // Calls use(file, tensor) with that of a group, whichever of its files it is in. Throws Error: there is none.
  template <class Use>
  void with_tensor(const std::string& group, const std::string& name, Use&& use) const {
    for (const keep::StoredFile& one : facts.files) {
      if (!one.name.ends_with(".safetensors") ||
          !(one.name.starts_with(group + ".") || one.name.starts_with(group + "-")))
        continue;
      const keep::TensorFile& here = file(one.name);
      if (const auto found = here.tensors().find(name); found != here.tensors().end()) return use(here, found->second);
    }
    throw Error(fmt::format("{}: the files of {} have no tensor {}", folder, group, name));
  }

  std::string folder;
  keep::CheckpointFacts facts;
  mutable std::map<std::string, std::unique_ptr<keep::TensorFile>> open;
};

Checkpoint::Checkpoint(const std::string& folder) : impl_(std::make_unique<Impl>(folder)) {}
Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const std::string& Checkpoint::folder() const noexcept { return impl_->folder; }
std::uint64_t Checkpoint::global_step() const noexcept { return impl_->facts.global_step; }
std::optional<double> Checkpoint::loss() const noexcept { return impl_->facts.loss; }
const std::map<std::string, std::string>& Checkpoint::settings() const noexcept { return impl_->facts.settings; }
const std::vector<std::uint64_t>& Checkpoint::examples() const noexcept { return impl_->facts.examples; }
const std::vector<StoredVariable>& Checkpoint::variables() const noexcept { return impl_->facts.variables; }

void Checkpoint::verify() const {
  for (const keep::StoredFile& file : impl_->facts.files) {
    const keep::FileFacts there = keep::facts_of(impl_->folder + "/" + file.name);
    if (there.bytes != file.facts.bytes || there.hash != file.facts.hash)
      throw Error(fmt::format("{}: the bytes of {} are not those that were written", impl_->folder, file.name));
  }
}

void Checkpoint::read(const std::string& variable, std::span<std::byte> out, const std::string& slot) const {
  const auto [group, name] = keep::place_of(variable, slot);
  const StoredVariable* const stored = impl_->find(variable);
  const DType dtype = stored != nullptr && slot.empty() ? stored->dtype : DType::kFloat32;
  impl_->with_tensor(group, name,
                     [&, &tensor_name = name](const keep::TensorFile& file, const keep::StoredTensor& tensor) {
                       if (tensor.dtype != keep::safetensors_name(dtype))
                         throw Error(fmt::format("{}: {} is of dtype {}", file.path(), tensor_name, tensor.dtype));
                       file.read(tensor, out);
                     });
}

void Checkpoint::require(std::span<const VariableSpec> variables) const {
  std::vector<std::string> wrong, more;
  for (const VariableSpec& variable : variables) {
    const StoredVariable* const stored = impl_->find(variable.name);
    if (stored == nullptr)
      wrong.push_back(fmt::format("it has no {}", variable.name));
    else if (stored->shape != variable.shape || stored->dtype != variable.dtype)
      wrong.push_back(fmt::format("{} is {} there and {} here", variable.name, shape_text(stored->shape, stored->dtype),
                                  shape_text(variable.shape, variable.dtype)));
  }
  if (wrong.empty()) return;
  for (const StoredVariable& stored : impl_->facts.variables)
    if (std::none_of(variables.begin(), variables.end(),
                     [&](const VariableSpec& variable) { return variable.name == stored.name; }))
      more.push_back(stored.name);
  throw Error(fmt::format("checkpoint {} is of another model: {}{}{}; choose another folder", impl_->folder,
                          fmt::join(wrong, "; "), more.empty() ? "" : "; it has also ", fmt::join(more, ", ")));
}

std::string Checkpoint::save(const JobView& job, const std::string& dir, const CheckpointOptions& options) {
  std::vector<WorkerInfo> workers = job.workers();
  const Snapshot snapshot = job.snapshot({}, options.group);
  const JobInfo info = job.info();
  if (info.config.mode == Mode::kSync && !snapshot.split().empty())
    throw Error(
        fmt::format("all workers of job '{}' have died while step {} was applied: a part of it is in the "
                    "variables; go on from the checkpoint before",
                    info.config.job, snapshot.global_step()));
  if (info.config.mode == Mode::kSync) workers = workers_behind(job, snapshot.global_step(), info.config.first_step);
  std::vector<VariableInfo> variables = job.variables();  // after it: all that it has are there
  const std::vector<std::string> there = snapshot.variables();
  std::erase_if(variables, [&](const VariableInfo& one) {
    return std::find(there.begin(), there.end(), one.name) == there.end();
  });
  if (variables.empty())
    throw Error(fmt::format("job '{}' has nothing to keep yet: no variable is initialised", info.config.job));
  std::sort(variables.begin(), variables.end(),
            [](const VariableInfo& a, const VariableInfo& b) { return a.name < b.name; });
  const JobConfig config = config::with_live(info.config, info.live);
  keep::CheckpointFacts facts{
      .job = config.job,
      .global_step = snapshot.global_step(),
      .loss = options.loss,
      .settings = keep::settings_as_text(config),
      .learning_rate = double(config.optimizer.schedule.rate(info.live.learning_rate, snapshot.global_step())),
      .examples = examples_of(workers, config, snapshot.global_step()),
      .split = snapshot.split(),
      .variables = {},
      .files = {}};
  return keep::write_checkpoint(dir, std::move(facts), arrays_of(snapshot, variables), options.max_file_bytes);
}

std::optional<Checkpoint> Checkpoint::latest(const std::string& dir,
                                             const std::function<void(const std::string&)>& notice) {
  std::string last;
  for (const auto& [step, folder] : keep::list_checkpoints(dir)) try {
      Checkpoint checkpoint(folder);
      checkpoint.verify();
      return checkpoint;
    } catch (const Error& error) {
      last = error.what();
      if (notice) notice(fmt::format("passed over a checkpoint: {}", last));
    }
  if (last.empty()) return std::nullopt;
  throw Error(fmt::format("{} has checkpoints, and none that is whole: {}", dir, last));
}

}  // namespace ps
