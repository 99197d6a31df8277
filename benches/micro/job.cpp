#include "job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cases.hpp"

namespace ps_shm::bench {

std::string new_job_name() {
  static int number = 0;
  return fmt::format("bench-{}-{}", getpid(), number++);
}

JobConfig counting_config(int workers) {
  JobConfig config;
  config.job = new_job_name();
  config.workers = std::uint32_t(workers);
  config.optimizer.rule = UpdateRule::kSgd;
  config.optimizer.lr = 1.0F;
  return config;
}

Job::Job(JobConfig config) : config_(std::move(config)), server_(config_), view_(config_.job) {}

Worker Job::join(int number) const {
  WorkerOptions options;
  options.job = config_.job;
  options.rank = std::uint32_t(number);
  options.threads = config_.threads;
  options.log = [](const std::string&) {};  // large vectors take their time to be initialised
  return Worker(std::move(options));
}

VariableSpec Job::spec(std::uint64_t floats) {
  VariableSpec spec;
  spec.name = "v";
  spec.shape = {floats};
  return spec;
}

std::shared_ptr<Member> Job::join(int number, std::uint64_t floats) const {
  Worker worker = join(number);
  const Variable variable =
      worker.variable(spec(floats), [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
  return std::make_shared<Member>(Member{std::move(worker), variable});
}

double Job::lost(std::uint64_t pushes) const {
  const std::vector<float> values = view_.values("v");
  double sum = 0;
  for (const float value : values) sum += value;
  const double all = double(values.size()) * double(pushes);
  return (all - sum) / all;
}

double Job::lost_versions(std::uint64_t pushes) const {
  return (double(pushes) - double(view_.variables().at(0).updates)) / double(pushes);
}

double Job::retries_per_push() const {
  std::uint64_t retries = 0, pushes = 0;
  for (const WorkerInfo& worker : view_.workers()) retries += worker.push_retries, pushes += worker.pushes;
  return double(retries) / double(std::max<std::uint64_t>(1, pushes));
}

double Job::retries_per_pull() const {
  std::uint64_t retries = 0, pulls = 0;
  for (const WorkerInfo& worker : view_.workers()) retries += worker.pull_retries, pulls += worker.pulls;
  return double(retries) / double(std::max<std::uint64_t>(1, pulls));
}

Work pull_work(std::shared_ptr<Member> member, std::uint64_t floats) {
  auto out = std::make_shared<PrivateFloats>(floats);
  const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
    for (std::uint64_t round = 0; round < count; ++round)
      member->worker.pull(member->variable, {out->data(), out->size()});
    return 0;
  };
  return {.prepare = [=] { rounds(warmups_for(floats)); }, .rounds = rounds};
}

Work push_work(std::shared_ptr<Member> member, std::uint64_t floats) {
  auto gradient = std::make_shared<PrivateFloats>(floats, -1.0F);
  const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
    for (std::uint64_t round = 0; round < count; ++round)
      member->worker.push(member->variable, {gradient->data(), gradient->size()});
    return 0;
  };
  return {.prepare = [=] { rounds(warmups_for(floats)); }, .rounds = rounds};
}

}  // namespace ps_shm::bench
