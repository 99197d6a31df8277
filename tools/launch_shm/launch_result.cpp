#include "launch_shm/launch_result.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {
namespace {

// Does nothing for a damaged job or one of another build: the ps reports it.
std::optional<JobView> view_of(const std::string& job) {
  try {
    return JobView::try_open(job);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_unsaved(const LaunchSettings& settings) {
  const std::optional<JobView> left = view_of(settings.ps.job.job);
  if (!left || left->global_step() == 0) return;
  const std::vector<WorkerInfo> workers = left->workers();
  const auto is_alive = [](const WorkerInfo& worker) { return worker.state == WorkerState::kAlive; };
  if (left->info().served || std::any_of(workers.begin(), workers.end(), is_alive)) return;
  const std::string what = fmt::format("job {} is {} and holds the result of {} steps", settings.ps.job.job,
                                       left->info().kept ? "kept" : "dead", left->global_step());
  if (isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0) {
    fmt::print(stderr, "{}; replace it? [y/N] ", what);
    const int answer = std::getchar();
    if (answer == 'y' || answer == 'Y') return;
    throw Error("nothing was started");
  }
  throw Error(
      fmt::format("{}; save it with inspect_shm dump --npy DIR --job {}, then give --replace, or give another --job",
                  what, settings.ps.job.job));
}

}  // namespace

void check_place_of_result(const LaunchSettings& settings) {
  if (!settings.replace) check_unsaved(settings);
  const std::array<std::array<std::string, 3>, 2> files = {
      {{"save", settings.save, ".safetensors"}, {"report", settings.report, ".html"}}};
  for (const auto& [option, file, ending] : files) {
    if (file.empty()) continue;
    persistence::check_writable(file);
    if (!file.ends_with(ending))
      throw Error(fmt::format("`{}` {}: the name must end in {}, which is the only format it is written in", option,
                              file, ending),
                  ErrorCode::kInvalidArgument);
  }
  for (const std::string& folder : {settings.ps.checkpoint.dir, settings.ps.summary.dir})
    if (!folder.empty()) persistence::check_writable_folder(folder);
}

std::string save_result(const JobView& job, const LaunchSettings& settings) {
  std::vector<std::vector<std::byte>> values;
  std::vector<std::vector<float>> kept_averages;
  std::vector<persistence::Tensor> tensors, averages;
  const Optimizer& optimizer = settings.ps.job.optimizer;
  for (const VariableInfo& variable : job.variables()) {
    if (!variable.initialised) continue;
    tensors.push_back({variable.name, variable.dtype, variable.shape,
                       persistence::reader_of(values.emplace_back(job.bytes(variable.name)))});
    if (!variable.slots.empty() && variable.slots.back() == "ema")
      averages.push_back(
          {variable.name, DType::kFloat32, variable.shape,
           persistence::reader_of(std::as_bytes(std::span(kept_averages.emplace_back(job.averages(variable.name)))))});
  }
  if (tensors.empty()) return "nothing to save: no variable was initialised";
  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"job", settings.ps.job.job},
                                                       {"model", settings.training.model},
                                                       {"data", settings.training.data},
                                                       {"optimizer", to_string(optimizer.rule)},
                                                       {"global_step", fmt::to_string(job.global_step())}};
  persistence::write_safetensors(settings.save, tensors, metadata);
  if (!averages.empty()) {
    const std::string ending = ".safetensors";
    std::string name = settings.save;
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
    persistence::write_safetensors(name + ".ema" + ending, averages, metadata);
  }
  return fmt::format("saved {} variables to {}", tensors.size(), settings.save);
}

}  // namespace ps_shm::tools
