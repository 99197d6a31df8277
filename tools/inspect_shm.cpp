// inspect_shm: shows the jobs of this machine, live, hung or dead, and removes dead ones. docs/inspector.md lists what
// writes.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/values.hpp"
#include "inspect.hpp"
#include "inspect_help.hpp"
#include "output.hpp"
#include "shm/truncation.hpp"
#include "version.hpp"
#include "watch/watch.hpp"

namespace {

using ps::inspect::Columns;
using ps::inspect::Json;

constexpr int kFound = 3;  // vars --uninitialised: there are some; diff: they differ; doctor: something is wrong

struct Options {
  std::string job, publication, group, npy, slice, nan_watch;
  bool uninitialised = false, placement = false;
  bool json = false, wide = false, force = false, repair = false, all_dead = false, yes = false, follow = false;
  std::uint64_t limit = 16;  // two lines of a terminal
  std::uint64_t sample = 0;
  bool values = false, openmetrics = false;
  std::string textfile, address = "127.0.0.1";
  std::uint16_t port = 9464;
  std::vector<std::string> variables, changes, states;
  std::string kind;
};

const std::set<std::string> kOfNoJob = {"ls", "publications", "diff", "doctor", "metrics", "serve", "rm"};

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

// A line, or with --json an object in a line, for each event.
void follow(const std::string& job, const Options& options, Columns columns) {
  ps::inspect::follow_events(job, options.kind, [&](const Json& event) {
    ps::tools::write_out(options.json ? event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                                      : ps::inspect::events_as_text({{"events", Json::array({event})}}, columns));
  });
}

// Whether a command that looks for something has found it.
bool has_found(const Json& found) {
  const auto has_some = [&](const char* key) { return found.contains(key) && !found[key].empty(); };
  return has_some("uninitialised") || has_some("findings") || (found.contains("equal") && !found["equal"]);
}

// Returns the exit code.
int show(const Command& command, const Options& options, bool of_one_job) {
  std::string job = options.job;
  if (of_one_job && job.empty()) job = ps::inspect::only_job();
  const Columns columns = options.wide ? std::nullopt : ps::report::columns_of(stdout);
  if (options.follow) {
    follow(job, options, columns);
    return 0;
  }
  const Json found = command.find(job);
  const std::string text =
      options.json ? found.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : command.as_text(found, columns);
  ps::tools::write_out(text);
  return has_found(found) ? kFound : 0;
}

namespace inspect = ps::inspect;

inspect::MetricsRequest metrics_of(const Options& options) {
  return {options.job, options.textfile, options.values, options.openmetrics};
}

// Returns the exit code.
int serve_scrapes(const Options& options) {
  constexpr int kInterrupted = 130;
  inspect::serve_metrics(metrics_of(options), options.address, options.port, [&](const std::string& url) {
    ps::tools::write_out(options.json ? Json({{"url", url}}).dump() + "\n" : url + "\n");
  });
  return kInterrupted;
}

Json examine(const Options& options) {
  if (options.nan_watch.empty()) return inspect::examine(options.job, options.repair);
  double seconds = 0;
  try {
    seconds = ps::config::read_seconds(options.nan_watch);
  } catch (const ps::Error& error) {
    throw inspect::BadUsage(fmt::format("--nan-watch: {}", error.what()));
  }
  const std::string job = options.job.empty() ? inspect::only_job() : options.job;
  Json found = inspect::examine(job, options.repair);
  inspect::watch_for_nan(job, seconds, found);
  return found;
}

Json dump(const std::string& job, const Options& options) {
  const inspect::DumpRequest request{options.variables, options.slice, options.limit};
  if (options.npy.ends_with(".npy")) return inspect::dump_file(job, request, options.npy);
  if (options.npy.empty()) return inspect::dump_values(job, request);
  if (!options.slice.empty()) throw inspect::BadUsage("--slice: of one variable; name a file FILE.npy by --npy");
  return inspect::dump_files(job, options.variables, options.npy);
}

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
      {add("vars", "the variables", true),
       [&](const std::string& job) {
         if (options.uninitialised) return inspect::list_uninitialised(job);
         return options.placement ? inspect::list_placement(job) : inspect::list_variables(job);
       },
       [&](const Json& listed, Columns columns) {
         if (options.uninitialised) return inspect::uninitialised_as_text(listed, columns);
         return options.placement ? inspect::placement_as_text(listed, columns)
                                  : inspect::variables_as_text(listed, columns);
       }},
      {add("workers", "the workers: counters, staleness, what they wait for", true), inspect::list_workers,
       inspect::workers_as_text},
      {add("events", "what has happened: joins, deaths, changes, the contributors of sync steps", true),
       [&](const std::string& job) { return inspect::list_events(job, options.kind); }, inspect::events_as_text},
      {add("set", ("change a running job: " + inspect::live_names()).c_str(), true),
       [&](const std::string& job) { return inspect::change_settings(job, options.group, options.changes); },
       inspect::changes_as_text},
      {add("dump", "values and statistics of variables", true),
       [&](const std::string& job) { return dump(job, options); }, inspect::values_as_text},
      {add("stats", "statistics and histograms of variables", true),
       [&](const std::string& job) { return inspect::sum_up(job, options.variables, options.sample); },
       inspect::statistics_as_text},
      {add("diff", "how two states differ: each a job, JOB@snapshot, or the folder of a checkpoint", false),
       [&](const std::string&) {
         return inspect::find_differences(options.states[0], options.states[1], options.group);
       },
       inspect::difference_as_text},
      {add("publications", "the publications: newest generation, publisher, subscribers and what they hold", false),
       [&](const std::string&) { return inspect::list_publications(options.publication); },
       inspect::publications_as_text},
      {add("doctor",
           "what is wrong with jobs and what to do, what this machine offers; exit code 3: something is wrong", false),
       [&](const std::string&) { return examine(options); }, inspect::examination_as_text},
      {add("metrics", "what a Prometheus server scrapes, as text", false),
       [&](const std::string&) { return inspect::gather_metrics(metrics_of(options)); }, inspect::metrics_as_text},
      {add("serve", "answer a Prometheus server's scrapes over HTTP, until it is interrupted", false), {}, {}},
      {add("rm", "remove the segments of a dead job or publication", false),
       [&](const std::string&) { return remove(options); }, inspect::removal_as_text},
  };
  CLI::App* watch = app.add_subcommand("watch", "a running job, live, on the whole terminal; plain lines elsewhere");
  watch->add_option("--job", options.job, "the job; may be left out where there is only one")
      ->type_name("NAME")
      ->envname("PS_JOB");
  CLI::App* vars = app.get_subcommand("vars");
  vars->add_flag("--uninitialised", options.uninitialised,
                 "the names of those that nobody has initialised; exit code 3 where there are some")
      ->excludes(vars->add_flag("--placement", options.placement, "where each variable, or part of one, is"));
  CLI::App* dump = app.get_subcommand("dump");
  dump->add_option("VARIABLE", options.variables, "which; all of them without");
  dump->add_option("--slice", options.slice, "a part of the one variable, as numpy writes it: 0:10,3")
      ->type_name("SLICE");
  dump->add_option("--npy", options.npy,
                   "write the one variable to FILE.npy instead, or all to a folder, with optimizer slots and averages")
      ->type_name("FILE.npy|DIR");
  dump->add_option("--limit", options.limit, "how many values of each to print; 0: all")
      ->type_name("N")
      ->check([](const std::string& text) { return std::string(text[0] == '-' ? "must be 0 or more" : ""); })
      ->capture_default_str();
  CLI::App* stats = app.get_subcommand("stats");
  stats->add_option("VARIABLE", options.variables, "which; all of them without");
  stats->add_option("--sample", options.sample, "look at about so many elements of each; 0: all")
      ->type_name("N")
      ->check([](const std::string& text) { return std::string(text[0] == '-' ? "must be 0 or more" : ""); })
      ->capture_default_str();
  CLI::App* diff = app.get_subcommand("diff");
  diff->add_option("STATE", options.states, "a job, JOB@snapshot, or a checkpoint's folder; two of them")
      ->required()
      ->expected(2);
  diff->add_option("--group", options.group, "@snapshot: the group that shares another user's job")->type_name("NAME");
  app.get_subcommand("events")->add_flag("--follow", options.follow, "go on as they happen, until the job ends");
  app.get_subcommand("events")
      ->add_option("--kind", options.kind, "only of this kind, such as joined or decided")
      ->type_name("KIND");
  app.get_subcommand("set")->add_option("KEY=VALUE", options.changes, "such as lr=0.005")->required();
  app.get_subcommand("set")
      ->add_option("--group", options.group, "the group that shares another user's job")
      ->type_name("NAME");
  CLI::App* doctor = app.get_subcommand("doctor");
  doctor->add_option("--job", options.job, "only that job")->type_name("NAME");
  doctor
      ->add_option("--nan-watch", options.nan_watch,
                   "and watch a job for so long, until a push brings NaN: says which worker's, and at which step")
      ->type_name("TIME");
  doctor->add_flag("--repair", options.repair,
                   "reclaim what dead jobs and publications have left; never a live or kept one");
  for (CLI::App* command : {app.get_subcommand("metrics"), app.get_subcommand("serve")}) {
    command->add_option("--job", options.job, "only that job")->type_name("NAME");
    command->add_flag("--values", options.values,
                      "also norms of variables and their share of NaN, of large ones of a sample");
  }
  CLI::App* metrics = app.get_subcommand("metrics");
  metrics->add_option("--textfile", options.textfile, "write it there, for node_exporter's collector; appears complete")
      ->type_name("FILE.prom");
  metrics->add_flag("--openmetrics", options.openmetrics, "in the format of OpenMetrics");
  CLI::App* serve = app.get_subcommand("serve");
  serve->add_option("--port", options.port, "where to listen; 0: any free port")->type_name("N")->capture_default_str();
  serve->add_option("--address", options.address, "which address; 0.0.0.0: every network that there is")
      ->type_name("ADDRESS")
      ->capture_default_str();
  CLI::App* rm = app.get_subcommand("rm");
  rm->add_option("--job", options.job, "the job")->type_name("NAME")->envname("PS_JOB");
  for (CLI::App* command : {rm, app.get_subcommand("publications")})
    command->add_option("--publication", options.publication, command == rm ? "the publication" : "only that one")
        ->type_name("NAME");
  rm->add_flag("--all-dead", options.all_dead, "all dead jobs and publications instead; never a kept job");
  rm->add_flag("--yes", options.yes, "do not ask at a terminal");
  rm->add_flag("--force", options.force, "also remove damaged and half-made segments; never those of a live job");

  if (const std::string page = argc == 2 ? inspect::help_file(app, argv[1]) : ""; !page.empty()) {
    ps::tools::write_out(page);
    return 0;
  }
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
    if (watch->parsed()) return ps::watch::watch(options.job.empty() ? ps::inspect::only_job() : options.job);
    if (app.got_subcommand("serve")) return serve_scrapes(options);
    for (const Command& command : commands)
      if (command.app->parsed()) return show(command, options, kOfNoJob.count(command.app->get_name()) == 0);
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
