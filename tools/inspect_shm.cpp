// inspect_shm: shows the jobs of this machine, live, hung or dead, and removes dead ones. Only `set`, `rm` and `doctor --repair` write.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inspect.hpp"
#include "inspect_help.hpp"
#include "output.hpp"
#include "shm/truncation.hpp"
#include "version.hpp"

namespace {

using ps::inspect::Columns;
using ps::inspect::Json;

struct Options {
  std::string job, publication, group, folder;
  bool json = false, wide = false, force = false, repair = false, all_dead = false, yes = false;
  std::uint64_t limit = 16;  // two lines of a terminal
  std::vector<std::string> variables, changes;
  std::string kind;
};

struct Command {
  CLI::App* app;
  std::function<Json(const std::string& job)> find;
  std::function<std::string(const Json&, Columns)> as_text;
};

int fail(int code, const std::string& message) { return ps::tools::fail("inspect_shm", code, message); }

// Asks somebody at a terminal; elsewhere a name is enough.
bool is_confirmed(const Options& options) {
  if (options.yes || isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) return true;
  const std::string what = options.all_dead              ? "all dead jobs and publications"
                           : options.publication.empty() ? fmt::format("job {}", options.job)
                                                         : fmt::format("publication {}", options.publication);
  fmt::print(stderr, "remove {} from /dev/shm? [y/N] ", what);
  const int answer = std::getchar();
  return answer == 'y' || answer == 'Y';
}

// Throws Error: somebody at the terminal said no.
Json remove(const Options& options) {
  if (!options.job.empty() + !options.publication.empty() + options.all_dead != 1)
    throw ps::inspect::BadUsage(
        "name the job to remove by --job, or the publication by --publication, or give --all-dead instead");
  if (!is_confirmed(options)) throw ps::Error("nothing was removed");
  if (!options.publication.empty()) return ps::inspect::remove_publication(options.publication, options.force);
  return options.all_dead ? ps::inspect::remove_dead() : ps::inspect::remove(options.job, options.force);
}

void show(const Command& command, const Options& options, bool of_one_job) {
  std::string job = options.job;
  if (of_one_job && job.empty()) job = ps::inspect::only_job();
  const Json found = command.find(job);
  const Columns columns = options.wide ? std::nullopt : ps::report::columns_of(stdout);
  const std::string text =
      options.json ? found.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : command.as_text(found, columns);
  ps::tools::write_out(text);
}

namespace inspect = ps::inspect;

int run(int argc, char** argv) {
  ps::shm::survive_truncation();
  CLI::App app{
      "Shows the jobs of this machine, live, hung or dead; set changes running ones, rm and doctor --repair remove "
      "dead ones."};
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "print this");
  app.set_version_flag("--version", ps::tools::version_text("inspect_shm"));
  Options options;
  const auto add = [&](const char* name, const char* what, bool of_one_job) {
    CLI::App* command = app.add_subcommand(name, what);
    command->add_flag("--json", options.json, "print one JSON object");
    command->add_flag("--wide", options.wide, "show all, however wide it gets; so it is where stdout is no terminal");
    if (of_one_job)
      command->add_option("--job", options.job, "the job; may be left out where there is only one")
          ->type_name("NAME")
          ->envname("PS_JOB");
    return command;
  };

  const Command commands[] = {
      {add("ls", "all jobs: state, ps, workers, step, size; and all publications", false),
       [](const std::string&) { return inspect::list_jobs(); }, inspect::jobs_as_text},
      {add("show", "settings, segments, step state", true), inspect::show_job, inspect::job_as_text},
      {add("vars", "the variables", true), inspect::list_variables, inspect::variables_as_text},
      {add("workers", "the workers: counters, staleness, what they wait for", true), inspect::list_workers,
       inspect::workers_as_text},
      {add("events", "what has happened: joins, deaths, changes, the contributors of sync steps", true),
       [&](const std::string& job) { return inspect::list_events(job, options.kind); }, inspect::events_as_text},
      {add("set", ("change a running job: " + inspect::live_names()).c_str(), true),
       [&](const std::string& job) { return inspect::change_settings(job, options.group, options.changes); },
       inspect::changes_as_text},
      {add("dump", "values and statistics of variables", true),
       [&](const std::string& job) {
         return options.folder.empty() ? inspect::dump_values(job, options.variables, options.limit)
                                       : inspect::dump_files(job, options.variables, options.folder);
       },
       inspect::values_as_text},
      {add("publications", "the publications: newest generation, publisher, subscribers and what they hold", false),
       [&](const std::string&) { return inspect::list_publications(options.publication); },
       inspect::publications_as_text},
      {add("doctor", "what this machine offers, which jobs have died and what they have left", false),
       [&](const std::string& job) { return inspect::examine(job, options.repair); }, inspect::examination_as_text},
      {add("rm", "remove the segments of a dead job or publication", false),
       [&](const std::string&) { return remove(options); }, inspect::removal_as_text},
  };
  CLI::App* dump = app.get_subcommand("dump");
  dump->add_option("VARIABLE", options.variables, "which; all of them without");
  dump->add_option("--npy", options.folder, "write them to a folder instead, with optimizer slots and averages")
      ->type_name("DIR");
  dump->add_option("--limit", options.limit, "how many values of each to print; 0: all")
      ->type_name("N")
      ->check([](const std::string& text) { return std::string(text[0] == '-' ? "must be 0 or more" : ""); })
      ->capture_default_str();
  app.get_subcommand("events")
      ->add_option("--kind", options.kind, "only of this kind, such as joined or decided")
      ->type_name("KIND");
  app.get_subcommand("set")->add_option("KEY=VALUE", options.changes, "such as lr=0.005")->required();
  app.get_subcommand("set")
      ->add_option("--group", options.group, "the group that shares another user's job")
      ->type_name("NAME");
  CLI::App* doctor = app.get_subcommand("doctor");
  doctor->add_option("--job", options.job, "only that job")->type_name("NAME");
  doctor->add_flag("--repair", options.repair,
                   "reclaim what dead jobs and publications have left; never a live or kept one");
  CLI::App* rm = app.get_subcommand("rm");
  rm->add_option("--job", options.job, "the job")->type_name("NAME")->envname("PS_JOB");
  for (CLI::App* command : {rm, app.get_subcommand("publications")})
    command->add_option("--publication", options.publication, command == rm ? "the publication" : "only that one")
        ->type_name("NAME");
  rm->add_flag("--all-dead", options.all_dead, "all dead jobs and publications instead; never a kept job");
  rm->add_flag("--yes", options.yes, "do not ask at a terminal");
  rm->add_flag("--force", options.force, "also remove damaged and half-made segments; never those of a live job");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    ps::tools::write_out(to_text(inspect::help_of(app)));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    ps::tools::write_out(version.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string mistake = inspect::describe_mistake(app, argc, argv);
    return fail(2, (mistake.empty() ? error.what() : mistake) + " (see inspect_shm --help)");
  }
  try {
    for (const Command& command : commands)
      if (command.app->parsed())
        show(command, options,
             command.app->get_name() != "ls" && command.app->get_name() != "publications" &&
                 command.app->get_name() != "doctor" && command.app->get_name() != "rm");
  } catch (const inspect::BadUsage& error) {
    return fail(2, std::string(error.what()) + " (see inspect_shm --help)");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return ps::tools::run_main("inspect_shm", argc, argv, [&] { return run(argc, argv); });
}
