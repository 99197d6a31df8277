// Real jobs to measure: the ps in the benchmark's process, workers in others.
#pragma once

#include <memory>
#include <string>

#include "../processes.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"

namespace ps_shm::bench {

// A name for a job that nobody else on this machine has.
std::string new_job_name();

// Settings for jobs that count: every push of gradients of -1 adds 1 to each value, exactly.
JobConfig counting_config(int workers);

// What a worker's process holds.
struct Member {
  Worker worker;
  Variable variable;
};

class Job {
 public:
  explicit Job(JobConfig config);

  const JobConfig& config() const noexcept { return config_; }
  const JobView& view() const noexcept { return view_; }

  Worker join(int number) const;
  // With the vector "v" of that many floats, zeros at first.
  std::shared_ptr<Member> join(int number, std::uint64_t floats) const;
  static VariableSpec spec(std::uint64_t floats);

  // Share of so many pushes that the values of "v" do not show. Only where each push adds 1.
  double lost(std::uint64_t pushes) const;
  // The same by the versions of its chunks, whatever a push does.
  double lost_versions(std::uint64_t pushes) const;
  // Repeated copies of chunks, over all workers: per push, and per pull.
  double retries_per_push() const;
  double retries_per_pull() const;

 private:
  JobConfig config_;
  Server server_;
  JobView view_;
};

// A worker's part of a case: pushes of gradients of -1, or pulls.
Work push_work(std::shared_ptr<Member> member, std::uint64_t floats);
Work pull_work(std::shared_ptr<Member> member, std::uint64_t floats);

}  // namespace ps_shm::bench
