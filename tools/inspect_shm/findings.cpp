// Findings about the machine, and about jobs that cannot be inspected.
#include "inspect_shm/findings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "cli/option_names.hpp"
#include "inspect_shm/cells.hpp"
#include "inspect_shm/jobs.hpp"
#include "inspect_shm/processes.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::inspect {
namespace {

constexpr std::uint64_t kContainerBytes = 64 << 20;  // the default of Docker and Kubernetes for /dev/shm
constexpr std::uint64_t kFullShare = 20;             // less than this part of /dev/shm is free

void find_room(Json& examined) {
  const Json& system = examined["system"];
  const std::uint64_t all = system["shm_bytes"], free = system["shm_free_bytes"];
  if (all <= kContainerBytes)
    add_finding(
        examined, "small-shm", "",
        fmt::format("/dev/shm has a capacity of {} only{}", bytes_as_text(all),
                    all == kContainerBytes ? ", the default of containers" : ""),
        "docker run --shm-size=8g, or --ipc=host; in Kubernetes a volume emptyDir with medium: Memory at /dev/shm; "
        "without a container: mount -o remount,size=8g /dev/shm");
  if (free < all / kFullShare)
    add_finding(examined, "full-shm", "",
                fmt::format("/dev/shm is nearly full: {} of {} are free; a job that needs more fails",
                            bytes_as_text(free), bytes_as_text(all)),
                "inspect_shm ls shows the size of each job; doctor --repair removes dead ones; or mount -o "
                "remount,size=SIZE /dev/shm");
}

void find_threads(Json& examined) {
  std::uint64_t threads = 0, workers = 0;
  for (const Json& row : examined["jobs"]) {
    if (row["state"] != "live" && row["state"] != "orphaned") continue;
    try {
      const JobView view(row["job"]);
      const std::uint32_t per_worker = view.info().config.threads;
      for (const WorkerInfo& worker : view.workers())
        if (worker.state == WorkerState::kAlive) ++workers, threads += per_worker;
    } catch (const Error&) {
      // It is gone meanwhile, or damaged, which other findings report.
    }
  }
  const std::uint64_t cores = examined["system"]["processors"];
  if (threads > cores)
    add_finding(examined, "too-many-threads", "",
                fmt::format("{} workers with {} threads share {} cores", workers, threads, cores),
                "start fewer workers, or fewer --threads; the cost is highest if workers wait for each other");
}

// A job that was named and belongs to another user. Unless named, jobs of other users are not a problem.
void find_other_user(const std::string& only, Json& examined) {
  for (const Json& row : examined["jobs"]) {
    const std::string job = row["job"];
    if (job != only || row["state"] != "no permission") continue;
    const auto owner = user_of(shm::control_name(job));
    if (!owner) continue;
    add_finding(examined, "other-user", job,
                fmt::format("it belongs to user {}; the current user {} can neither join nor inspect it",
                            user_name(*owner), user_name(geteuid())),
                "start all processes of a job, in all its containers, as one user; or give its ps and all its users "
                "the same --group");
  }
}

// Jobs that can no longer be joined or inspected, although processes continue to use them.
void find_removed(const std::string& only, Json& examined) {
  for (const auto& [job, pids] : processes_without_names()) {
    if (!only.empty() && job != only) continue;
    // The end of a job looks the same for a moment.
    usleep(200'000);
    const auto again = processes_without_names();
    if (again.count(job) == 0) continue;
    add_finding(examined, "removed-segments", job,
                fmt::format("its segments were removed from /dev/shm while in use by process{} {}",
                            pids.size() == 1 ? "" : "es", fmt::join(again.at(job), ", ")),
                "it can no longer be joined or inspected: end these processes, and restart from a checkpoint. If "
                "systemd removed "
                "them (RemoveIPC=yes, at the user's last logout): loginctl enable-linger USER");
  }
}

void find_logind(Json& examined) {
  std::set<std::uint32_t> told;
  for (const Json& row : examined["jobs"]) {
    if (row["state"] != "live" && row["state"] != "orphaned") continue;
    const auto user = user_of(shm::control_name(row["job"].get<std::string>()));
    if (user && logind_removes_of(*user) && told.insert(*user).second)
      add_finding(
          examined, "remove-ipc", row["job"],
          fmt::format("systemd removes the segments of user {} at their last logout (RemoveIPC=yes), even those of "
                      "running jobs",
                      user_name(*user)),
          fmt::format("loginctl enable-linger {}; or RemoveIPC=no in /etc/systemd/logind.conf", user_name(*user)));
  }
}

void add_folder(Json& examined, const std::string& job, const std::string& folder) {
  add_finding(examined, "leftover", job, fmt::format("/dev/shm/{} is a folder, not a segment", folder),
              "see what is in it, and remove it by hand: inspect_shm removes only segments");
}

void find_leftovers(Json& examined) {
  for (const Json& row : examined["jobs"]) {
    const std::string job = row["job"], state = row["state"];
    if (const std::string folder = folder_among(row["segments"]); !folder.empty())
      add_folder(examined, job, folder);
    else if (row["reclaimable"])
      add_finding(examined, "leftover", job,
                  fmt::format("it is unused and occupies {}; its state: {}", size_as_text(row["bytes"]), state),
                  fmt::format("inspect_shm rm --job {}{}{}", job, state == "dead" ? "" : " --force",
                              state == "dead" && !row["last"].is_null() && !row["last"]["finished"]
                                  ? fmt::format("; or resume it: ps_shm --job {} --adopt", job)
                                  : ""));
    else if (state == "damaged" || state == "other version" || state == "other build" || state == "exposed")
      add_finding(examined, "unreadable-job", job,
                  fmt::format("{}, and this program cannot read it; its state: {}{}",
                              row["held"] ? "it is in use" : "it is unused", state,
                              row["problem"].is_null() ? "" : fmt::format(": {}", row["problem"].get<std::string>())),
                  "inspect it with programs of its own version; inspect_shm show prints its header");
  }
  if (!examined.contains("publications")) return;
  for (const Json& row : examined["publications"])
    if (const std::string folder = folder_among({shm::bundle_name(row["publication"])}); !folder.empty())
      add_folder(examined, "", folder);
    else if (row["reclaimable"])
      add_finding(
          examined, "leftover", "",
          fmt::format("publication {} is unused and occupies {}; its state: {}", row["publication"].get<std::string>(),
                      bytes_as_text(row["bytes"]), row["state"].get<std::string>()),
          fmt::format("inspect_shm rm --publication {}; or let its next publisher take it over",
                      row["publication"].get<std::string>()));
}

}  // namespace

void add_finding(Json& examined, const char* kind, const std::string& job, std::string what, std::string todo) {
  static const std::set<std::string> kAdvice = {"small-shm",         "too-many-threads", "remove-ipc",
                                                "unbalanced-shards", "wrong-node",       "unregistered-gpu",
                                                "forgotten-worker",  "full-table"};
  examined[kAdvice.count(kind) != 0 ? "advice" : "findings"].push_back({{"kind", kind},
                                                                        {"job", job.empty() ? Json() : Json(job)},
                                                                        {"what", tools::with_option_names(what)},
                                                                        {"todo", std::move(todo)}});
}

void find_machine_faults(const std::string& only, Json& examined) {
  find_room(examined);
  find_threads(examined);
  find_other_user(only, examined);
  find_removed(only, examined);
  find_logind(examined);
  find_leftovers(examined);
}

}  // namespace ps_shm::inspect
