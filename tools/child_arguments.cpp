#include "child_arguments.hpp"

#include <fmt/format.h>

#include <map>

namespace ps::tools {
namespace {

using Arguments = std::vector<std::string>;

template <class Value>
void add(Arguments& arguments, const char* name, const Value& value) {
  arguments.emplace_back(name);
  arguments.push_back(fmt::format("{}", value));
}

template <class Value>
const Value& of_rank(const std::map<std::uint32_t, Value>& values, std::uint32_t rank, const Value& of_others) {
  const auto found = values.find(rank);
  return found != values.end() ? found->second : of_others;
}

void add_optimizer(Arguments& all, const Optimizer& optimizer) {
  add(all, "--optimizer", to_string(optimizer.rule));
  if (optimizer.learning_rate) add(all, "--lr", *optimizer.learning_rate);
  add(all, "--lr-schedule", optimizer.schedule.to_string());
  if (optimizer.staleness_scaling) all.emplace_back("--lr-staleness");
  add(all, "--momentum", optimizer.momentum);
  add(all, "--beta1", optimizer.beta1);
  add(all, "--beta2", optimizer.beta2);
  add(all, "--rho", optimizer.rho);
  add(all, "--epsilon", optimizer.epsilon);
  add(all, "--initial-accumulator", optimizer.initial_accumulator);
  add(all, "--ftrl-beta", optimizer.ftrl_beta);
  add(all, "--l1", optimizer.l1);
  add(all, "--l2", optimizer.l2);
  if (optimizer.weight_decay) add(all, "--weight-decay", *optimizer.weight_decay);
  add(all, "--clip-value", optimizer.clip_value);
  add(all, "--clip-norm", optimizer.clip_norm);
  add(all, "--ema", optimizer.ema);
}

void add_shards(Arguments& all, const JobConfig& job) {
  add(all, "--ps-tasks", job.tasks);
  add(all, "--placement", to_string(job.placement));
  if (job.partition_by != PartitionBy::kRange) add(all, "--partition-by", to_string(job.partition_by));
  if (job.partitions != 0) add(all, "--partitions", job.partitions);
  if (job.chunk_bytes != 0) add(all, "--chunk-bytes", job.chunk_bytes);
  if (job.max_part_bytes != 0) add(all, "--max-part-bytes", job.max_part_bytes);
  for (const auto& [variable, shard] : job.place) add(all, "--place", fmt::format("{}={}", variable, shard));
  if (job.numa == Numa::kNone) add(all, "--numa", "none");
  if (job.numa == Numa::kNodes) add(all, "--numa", fmt::format("{}", fmt::join(job.numa_nodes, ",")));
  if (job.huge_pages) all.emplace_back("--huge-pages");
}

void add_sparse(Arguments& all, const TrainingSettings& training) {
  using Format = train::SparseSourceOptions::Format;
  const SparseSettings& sparse = training.sparse;
  add(all, "--data", training.data);
  if (training.batch != 0) add(all, "--batch", training.batch);
  if (!sparse.test_data.empty()) add(all, "--test-data", sparse.test_data);
  if (sparse.test_share) add(all, "--test-share", *sparse.test_share);
  if (sparse.format != Format::kByContent)
    add(all, "--format", sparse.format == Format::kLibsvm ? "libsvm" : "ratings");
  if (sparse.first_index != train::FirstIndex::kByContent)
    add(all, "--index-base", sparse.first_index == train::FirstIndex::kZero ? "0" : "1");
  if (sparse.hash_bits != 0) add(all, "--hash-bits", sparse.hash_bits);
  if (!sparse.cache.empty()) add(all, "--cache", sparse.cache);
  if (sparse.share_data) all.emplace_back("--share-data");
  if (sparse.factors) add(all, "--factors", *sparse.factors);
  if (sparse.factor_l2) add(all, "--factor-l2", *sparse.factor_l2);
  if (sparse.bias) all.emplace_back("--bias");
  add(all, "--combine", sparse.combine);
}

}  // namespace

// Times go as plain seconds.
Arguments ps_arguments(const PsSettings& settings) {
  const JobConfig& job = settings.job;
  Arguments all;
  add(all, "--job", job.job);
  add(all, "--workers",
      job.elastic_max != 0 ? fmt::format("{}..{}", job.elastic_min, job.elastic_max) : fmt::to_string(job.workers));
  if (job.max_workers != 0) add(all, "--max-workers", job.max_workers);
  add(all, "--threads", job.threads);
  add(all, "--mode", to_string(job.mode));
  if (job.staleness != 0) add(all, "--staleness", job.staleness);
  if (job.quorum != 0) add(all, "--quorum", job.quorum);
  add(all, "--reduce", to_string(job.reduce));
  add(all, "--layout", to_string(job.layout));
  add(all, "--adds", to_string(job.adds));
  if (job.steps != 0) add(all, "--steps", job.steps);
  add_optimizer(all, job.optimizer);
  add_shards(all, job);
  if (!job.group.empty()) add(all, "--group", job.group);
  add(all, "--seed", job.seed);
  add(all, "--linger", job.linger_seconds);
  add(all, "--step-timeout", job.step_timeout_seconds);
  if (settings.keep_segments) all.emplace_back("--keep-segments");
  if (settings.adopt) all.emplace_back("--adopt");
  return all;
}

Arguments worker_arguments(const LaunchSettings& settings, std::uint32_t rank, bool together) {
  const TrainingSettings& training = settings.training;
  Arguments all;
  add(all, "--job", settings.ps.job.job);
  add(all, "--rank", rank);
  add(all, "--model", training.model);
  add(all, "--wait-job", training.wait_job_seconds);
  add(all, "--threads", settings.ps.job.threads);
  if (training.is_count()) {
    add(all, "--steps", training.steps);
    add(all, "--size", training.size);
    add(all, "--interval", training.interval_seconds);
  } else if (training.is_sparse()) {
    add_sparse(all, training);
  } else {
    add(all, "--data", training.data);
    if (training.batch != 0) add(all, "--batch", training.batch);
    add(all, "--push-every", training.push_every);
    if (training.local_learning_rate) add(all, "--local-lr", *training.local_learning_rate);
    if (training.no_stream_waits) all.emplace_back("--no-stream-waits");
  }
  const train::Delay& delay = of_rank(settings.delay_of_rank, rank, settings.delay);
  if (!delay.is_none()) add(all, "--delay", delay.to_string());
  add(all, "--device", device::to_string(of_rank(settings.device_of_rank, rank, settings.device)));
  add(all, "--wire", to_string(of_rank(settings.wire_of_rank, rank, settings.wire)));
  if (together) all.emplace_back("--together");  // a short job would be over before the last one has started
  all.emplace_back("--json");
  if (!settings.verbose) all.emplace_back("--quiet");
  return all;
}

}  // namespace ps::tools
