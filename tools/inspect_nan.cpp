// doctor --nan-watch: who pushes the first NaN of a running job.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "inspect_findings.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/job_segments.hpp"
#include "view/nan_watch.hpp"

namespace ps::inspect {
namespace {

std::string describe(const NanFound& found, const JobView& view) {
  const std::string what = fmt::format("{} to variable {}, element {}", found.value, found.variable, found.element);
  if (found.is_initial)
    return fmt::format("variable {} has {} at element {} in its initial values", found.variable, found.value,
                       found.element);
  if (found.suspects.empty()) return fmt::format("somebody pushed {}, up to global step {}", what, found.step);
  std::vector<std::string> names;
  for (const WorkerInfo& worker : view.workers())
    for (const std::uint32_t rank : found.suspects)
      if (rank == worker.rank) names.push_back(fmt::format("worker {} (process {})", rank, worker.pid));
  if (found.is_certain)
    return fmt::format("{} pushed {}, at global step {}: the first one", fmt::join(names, ""), what, found.step);
  if (names.size() == 1)
    return fmt::format(
        "{} pushed {}, at global step {}; whether it was there before is not known: what was pushed "
        "before is overwritten",
        names.front(), what, found.step);
  return fmt::format("one of {} pushed {}, at global step {}", fmt::join(names, ", "), what, found.step);
}

}  // namespace

void watch_for_nan(const std::string& job, double seconds, Json& examined) {
  constexpr auto kPause = std::chrono::microseconds(200);  // old buffers, which name their writers, are soon used again
  examined["nan"] = nullptr;
  shm::AttachOutcome outcome;
  auto segments = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
  if (!segments) throw Error(shm::describe(outcome, shm::control_name(job)));
  NanWatch watch(*segments);
  fmt::print(stderr, "inspect_shm: watches job {} for a push that brings NaN\n", job);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (bool is_last = false; !is_last; std::this_thread::sleep_for(kPause)) {
    is_last = std::chrono::steady_clock::now() >= until || segments->control().is_orphaned() ||
              !segments->locks().is_in_use_by_other();
    const std::optional<NanFound> found = watch.look();
    if (!found) continue;
    examined["nan"] = {
        {"variable", found->variable}, {"element", found->element}, {"value", fmt::to_string(found->value)},
        {"global_step", found->step},  {"ranks", found->suspects},  {"certain", found->is_certain}};
    add_finding(
        examined["findings"], "nan-pushed", job, describe(*found, JobView(job)),
        "look at that worker's data and learning rate; --on-nan stop or skip keeps a loss that is NaN from being "
        "pushed, --on-nan restore goes on from a checkpoint");
    return;
  }
}

}  // namespace ps::inspect
