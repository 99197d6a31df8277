// What all runs of worker_shm have in common: how they speak, listen and join.
#pragma once

#include <memory>
#include <string>

#include "options.hpp"
#include "ps/worker.hpp"
#include "report/summary.hpp"
#include "train/train_log.hpp"

namespace ps::tools {

void tell(const std::string& line);  // on stderr

// For people. With --json, stdout is for the object alone.
void say(const WorkerSettings& settings, const std::string& line);

bool is_stop_requested();
void set_hooks(const WorkerSettings& settings, const std::string& who, train::TrainHooks& hooks);

// The summary of training without a ps.
void print_report(const WorkerSettings& settings, const report::RunReport& run);

// Says what a worker that was asked to end has reached. Returns its exit code.
int interrupted(const WorkerSettings& settings, const std::string& who, const train::TrainTotals& totals);

// None without --trace.
std::unique_ptr<train::SpanLog> trace_of(const WorkerSettings& settings);

// Throws as Worker's constructor does. `trace`, where there is one, outlives the worker.
Worker join(const WorkerSettings& settings, train::SpanLog* trace);

}  // namespace ps::tools
