// The state that all parts of a Worker use: the job, its rank, its threads, and the settings that it currently applies.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "config/modes.hpp"
#include "ps_shm/worker.hpp"
#include "record/recording.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/live_settings.hpp"
#include "worker/threads.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

struct WorkerCore {
  WorkerCore(WorkerOptions given, shm::JobSegments attached, std::uint32_t taken)
      : options(std::move(given)),
        job(std::move(attached)),
        rank(taken),
        entry(job.worker(taken)),
        threads(job, taken, options.threads != 0 ? options.threads : job.config().threads),
        live(shm::read_live(job)) {
    note_limits();
  }
  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;

  WorkerOptions options;
  shm::JobSegments job;
  const JobConfig& config = job.config();
  std::uint32_t rank;
  shm::WorkerShm& entry;
  // Of the rank's earlier owners. Relaxed: nobody else writes it while this worker owns the rank (locks.L4).
  const std::uint64_t examples_before = shm::counter(entry, shm::Counter::kExamples).load_relaxed();
  Threads threads;
  shm::Live live;  // read again at the end of each step
  // Which of the settings in force a pull or push has to know of. Each asks one of these.
  bool notes_pulls = false;    // pulls are reported to the mode (StepMode::note_pull), and steps may be dropped
  bool limits_pushes = false;  // by their norm or age; for pushes of rows also where lr-staleness is set
  std::uint32_t open_pushes = 0, pushes_begun = 0;  // push_scope.hpp
  std::uint64_t epoch = 0;                          // of the push in progress
  std::uint64_t rate_step = 0;                      // the step for which rate_now was computed
  float rate_base = 0.0F, rate_now = 0.0F;
  std::unique_ptr<record::Recording> recording;  // if the worker is recorded or replayed: the recorder (recording.cpp)

  // Throws Error if the worker is recorded or replayed, for operations that cannot be. `what` names the operation.
  void refuse_recorded(const char* what) const {
    if (recording) fail_recorded(what);
  }
  [[noreturn]] void fail_recorded(const char* what) const;
  [[noreturn]] void refuse_guest(const char* what) const;  // `what`: an operation of workers only

  shm::AtomicShm<std::uint64_t>& count(shm::Counter which) noexcept { return shm::counter(entry, which); }

  // A change of the runtime settings takes effect here: at the end of a step, before the next step's pull.
  void refresh_live() noexcept {
    if (shm::live_version(job) == live.version) return;
    live = shm::read_live(job);
    note_limits();
  }

  void note_limits() noexcept {
    const bool has_age_limit = live.settings.stale_limit != 0;
    notes_pulls = has_age_limit || recording || traits_of(config.mode).steps_together();
    limits_pushes = has_age_limit || live.settings.clip_norm > 0 || config.optimizer.lr_staleness;
  }

  // The learning rate of global step `step`.
  float rate_at(std::uint64_t step) const noexcept {
    return config.optimizer.schedule.rate(live.settings.lr, step);
  }

  // The rate of a push of rows now.
  float row_rate() noexcept {
    const float base = live.settings.lr;
    if (config.optimizer.schedule.is_constant()) return base;
    const std::uint64_t step = job.steps_done();
    if (step != rate_step || base != rate_base) {  // a schedule's factor costs more than a short push
      rate_step = step, rate_base = base;
      rate_now = config.optimizer.schedule.rate(base, step);
    }
    return rate_now;
  }

  // Adds the staleness of the last push of the variable to the worker's histogram.
  void record_observed(VariableState& state) noexcept {
    for (std::uint64_t& staleness : state.observed) {
      if (staleness == VariableState::kNotPulled) continue;
      shm::record_staleness(entry, staleness);
      staleness = VariableState::kNotPulled;
    }
  }

  // The context of a push in that step, for gradients that are not scaled.
  PushContext push_context(std::uint64_t step) const noexcept {
    return {.label = {rank, step, epoch},
            .lr = rate_at(step),
            .scale = 1.0F,
            .lr_staleness = config.optimizer.lr_staleness,
            .adds = config.adds};
  }
};

}  // namespace ps_shm
