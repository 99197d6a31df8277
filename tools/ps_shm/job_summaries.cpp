#include "ps_shm/job_summaries.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <utility>

#include "config/job_settings.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::tools {
namespace {

persistence::Summary settings_of(const JobConfig& job) {
  persistence::Summary summary;
  summary.add_text("settings", settings_table(config::job_settings(), config::resolved(job)));
  return summary;
}

std::uint64_t sum_of(const std::vector<StalenessCount>& counts) {
  std::uint64_t sum = 0;
  for (const StalenessCount& one : counts) sum += one.count;
  return sum;
}

// The counts since the previous call.
std::vector<StalenessCount> since(const std::vector<StalenessCount>& before, const std::vector<StalenessCount>& now) {
  std::map<std::uint64_t, std::uint64_t> old;
  for (const StalenessCount& one : before) old[one.least] = one.count;
  std::vector<StalenessCount> more;
  for (const StalenessCount& one : now)
    if (one.count > old[one.least]) more.push_back({one.least, one.count - old[one.least]});
  return more;
}

std::uint64_t percentile(const std::vector<StalenessCount>& counts, double share) {
  std::uint64_t left = static_cast<std::uint64_t>(double(sum_of(counts)) * share);
  for (const StalenessCount& one : counts) {
    if (left < one.count) return one.least;
    left -= one.count;
  }
  return counts.back().least;
}

// Integers, so that each one's bucket is centred on it.
persistence::Histogram histogram_of(const std::vector<StalenessCount>& counts) {
  constexpr std::uint64_t kSingle = 64;  // from here on a bucket covers numbers up to twice its minimum
  persistence::Histogram all;
  all.least = double(counts.front().least) - 0.5;
  all.most = all.least;
  for (const auto& [least, count] : counts) {
    if (double(least) - 0.5 > all.most) {  // a gap between buckets
      all.limits.push_back(double(least) - 0.5);
      all.counts.push_back(0);
    }
    all.most = (least < kSingle ? double(least) : 2.0 * double(least) - 1) + 0.5;
    all.limits.push_back(all.most);
    all.counts.push_back(double(count));
    all.count += double(count);
    all.sum += double(count) * double(least);
    all.squares += double(count) * double(least) * double(least);
  }
  return all;
}

}  // namespace

JobSummaries::JobSummaries(const JobConfig& job, const SummarySettings& settings, LogCallback log)
    : job_(job.job),
      log_(log),
      writer_(settings, "ps", settings_of(job), std::move(log)),
      repeating_([this](bool is_last) { return look(is_last); },
                 [this](const std::string& what, bool) { log_(fmt::format("cannot write summaries: {}", what)); },
                 std::chrono::milliseconds(settings.every.steps != 0 ? 1 : 10)) {}

bool JobSummaries::look(bool is_last) {
  if (!view_) view_.emplace(job_);
  const std::uint64_t step = view_->global_step();
  if (step == 0 || !(is_last || writer_.is_due(step))) return false;
  writer_.write(step, state(step));
  return true;
}

persistence::Summary JobSummaries::state(std::uint64_t step) {
  persistence::Summary summary;
  const JobInfo info = view_->info();
  summary.add_scalar("learning_rate", double(info.config.optimizer.schedule.rate(info.live.lr, step)));
  add_workers(summary, step);
  add_staleness(summary);
  add_parameters(summary);
  return summary;
}

void JobSummaries::add_workers(persistence::Summary& summary, std::uint64_t step) {
  std::uint64_t alive = 0, dropped = 0, examples = 0, with_loss = 0;
  double loss = 0.0;
  for (const WorkerInfo& worker : view_->workers()) {
    alive += worker.state == WorkerState::kAlive;
    dropped += worker.dropped;
    examples += worker.examples;
    if (worker.examples == 0) continue;
    loss += worker.loss, ++with_loss;
    summary.add_scalar(fmt::format("loss/worker-{}", worker.rank), worker.loss);
  }
  if (with_loss != 0) summary.add_scalar("loss", loss / double(with_loss));
  if (writer_.lacks(step)) {  // otherwise the workers have ended meanwhile
    const double now = steady_seconds();
    if (const auto speed = steps_.per_second(now, step)) summary.add_scalar("speed/steps_per_second", *speed);
    if (const auto speed = examples_.per_second(now, examples); speed && examples != 0)
      summary.add_scalar("speed/examples_per_second", *speed);
  }
  summary.add_scalar("workers/alive", double(alive));
  summary.add_scalar("workers/dropped_gradients", double(dropped));
}

// For the pushes since the previous call.
void JobSummaries::add_staleness(persistence::Summary& summary) {
  std::vector<StalenessCount> counts = view_->staleness_counts();
  const double mean = view_->staleness().mean;
  const std::vector<StalenessCount> more = since(stale_, counts);
  if (!more.empty()) {
    const double before = double(sum_of(stale_)), now = double(sum_of(counts));
    summary.add_scalar("staleness/mean", std::max(0.0, (mean * now - stale_mean_ * before) / (now - before)));
    summary.add_scalar("staleness/p99", double(percentile(more, 0.99)));
    summary.add_histogram("staleness", histogram_of(more));
  }
  stale_ = std::move(counts);
  stale_mean_ = mean;
}

// Copied like a worker's pulls, so no worker waits; the chunks of a variable may be of different moments.
void JobSummaries::add_parameters(persistence::Summary& summary) {
  for (const VariableInfo& variable : view_->variables()) {
    if (!variable.initialised || !update::takes_gradients(variable.dtype)) continue;
    summary.add_histogram("parameters/" + variable.name, persistence::histogram_of(view_->values(variable.name)));
  }
}

}  // namespace ps_shm::tools
