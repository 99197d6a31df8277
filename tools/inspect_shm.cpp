// inspect_shm: shows the jobs of this machine, live, hung or dead, and removes dead ones. Only `set`, `rm` and `doctor --repair` write.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "inspect.hpp"
#include "shm/truncation.hpp"

namespace {

using ps::inspect::Json;

struct Options {
  std::string job;
  bool json = false, force = false, repair = false;
  std::uint64_t limit = 16;  // two lines of a terminal
  std::vector<std::string> variables, changes;
  std::string kind;
};

struct Command {
  CLI::App* app;
  std::function<Json(const std::string& job)> find;
  std::function<std::string(const Json&)> as_text;
};

// One line, so that scripts can show it.
int fail(int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  fmt::print(stderr, "inspect_shm: {}\n", message);
  return code;
}

void run(const Command& command, const Options& options, bool of_one_job) {
  std::string job = options.job;
  if (of_one_job && job.empty()) job = ps::inspect::only_job();
  const Json found = command.find(job);
  const std::string text =
      options.json ? found.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : command.as_text(found);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  namespace inspect = ps::inspect;
  ps::shm::survive_truncation();
  CLI::App app{
      "Shows the jobs of this machine, live, hung or dead; set changes running ones, rm and doctor --repair remove "
      "dead ones."};
  app.require_subcommand(1);
  Options options;
  const auto add = [&](const char* name, const char* what, bool of_one_job) {
    CLI::App* command = app.add_subcommand(name, what);
    command->add_flag("--json", options.json, "print one JSON object");
    if (of_one_job)
      command->add_option("--job", options.job, "the job; may be left out where there is only one")->envname("PS_JOB");
    return command;
  };

  const Command commands[] = {
      {add("ls", "all jobs: state, ps, workers, step, size", false),
       [](const std::string&) { return inspect::list_jobs(); }, inspect::jobs_as_text},
      {add("show", "settings, segments, step state", true), inspect::show_job, inspect::job_as_text},
      {add("vars", "the variables", true), inspect::list_variables, inspect::variables_as_text},
      {add("workers", "the workers: counters, staleness, what they wait for", true), inspect::list_workers,
       inspect::workers_as_text},
      {add("events", "what has happened: joins, deaths, changes, the contributors of sync steps", true),
       [&](const std::string& job) { return inspect::list_events(job, options.kind); }, inspect::events_as_text},
      {add("set", "change a running job: mode, staleness, quorum, lr, clip-norm, workers", true),
       [&](const std::string& job) { return inspect::change_settings(job, options.changes); },
       inspect::changes_as_text},
      {add("dump", "values and statistics of variables", true),
       [&](const std::string& job) { return inspect::dump_values(job, options.variables, options.limit); },
       inspect::values_as_text},
      {add("doctor", "what this machine offers, which jobs have died and what they have left", false),
       [&](const std::string& job) { return inspect::examine(job, options.repair); }, inspect::examination_as_text},
      {add("rm", "remove a dead job's segments", true),
       [&](const std::string& job) { return inspect::remove(job, options.force); }, inspect::removal_as_text},
  };
  CLI::App* dump = app.get_subcommand("dump");
  dump->add_option("VARIABLE", options.variables, "which; all of them without");
  dump->add_option("--limit", options.limit, "how many values of each to print; 0: all")
      ->check([](const std::string& text) { return std::string(text[0] == '-' ? "must be 0 or more" : ""); })
      ->capture_default_str();
  app.get_subcommand("events")->add_option("--kind", options.kind, "only of this kind, such as joined or decided");
  app.get_subcommand("set")->add_option("KEY=VALUE", options.changes, "such as lr=0.005")->required();
  CLI::App* doctor = app.get_subcommand("doctor");
  doctor->add_option("--job", options.job, "only that job");
  doctor->add_flag("--repair", options.repair, "reclaim what dead jobs have left; never a live job, never a kept one");
  app.get_subcommand("rm")->add_flag("--force", options.force,
                                     "also remove damaged and half-made segments; never those of a live job");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return fail(2, std::string(error.what()) + "; see inspect_shm --help");
  }
  try {
    for (const Command& command : commands)
      if (command.app->parsed())
        run(command, options, command.app->get_name() != "ls" && command.app->get_name() != "doctor");
  } catch (const inspect::BadUsage& error) {
    return fail(2, std::string(error.what()) + "; see inspect_shm set --help");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
  return 0;
}
