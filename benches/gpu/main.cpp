// Measures on a GPU what the driver's answers leave open, and the links beside bare copies; one JSON object on stdout.
// Bounded: four and a half minutes in all, one minute with --quick, and what --table-mib adds. Without a GPU it says
// why and exits with 77.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "../report.hpp"
#include "device/probe.hpp"
#include "on_gpu.hpp"
#include "shm/segment/segment.hpp"

namespace {

using namespace ps_shm::bench;

constexpr char kUsage[] =
    "gpu [--quick] [--only SECTION] [--to FOLDER] [--table-mib N] [--patience X] [--help]\n"
    "  --quick         small sizes and few rounds\n"
    "  --only SECTION  one of registrations, waits, tearing, adds_with_processors, adds_of_two_processes, moves,\n"
    "                  death, links, rows\n"
    "  --to FOLDER     writes each section to a file there, case by case, and prints all sections that are there\n"
    "  --table-mib N   how large rows' table is, by default at most 2 GiB; give more than the GPU has\n"
    "  --patience X    factor of all limits of time, for a machine that is busy (1)\n";

struct Section {
  const char* name;
  Json (*run)(const SectionOptions&);
  double most_seconds;  // together with the facts' below four and a half minutes
};
constexpr Section kSections[] = {{"registrations", registrations, 20},
                                 {"waits", waits, 10},
                                 {"tearing", tearing, 15},
                                 {"adds_with_processors", adds_with_processors, 18},
                                 {"adds_of_two_processes", adds_of_two_processes, 12},
                                 {"moves", moves, 30},
                                 {"death", death, 20},
                                 {"links", links, 60},
                                 {"rows", rows, 60}};
constexpr double kQuickSeconds = 58;
constexpr double kSecondsPerMib = 0.02;  // to fill and register a table, three times over

bool has_error(const Json& found) {
  if (!found.is_structured()) return false;
  if (found.is_object() && found.contains("error")) return true;
  for (const Json& part : found)
    if (has_error(part)) return true;
  return false;
}

// Removes the jobs of a section that was ended before it could do so itself.
void remove_jobs(const std::string& prefix) {
  for (const std::string& segment : ps_shm::shm::list_segments("ps_shm." + prefix))
    ps_shm::shm::unlink_segment(segment);
}

namespace fs = std::filesystem;

// Replaces the file at once, so that it is never half written.
void write_file(const fs::path& path, const Json& found) {
  const fs::path part = path.string() + ".part";
  std::ofstream out(part);
  out << found.dump(2) << '\n';
  out.close();
  if (!out) throw std::runtime_error("cannot write " + part.string());
  fs::rename(part, path);
}

// What earlier runs have written.
void add_sections(const fs::path& folder, Json& all) {
  for (const Section& section : kSections)
    if (std::ifstream in(folder / (std::string(section.name) + ".json")); in)
      all[section.name] = Json::parse(in).at(section.name);
}

// While a process has a GPU open, its driver stays as it is, and the sections need not wait for it to be set up anew.
void keep_gpus_open() {
  for (const ps_shm::device::DeviceFile& file : ps_shm::device::nvidia_device_files())
    if (file.may_open) static_cast<void>(open(file.path.c_str(), O_RDWR | O_CLOEXEC));  // until this process ends
}

}  // namespace

int main(int argc, char** argv) {
  SectionOptions options{.quick = false, .job_prefix = fmt::format("bench-{}-gpu", getpid())};
  std::string only;
  fs::path folder;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") return fmt::print("{}", kUsage), 0;
    if (argument == "--quick")
      options.quick = true;
    else if (argument == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (argument == "--to" && i + 1 < argc)
      folder = argv[++i];
    else if (argument == "--table-mib" && i + 1 < argc && std::atoll(argv[i + 1]) > 0)
      options.table_mib = static_cast<std::size_t>(std::atoll(argv[++i]));
    else if (argument == "--patience" && i + 1 < argc && std::atof(argv[i + 1]) > 0)
      options.patience = std::atof(argv[++i]);
    else
      return fmt::print(stderr, "{}", kUsage), 2;
  }
  if (!may_report("gpu")) return 1;
  end_sections_at_signals();
  keep_gpus_open();

  const double begin = now_seconds();
  Json all;
  all["facts"] = run_section([&](const SoFar&) { return facts(options); }, (options.quick ? 10 : 15) * options.patience);
  if (all["facts"].contains("no_gpu")) {
    fmt::print("skip: no GPU ({})\n", all["facts"]["no_gpu"].get<std::string>());
    return 77;
  }
  for (const auto& [key, value] : environment("not pinned")) all["context"][key] = value;
  all["context"]["quick"] = options.quick;
  const Json context = all;
  bool is_known = only.empty(), is_whole = true;
  if (!folder.empty()) {
    fs::create_directories(folder);
    add_sections(folder, all);
  }
  for (const Section& section : kSections) {
    if (!only.empty() && only != section.name) continue;
    is_known = true;
    if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "{}\n", section.name);
    const double most = section.most_seconds * options.patience;
    const double left = options.quick ? kQuickSeconds * options.patience - (now_seconds() - begin) : most;
    const double more = double(options.table_mib) * kSecondsPerMib * options.patience;
    const auto keep = [&](const Json& found) {
      all[section.name] = found;
      if (folder.empty()) return;
      Json with_context = context;
      with_context[section.name] = found;
      write_file(folder / (std::string(section.name) + ".json"), with_context);
    };
    const auto run = [&](const SoFar& so_far) {
      options.so_far = so_far;
      return section.run(options);
    };
    const Json found = run_section(run, std::min(left, most) + more, keep);
    keep(found);
    is_whole = is_whole && !has_error(found);
    remove_jobs(options.job_prefix);
  }
  if (!is_known) return fmt::print(stderr, "{}", kUsage), 2;
  all["seconds"] = now_seconds() - begin;
  fmt::print("{}\n", all.dump(2));
  if (was_stopped()) return 130;
  return is_whole && !has_error(context) ? 0 : 1;
}
