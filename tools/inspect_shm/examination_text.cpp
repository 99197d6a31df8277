// The result of doctor, and of what was reclaimed, as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "inspect_shm/cells.hpp"
#include "inspect_shm/inspect.hpp"
#include "report/devices.hpp"

namespace ps_shm::inspect {
namespace {

std::string what_is(const Json& row) {
  return row.contains("job") ? "job " + cell(row["job"]) : "publication " + cell(row["publication"]);
}

std::string reclaimed_as_text(const Json& found) {
  std::string text;
  for (const Json& removed : found["removed"])
    text += fmt::format("{}: reclaimed {}\n", what_is(removed), bytes_as_text(removed["bytes"]));
  for (const Json& failed : found["failed"])
    text += fmt::format("{}: not reclaimed: {}\n", what_is(failed), cell(failed["why"]));
  return text;
}

// Findings of one kind about one job.
struct Alike {
  Json first;
  std::vector<std::string> others;  // what each of the rest says
};

std::vector<Alike> grouped(const Json& findings) {
  std::vector<Alike> groups;
  for (const Json& finding : findings) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Alike& one) {
      return one.first["kind"] == finding["kind"] && one.first["job"] == finding["job"];
    });
    if (same == groups.end())
      groups.push_back({finding, {}});
    else
      same->others.push_back(cell(finding["what"]));
  }
  return groups;
}

// "worker 3 (process 17)", if that is what the sentence is about; otherwise the sentence.
std::string subject_of(const std::string& what) {
  for (const std::string kind : {"worker ", "ps task ", "variable ", "table ", "publication "}) {
    if (!what.starts_with(kind)) continue;
    std::size_t end = what.find_first_of(" :", kind.size());
    if (what.compare(end, 10, " (process ") == 0) end = what.find(')', end) + 1;
    return what.substr(0, end);
  }
  return what;
}

std::string findings_as_text(const char* heading, const Json& findings) {
  std::string text;
  for (const Alike& one : grouped(findings)) {
    const Json& job = one.first["job"];
    std::vector<std::string> likewise;
    for (const std::string& what : one.others) likewise.push_back(subject_of(what));
    text += fmt::format("{}: {}{}{}\n  what to do{}: {}\n", heading,
                        job.is_null() ? "" : fmt::format("job {}: ", cell(job)), cell(one.first["what"]),
                        likewise.empty() ? "" : fmt::format("; likewise {}", fmt::join(likewise, ", ")),
                        likewise.empty() ? "" : ", for the first", cell(one.first["todo"]));
  }
  return text;
}

std::string verdict_on(const Json& examined) {
  const std::size_t faults = examined["findings"].size(), advice = examined["advice"].size();
  if (faults == 0) return "nothing is wrong\n";
  return fmt::format("{} fault{}{}\n", faults, faults == 1 ? "" : "s",
                     advice == 0 ? "" : fmt::format(", and {} piece{} of advice", advice, advice == 1 ? "" : "s"));
}

std::string job_in_a_line(const Json& row) {
  std::string text =
      fmt::format("job {}: {}{}", cell(row["job"]), cell(row["state"]), row["kept"] ? ", kept on purpose" : "");
  const Json& last = row["last"];
  if (!last.is_null()) {
    text += fmt::format(", step {}{}, workers: {} alive", cell(last["global_step"]),
                        last["finished"]     ? ", finished"
                        : last["steps"] != 0 ? fmt::format(" of {}", cell(last["steps"]))
                                             : "",
                        cell(last["workers_alive"]));
    for (const auto& [key, word] : {std::pair("workers_dead", "dead"), std::pair("workers_left", "left")})
      if (last[key] != 0) text += fmt::format(", {} {}", cell(last[key]), word);
    text += fmt::format("; ps process {}{}", cell(last["ps_pid"]),
                        last["servers"] == 1 ? "" : fmt::format(" (number {})", cell(last["servers"])));
  }
  text += fmt::format("; {}{}", size_as_text(row["bytes"]),
                      row["age_seconds"].is_null() ? "" : fmt::format(", {} old", age_as_text(row["age_seconds"])));
  if (!row["problem"].is_null()) text += fmt::format("; {}", cell(row["problem"]));
  if (row["state"] == "dead" && !row["reclaimable"] && !last.is_null() && !last["finished"])
    text += fmt::format("; ps_shm --job {} --adopt would resume it", cell(row["job"]));
  return text + "\n";
}

std::string jobs_in_lines(const Json& examined) {
  std::string text;
  std::uint64_t bytes = 0, dead = 0;
  for (const Json& row : examined["jobs"]) {
    text += job_in_a_line(row);
    if (!row["reclaimable"]) continue;
    bytes += row["bytes"].get<std::uint64_t>();
    ++dead;
  }
  if (examined["jobs"].empty()) text += "no jobs\n";
  for (const Json& row : examined.value("publications", Json::array()))
    text += fmt::format("publication {}: {}, {}\n", cell(row["publication"]), cell(row["state"]),
                        size_as_text(row["bytes"]));
  if (dead != 0)
    text += fmt::format("{} of {} dead job{} can be reclaimed: inspect_shm doctor --repair\n", bytes_as_text(bytes),
                        dead, dead == 1 ? "" : "s");
  return text;
}

// What limits jobs here. Huge pages are left out: a ps that was asked for them says itself that there are none.
std::string machine_as_text(const Json& examined) {
  constexpr std::uint64_t kFewFiles = 1024;
  const Json &system = examined["system"], &cuda = examined["cuda"];
  std::string text =
      fmt::format("/dev/shm: {} of {} free; {} processor{}", bytes_as_text(system["shm_free_bytes"]),
                  bytes_as_text(system["shm_bytes"]), cell(system["processors"]), system["processors"] == 1 ? "" : "s");
  if (system["memory_nodes"] > 1) text += fmt::format(", {} memory nodes", cell(system["memory_nodes"]));
  if (const Json& files = system["open_files_limit"]; !files.is_null() && files < kFewFiles)
    text += fmt::format("; at most {} open files", cell(files));
  if (const Json& space = system["address_space_limit"]; !space.is_null())
    text += fmt::format("; an address space of {}", bytes_as_text(space));
  const bool has_gpu = !cuda["gpus"].empty();
  if (const Json& locked = system["locked_memory_limit"]; has_gpu && !locked.is_null())
    text += fmt::format("; at most {} of locked memory", bytes_as_text(locked));
  text += '\n';
  // Why a GPU is not used matters if there is one, or if the programs were built for one.
  if (has_gpu || !cuda["built_for"].is_null() || report::has_gpu_device())
    text += report::devices_as_text(cuda);
  return text;
}

}  // namespace

std::string examination_as_text(const Json& examined, Columns columns) {
  return report::fitted(verdict_on(examined) + findings_as_text("WRONG", examined["findings"]) +
                            findings_as_text("ADVICE", examined["advice"]) + reclaimed_as_text(examined) +
                            jobs_in_lines(examined) + machine_as_text(examined),
                        columns);
}

std::string removal_as_text(const Json& removed, Columns columns) {
  if (removed.contains("failed")) {
    const std::string text = reclaimed_as_text(removed);
    return report::fitted(text.empty() ? "there are no dead jobs or publications\n" : text, columns);
  }
  const std::size_t segments = removed["removed"].size();
  return report::fitted(fmt::format("removed {}: {} segment{}, {}\n", what_is(removed), segments,
                                    segments == 1 ? "" : "s", bytes_as_text(removed["bytes"])),
                        columns);
}

}  // namespace ps_shm::inspect
