// What all runs of worker_shm share: output, signals, and joining.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/options.hpp"
#include "ps_shm/worker.hpp"
#include "report/summary.hpp"
#include "train/log/train_log.hpp"
#include "train/loop/gpu_place.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::tools {

// Prints a line of text. With --json, stdout is reserved for the object.
void say(const WorkerSettings& settings, const std::string& line);

void set_hooks(const WorkerSettings& settings, const std::string& who, train::TrainHooks& hooks);

// Initialises training from the file's values, and reports it when it happens; does nothing if no file is given.
void begin_with_file(const WorkerSettings& settings, const std::string& who,
                     std::span<const train::ParameterSpec> variables, train::TrainHooks& hooks);

// The summary of training without a ps.
void print_report(const WorkerSettings& settings, const report::RunReport& run);

// Reports what an interrupted worker has reached. Returns its exit code.
int interrupted(const WorkerSettings& settings, const std::string& who, const train::TrainTotals& totals);

// The GPU of the worker of this rank, near which its thread runs from here on; none: it computes on the CPU. Workers of
// one process have the same GPU. Throws Error if there is none and one is required.
std::optional<train::GpuPlace> choose_place(const WorkerSettings& settings, const std::string& who, std::uint32_t rank);

// What has been done on the GPU; nothing without one.
void say_gpu(const WorkerSettings& settings, const std::string& who, const std::optional<train::GpuReport>& gpu);

// Where the files of --summary-dir and --trace are; nothing with --json, which launch_shm gives to its workers.
void say_places(const WorkerSettings& settings);

// If a worker of this process could not write its trace, removes those of all of them and returns true.
bool remove_lost_traces(const WorkerSettings& settings);

// None without --trace.
std::unique_ptr<train::SpanLog> trace_of(const WorkerSettings& settings);

// Throws as Worker's constructor does. `trace`, if given, must outlive the worker.
Worker join(const WorkerSettings& settings, train::SpanLog* trace);

}  // namespace ps_shm::tools
