// doctor --nan-watch: finds the worker that pushes the first NaN of a running job.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "inspect_shm/findings.hpp"
#include "inspection/nan_watch.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm::inspect {
namespace {

std::string describe(const NanFound& found, const JobView& view) {
  const std::string what = found.table.empty() ? fmt::format("{} to variable {}, element {}", found.value,
                                                             found.variable, found.element)
                                               : fmt::format("{} to table {}, key {}, element {}", found.value,
                                                             found.table, found.key, found.element);
  if (found.is_initial)
    return fmt::format("variable {} has {} at element {} in its initial values", found.variable, found.value,
                       found.element);
  if (found.suspects.empty())
    return fmt::format("an unknown worker pushed {}, at global step {} or before", what, found.step);
  std::vector<std::string> names;
  for (const WorkerInfo& worker : view.workers())
    for (const std::uint32_t rank : found.suspects)
      if (rank == worker.rank) names.push_back(fmt::format("worker {} (process {})", rank, worker.pid));
  if (found.is_certain)
    return fmt::format("{} pushed {}, at global step {}: the first one", fmt::join(names, ""), what, found.step);
  if (names.size() == 1)
    return fmt::format(
        "{} pushed {}, at global step {}; it may have been there before: the preceding push is already "
        "overwritten",
        names.front(), what, found.step);
  return fmt::format("one of {} pushed {}, at global step {}", fmt::join(names, ", "), what, found.step);
}

}  // namespace

void watch_for_nan(const std::string& job, double seconds, Json& examined) {
  constexpr auto kPause = std::chrono::microseconds(200);  // old buffers, which name their writers, are soon reused
  examined["nan"] = nullptr;
  shm::AttachOutcome outcome;
  auto segments = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
  if (!segments) throw shm::attach_error(outcome, shm::control_name(job));
  NanWatch watch(*segments);
  fmt::print(stderr, "inspect_shm: watching job {} for a push that contains NaN\n", job);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (bool is_last = false; !is_last; std::this_thread::sleep_for(kPause)) {
    is_last = std::chrono::steady_clock::now() >= until || segments->control().is_orphaned() ||
              !segments->locks().is_in_use_by_other();
    const std::optional<NanFound> found = watch.look();
    if (!found) continue;
    const bool is_in_table = !found->table.empty();
    examined["nan"] = {{"variable", is_in_table ? Json() : Json(found->variable)},
                       {"table", is_in_table ? Json(found->table) : Json()},
                       {"key", is_in_table ? Json(found->key) : Json()},
                       {"element", found->element},
                       {"value", fmt::to_string(found->value)},
                       {"global_step", found->step},
                       {"ranks", found->suspects},
                       {"certain", found->is_certain}};
    add_finding(examined, "nan-pushed", job, describe(*found, JobView(job)),
                "check that worker's data and learning rate; --on-nan stop or skip does not push the gradient of a "
                "loss that is "
                "NaN, --on-nan restore resumes from a checkpoint");
    return;
  }
}

}  // namespace ps_shm::inspect
