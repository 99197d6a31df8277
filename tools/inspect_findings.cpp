// What is wrong with the machine for jobs, and with jobs that can't be looked into.
#include "inspect_findings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "inspect_cells.hpp"
#include "inspect_processes.hpp"
#include "option_names.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/names.hpp"

namespace ps::inspect {
namespace {

constexpr std::uint64_t kContainerBytes = 64 << 20;  // what Docker gives /dev/shm, and Kubernetes
constexpr std::uint64_t kFullShare = 20;             // less than this part of /dev/shm is free

void find_room(const Json& system, Json& findings) {
  const std::uint64_t all = system["shm_bytes"], free = system["shm_free_bytes"];
  if (all <= kContainerBytes)
    add_finding(
        findings, "small-shm", "",
        fmt::format("/dev/shm holds {} in all, as containers have it unless they are asked for more",
                    bytes_as_text(all)),
        "docker run --shm-size=8g, or --ipc=host; in Kubernetes a volume emptyDir with medium: Memory at /dev/shm");
  if (free < all / kFullShare)
    add_finding(findings, "full-shm", "",
                fmt::format("/dev/shm is nearly full: {} of {} are free; a job that grows fails", bytes_as_text(free),
                            bytes_as_text(all)),
                "inspect_shm ls shows what jobs take; doctor --repair reclaims what dead ones have left; or mount -o "
                "remount,size=SIZE /dev/shm");
}

void find_threads(const Json& examined, Json& findings) {
  std::uint64_t threads = 0, workers = 0;
  for (const Json& row : examined["jobs"]) {
    if (row["state"] != "live" && row["state"] != "orphaned") continue;
    try {
      const JobView view(row["job"]);
      const std::uint32_t per_worker = view.info().config.threads;
      for (const WorkerInfo& worker : view.workers())
        if (worker.state == WorkerState::kAlive) ++workers, threads += per_worker;
    } catch (const Error&) {
      // It has gone meanwhile, or is damaged, which others say.
    }
  }
  const std::uint64_t cores = examined["system"]["processors"];
  if (threads > cores)
    add_finding(findings, "too-many-threads", "",
                fmt::format("{} workers with {} threads share {} cores", workers, threads, cores),
                "start fewer workers, or fewer --threads; where workers wait for each other it costs most");
}

// A job that is asked for and is another user's. Where nobody asks, it is no fault that others have jobs.
void find_other_user(const std::string& only, const Json& examined, Json& findings) {
  for (const Json& row : examined["jobs"]) {
    const std::string job = row["job"];
    if (job != only || row["state"] != "no permission") continue;
    const auto owner = user_of(shm::control_name(job));
    if (!owner) continue;
    add_finding(findings, "other-user", job,
                fmt::format("it belongs to user {}, and user {}, who asks, can neither join it nor look into it",
                            user_name(*owner), user_name(geteuid())),
                "start all processes of a job, in all its containers, as one user; or its ps, and what uses it, with "
                "one --group");
  }
}

// Jobs that nobody can join or look into any more, though processes work on.
void find_removed(const std::string& only, Json& findings) {
  for (const auto& [job, pids] : processes_without_names()) {
    if (!only.empty() && job != only) continue;
    // The end of a job looks the same for a moment.
    usleep(200'000);
    const auto again = processes_without_names();
    if (again.count(job) == 0) continue;
    add_finding(
        findings, "removed-segments", job,
        fmt::format("its segments have been removed from /dev/shm under process{} {}, which go on without them",
                    pids.size() == 1 ? "" : "es", fmt::join(again.at(job), ", ")),
        "nobody can join it or look at it any more: end these processes, and begin with a checkpoint. Where systemd "
        "has done it (RemoveIPC=yes, at the user's last logout): loginctl enable-linger USER");
  }
}

void find_logind(const Json& examined, Json& findings) {
  std::set<std::uint32_t> told;
  for (const Json& row : examined["jobs"]) {
    if (row["state"] != "live" && row["state"] != "orphaned") continue;
    const auto user = user_of(shm::control_name(row["job"].get<std::string>()));
    if (user && logind_removes_of(*user) && told.insert(*user).second)
      add_finding(
          findings, "remove-ipc", row["job"],
          fmt::format("systemd removes the segments of user {} at their last logout (RemoveIPC=yes), also under "
                      "running jobs",
                      user_name(*user)),
          fmt::format("loginctl enable-linger {}; or RemoveIPC=no in /etc/systemd/logind.conf", user_name(*user)));
  }
}

void find_leftovers(const Json& examined, Json& findings) {
  for (const Json& row : examined["jobs"]) {
    const std::string job = row["job"], state = row["state"];
    if (row["reclaimable"])
      add_finding(findings, "leftover", job,
                  fmt::format("nobody uses it, and it takes {}; its state: {}", bytes_as_text(row["bytes"]), state),
                  fmt::format("inspect_shm rm --job {}{}{}", job, state == "dead" ? "" : " --force",
                              state == "dead" && !row["last"].is_null() && !row["last"]["finished"]
                                  ? fmt::format("; or go on with it: ps_shm --job {} --adopt", job)
                                  : ""));
    else if (state == "damaged" || state == "other version" || state == "other build" || state == "exposed")
      add_finding(findings, "unreadable-job", job,
                  fmt::format("{}, and this program cannot read it; its state: {}{}",
                              row["held"] ? "it is in use" : "nobody uses it", state,
                              row["problem"].is_null() ? "" : fmt::format(": {}", row["problem"].get<std::string>())),
                  "look at it with programs of its own version; inspect_shm show says what its header has");
  }
  if (!examined.contains("publications")) return;
  for (const Json& row : examined["publications"])
    if (row["reclaimable"])
      add_finding(findings, "leftover", "",
                  fmt::format("nobody uses publication {}, and it takes {}; its state: {}",
                              row["publication"].get<std::string>(), bytes_as_text(row["bytes"]),
                              row["state"].get<std::string>()),
                  fmt::format("inspect_shm rm --publication {}; or let its next publisher go on with it",
                              row["publication"].get<std::string>()));
}

}  // namespace

void add_finding(Json& findings, const char* kind, const std::string& job, std::string what, std::string todo) {
  findings.push_back({{"kind", kind},
                      {"job", job.empty() ? Json() : Json(job)},
                      {"what", tools::with_option_names(what)},
                      {"todo", std::move(todo)}});
}

void find_machine_faults(const std::string& only, const Json& examined, Json& findings) {
  find_room(examined["system"], findings);
  find_threads(examined, findings);
  find_other_user(only, examined, findings);
  find_removed(only, findings);
  find_logind(examined, findings);
  find_leftovers(examined, findings);
}

}  // namespace ps::inspect
