// The parts of the GPU benchmark. Each runs in a process of its own, which has not begun CUDA yet: it may fork others
// before it does, and whatever it breaks, the next one finds the GPU fresh.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace ps_shm::bench {

using Json = nlohmann::ordered_json;

using SoFar = std::function<void(const Json&)>;

struct SectionOptions {
  bool quick = false;
  std::string job_prefix;     // of the names of jobs: what is left of them is removed
  std::size_t table_mib = 0;  // of the table whose rows are moved; 0: what fits
  double patience = 1;        // factor of all limits of time
  // Called after each case with all results of the section so far. They are kept if the section is ended early.
  SoFar so_far = [](const Json&) {};
};

Json facts(const SectionOptions& options);                 // what the driver says; {"no_gpu": why} where there is none
Json registrations(const SectionOptions& options);         // seconds per GiB
Json waits(const SectionOptions& options);                 // launches, and streams that wait for another process
Json tearing(const SectionOptions& options);               // of words that are copied while they are written
Json adds_with_processors(const SectionOptions& options);  // what is lost when a GPU and processors add to the same
Json adds_of_two_processes(const SectionOptions& options);
Json moves(const SectionOptions& options);  // kernels against the copy engine, by size
Json death(const SectionOptions& options);  // of a process whose copy is under way
Json links(const SectionOptions& options);  // pulls and pushes of GpuLink against bare copies
Json rows(const SectionOptions& options);   // those of GpuRows against the processor's with a copy

// SIGINT and SIGTERM end the section under way, and the ones after it do not begin.
void end_sections_at_signals();
bool was_stopped() noexcept;

// Runs `section` in a process of its own for at most so many seconds. Returns what it returns, or what it has passed to
// its argument last, with "error": what went wrong. Each result is passed to `seen` when it comes.
Json run_section(const std::function<Json(const SoFar&)>& section, double seconds, const SoFar& seen = {});

}  // namespace ps_shm::bench
