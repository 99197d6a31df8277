#include "worker_shm/evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "cli/output.hpp"
#include "common/children.hpp"
#include "common/metric_summaries.hpp"
#include "common/repeating.hpp"
#include "common/summaries.hpp"
#include "common/workload.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/subscriber.hpp"
#include "report/summary.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"
#include "worker_shm/worker_run.hpp"

namespace ps_shm::tools {
namespace {

constexpr const char* kWho = "evaluator";

// Maps the model's variables to tensors of the publication. Throws Error if they do not match.
std::vector<std::uint32_t> tensors_of(const Subscriber& subscriber, const Workload& workload) {
  std::vector<std::uint32_t> tensors;
  for (const train::ParameterSpec& variable : workload.variables()) {
    const std::uint32_t tensor = subscriber.find(variable.name);
    const TensorSpec& there = subscriber.spec().tensors[tensor];
    if (!update::takes_gradients(there.dtype) ||
        !std::equal(there.shape.begin(), there.shape.end(), variable.shape.begin(), variable.shape.end()))
      throw Error(
          fmt::format("publication '{}' has '{}' as {} [{}], but the model as float32 [{}]; give the workers' "
                      "--model and --data",
                      subscriber.spec().name, variable.name, to_string(there.dtype), fmt::join(there.shape, ", "),
                      fmt::join(variable.shape, ", ")));
    tensors.push_back(tensor);
  }
  return tensors;
}

// Whether nothing can be published any more: the publisher is gone, and so is its job. Throws Error if the job exists,
// but no process of it is alive.
bool is_over(const Subscriber& subscriber, const std::string& job) {
  if (subscriber.has_ended()) return true;
  if (subscriber.is_published()) return false;
  const std::optional<JobView> view = JobView::try_open(job);
  if (!view) return true;
  const std::vector<WorkerInfo> workers = view->workers();
  if (!view->info().served && std::none_of(workers.begin(), workers.end(), [](const WorkerInfo& worker) {
        return worker.state == WorkerState::kAlive;
      }))
    throw Error(fmt::format("job {} is dead: its ps was killed, and no worker is alive", job));
  return false;  // another ps may take it over
}

class Evaluator {
 public:
  Evaluator(const WorkerSettings& settings, Workload& workload, const Subscriber& subscriber)
      : settings_(settings), workload_(workload), tensors_(tensors_of(subscriber, workload)) {
    if (!settings.summary.dir.empty())
      summaries_.emplace(settings.summary, "test", persistence::Summary(),
                         [](const std::string& line) { tell(fmt::format("{}: {}", kWho, line)); });
  }

  void evaluate(const Generation& generation) {
    std::vector<std::span<const float>> values;
    std::vector<std::vector<float>> widened(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (generation.spec(tensors_[i]).dtype == DType::kFloat32) {
        values.push_back(generation.values<float>(tensors_[i]));
        continue;
      }
      const auto bits = generation.values<update::BFloat16Bits>(tensors_[i]);
      widened[i].resize(bits.size());
      update::widen(widened[i].data(), bits.data(), bits.size());
      values.push_back(widened[i]);
    }
    const report::Metrics metrics = workload_.evaluate(values);
    const std::string of = workload_.is_judged_by_training_data() ? "training " : "test ";
    say(settings_, fmt::format("{}: step {}, {}", kWho, generation.step(), report::to_text(metrics, of)));
    if (settings_.json)
      write_out(report::evaluation_json(generation.number(), generation.step(), double(generation.unix_ns()) * 1e-9,
                                        metrics) +
                "\n");
    if (!summaries_) return;
    persistence::Summary summary;
    add_metrics(summary, metrics);
    summaries_->write(generation.step(), summary);
  }

 private:
  const WorkerSettings& settings_;
  Workload& workload_;
  const std::vector<std::uint32_t> tensors_;
  std::optional<SummaryWriter> summaries_;
};

}  // namespace

int evaluate(const WorkerSettings& settings) {
  const std::unique_ptr<Workload> workload = load_workload(settings.training);
  const std::string& job = settings.alone.job;
  SubscriberOptions options;
  options.group = settings.alone.group;
  options.wait = settings.training.wait_job;
  options.stop_requested = is_stop_requested;
  if (!settings.quiet) options.log = [](const std::string& line) { tell(fmt::format("{}: {}", kWho, line)); };
  Subscriber subscriber(settings.publication.empty() ? job : settings.publication, options);
  Evaluator evaluator(settings, *workload, subscriber);
  if (settings.json) write_out(report::Json({{"publication", subscriber.spec().name}}).dump() + "\n");
  std::optional<config::Due> due;
  std::uint64_t done = 0;  // number of the last evaluated generation
  while (!is_stop_requested()) {
    const bool is_last = is_over(subscriber, job);  // checked first, so that everything published before is visible
    if (std::optional<Generation> newest = subscriber.try_read(done)) {
      const std::uint64_t step = newest->step();
      if (is_last || !due || due->is_now(steady_seconds(), step)) {
        if (!due) due.emplace(settings.every, steady_seconds(), step);
        due->move_past(steady_seconds(), step);
        done = newest->number();
        evaluator.evaluate(*newest);
        continue;
      }
    }
    if (is_last) return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return kInterrupted;
}

}  // namespace ps_shm::tools
