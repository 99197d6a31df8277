#include "inspect_shm/commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <utility>

#include "cli/output.hpp"
#include "config/values.hpp"
#include "inspect_shm/watch/watch.hpp"

namespace ps_shm::inspect {
namespace {

constexpr int kFound = 3;  // vars --uninitialised: there are some; diff: they differ; doctor: something is wrong

std::string line_of(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

// Whether a command that searches has found something.
bool has_found(const Json& found) {
  const auto has_some = [&](const char* key) { return found.contains(key) && !found[key].empty(); };
  return has_some("uninitialised") || has_some("findings") || (found.contains("equal") && !found["equal"]);
}

CLI::Option* add_job(CLI::App& command, std::string& job, const char* what) {
  return command.add_option("--job", job, what)->type_name("NAME");
}

void add_group(CLI::App& command, std::string& group, const char* what) {
  command.add_option("--group", group, what)->type_name("NAME");
}

template <class Whole>
void add_whole(CLI::App& command, const std::string& name, Whole& number, const char* what,
               std::uint64_t most = config::kAny) {
  const auto read = [=, &number](const std::string& text) {
    try {
      number = static_cast<Whole>(config::read_whole(text, 0, most));
    } catch (const Error& error) {
      const std::string wrong = error.what();
      throw BadUsage(fmt::format("{}{}{}", name, wrong.starts_with("must ") ? " " : ": ", wrong));
    }
  };
  command.add_option_function<std::string>(name, read, what)->type_name("N")->default_str(fmt::to_string(number));
}

void add_variables(CLI::App& command, std::vector<std::string>& variables) {
  command.add_option("VARIABLE", variables, "variables to include; all if none is given");
}

// A command that concerns one job, which need not be named if it is the only one.
class JobCommand : public Command {
 public:
  using Command::Command;

 protected:
  void add_options(CLI::App& command) override {
    add_job(command, job_, "name of the job; not needed if there is only one")->envname("PS_SHM_JOB");
  }
  std::string job() const { return job_.empty() ? only_job() : job_; }

 private:
  std::string job_;
};

class Ls final : public Command {
 public:
  Ls() : Command("ls", "list all jobs with state, ps, workers, step and size, and all publications") {}

 protected:
  Json find() override { return list_jobs(); }
  std::string as_text(const Json& found, Columns columns) override { return jobs_as_text(found, columns); }
};

class Show final : public JobCommand {
 public:
  Show() : JobCommand("show", "show a job's settings, segments and step state, or a table by key") {}

 protected:
  void add_options(CLI::App& command) override {
    JobCommand::add_options(command);
    command.add_option("TABLE", table_, "a table by key to show instead, with what happens to it within a second");
  }
  Json find() override { return table_.empty() ? show_job(job()) : show_table(job(), table_); }
  std::string as_text(const Json& found, Columns columns) override {
    return table_.empty() ? job_as_text(found, columns) : table_as_text(found, columns);
  }

 private:
  std::string table_;
};

class Vars final : public JobCommand {
 public:
  Vars() : JobCommand("vars", "list the variables and the tables by key") {}

 protected:
  void add_options(CLI::App& command) override {
    JobCommand::add_options(command);
    command
        .add_flag("--uninitialised", uninitialised_,
                  "list only the variables that are not initialised; exit code 3 if there are any")
        ->excludes(
            command.add_flag("--placement", placement_, "show the location of each variable, or of each of its parts"));
  }
  Json find() override {
    if (uninitialised_) return list_uninitialised(job());
    return placement_ ? list_placement(job()) : list_variables(job());
  }
  std::string as_text(const Json& found, Columns columns) override {
    if (uninitialised_) return uninitialised_as_text(found, columns);
    return placement_ ? placement_as_text(found, columns) : variables_as_text(found, columns);
  }

 private:
  bool uninitialised_ = false, placement_ = false;
};

class Workers final : public JobCommand {
 public:
  Workers() : JobCommand("workers", "list the workers with their counters, staleness, and what they wait for") {}

 protected:
  Json find() override { return list_workers(job()); }
  std::string as_text(const Json& found, Columns columns) override { return workers_as_text(found, columns); }
};

class Events final : public JobCommand {
 public:
  Events() : JobCommand("events", "list events: joins, deaths, changes, and the contributors of sync steps") {}

  int run() override {
    if (!follow_) return JobCommand::run();
    const Columns width = columns();
    follow_events(job(), kind_, [&](const Json& event) {
      tools::write_out(json_ ? line_of(event) : events_as_text({{"events", Json::array({event})}}, width));
    });
    return 0;
  }

 protected:
  void add_options(CLI::App& command) override {
    JobCommand::add_options(command);
    command.add_flag("--follow", follow_, "continue to print events as they happen, until the job ends");
    command.add_option("--kind", kind_, "only events of this kind, such as joined or decided")->type_name("KIND");
  }
  Json find() override { return list_events(job(), kind_); }
  std::string as_text(const Json& found, Columns columns) override { return events_as_text(found, columns); }

 private:
  bool follow_ = false;
  std::string kind_;
};

class Set final : public JobCommand {
 public:
  Set() : JobCommand("set", "change a running job: " + live_names()) {}

 protected:
  void add_options(CLI::App& command) override {
    JobCommand::add_options(command);
    command.add_option("KEY=VALUE", changes_, "settings to change, such as lr=0.005")->required();
    add_group(command, group_, "group with which another user shares the job");
  }
  Json find() override { return change_settings(job(), group_, changes_); }
  std::string as_text(const Json& found, Columns columns) override { return changes_as_text(found, columns); }

 private:
  std::vector<std::string> changes_;
  std::string group_;
};

class Dump final : public JobCommand {
 public:
  Dump() : JobCommand("dump", "print or save values and statistics of variables, and keys and rows of tables") {}

 protected:
  void add_options(CLI::App& command) override {
    JobCommand::add_options(command);
    command.add_option("VARIABLE", request_.names,
                       "variables, or tables by key, to include; all variables if none is given, and with --npy DIR "
                       "all tables");
    command.add_option("--slice", request_.slice, "part of a single variable, in numpy notation: 0:10,3")
        ->type_name("SLICE");
    command
        .add_option(
            "--npy", npy_,
            "write a single variable to FILE.npy instead, or all to a folder, with optimizer slots and averages; of a "
            "table by key its rows, and its keys to FILE.keys.npy")
        ->type_name("FILE.npy|DIR");
    add_whole(command, "--limit", request_.limit,
              "number of values to print of each variable, or rows of each table; 0: all");
  }
  Json find() override {
    if (npy_.ends_with(".npy")) return dump_file(job(), request_, npy_);
    if (npy_.empty()) return dump_values(job(), request_);
    if (!request_.slice.empty()) throw BadUsage("--slice: needs a single variable; name a file with --npy FILE.npy");
    return dump_files(job(), request_.names, npy_);
  }
  std::string as_text(const Json& found, Columns columns) override { return values_as_text(found, columns); }

 private:
  DumpRequest request_{.names = {}, .slice = {}, .limit = 16};  // two lines of a terminal
  std::string npy_;
};

class Stats final : public JobCommand {
 public:
  Stats() : JobCommand("stats", "print statistics and histograms of variables") {}

 protected:
  void add_options(CLI::App& command) override {
    JobCommand::add_options(command);
    add_variables(command, variables_);
    add_whole(command, "--sample", sample_, "approximate number of elements to read of each variable; 0: all");
  }
  Json find() override { return sum_up(job(), variables_, sample_); }
  std::string as_text(const Json& found, Columns columns) override { return statistics_as_text(found, columns); }

 private:
  std::vector<std::string> variables_;
  std::uint64_t sample_ = 0;
};

class Diff final : public Command {
 public:
  Diff() : Command("diff", "compare two states, each a job, JOB@snapshot or the folder of a checkpoint") {}

 protected:
  void add_options(CLI::App& command) override {
    command.add_option("STATE", states_, "two states, each a job, JOB@snapshot or the folder of a checkpoint")
        ->required()
        ->expected(2);
    add_group(command, group_, "@snapshot: group with which another user shares the job");
  }
  Json find() override { return find_differences(states_[0], states_[1], group_); }
  std::string as_text(const Json& found, Columns columns) override { return difference_as_text(found, columns); }

 private:
  std::vector<std::string> states_;
  std::string group_;
};

class Publications final : public Command {
 public:
  Publications()
      : Command("publications",
                "list the publications with newest generation, publisher, subscribers, and the generations these "
                "hold") {}

 protected:
  void add_options(CLI::App& command) override {
    command.add_option("--publication", publication_, "only this publication")->type_name("NAME");
  }
  Json find() override { return list_publications(publication_); }
  std::string as_text(const Json& found, Columns columns) override { return publications_as_text(found, columns); }

 private:
  std::string publication_;
};

class Doctor final : public Command {
 public:
  Doctor()
      : Command("doctor",
                "diagnose jobs, suggest remedies, and show what this machine offers; exit code 3: something is "
                "wrong") {}

 protected:
  void add_options(CLI::App& command) override {
    add_job(command, job_, "only this job");
    command
        .add_option("--nan-watch", nan_watch_,
                    "also watch a job for this long, or until a push contains NaN: reports its worker and step")
        ->type_name("TIME");
    command.add_flag("--repair", repair_, "remove what dead jobs and publications have left; never a live or kept one");
  }
  Json find() override {
    if (nan_watch_.empty()) return examine(job_, repair_);
    double seconds = 0;
    try {
      seconds = config::read_seconds(nan_watch_);
    } catch (const Error& error) {
      throw BadUsage(fmt::format("--nan-watch: {}", error.what()));
    }
    const std::string job = job_.empty() ? only_job() : job_;
    Json found = examine(job, repair_);
    watch_for_nan(job, seconds, found);
    return found;
  }
  std::string as_text(const Json& found, Columns columns) override { return examination_as_text(found, columns); }

 private:
  std::string job_, nan_watch_;
  bool repair_ = false;
};

class MetricsCommand : public Command {
 public:
  using Command::Command;

 protected:
  void add_options(CLI::App& command) override {
    add_job(command, request_.job, "only this job");
    command.add_flag("--values", request_.has_values,
                     "also export the norms of variables, their fraction of NaN, and the rows of tables that contain NaN; large "
                     "variables and tables are sampled");
  }

  MetricsRequest request_;
};

class Metrics final : public MetricsCommand {
 public:
  Metrics() : MetricsCommand("metrics", "print metrics in the text format of Prometheus") {}

 protected:
  void add_options(CLI::App& command) override {
    MetricsCommand::add_options(command);
    command
        .add_option("--textfile", request_.textfile,
                    "write the metrics to this file, atomically, for the textfile collector of node_exporter")
        ->type_name("FILE.prom");
    command.add_flag("--openmetrics", request_.is_openmetrics, "use the OpenMetrics format");
  }
  Json find() override { return gather_metrics(request_); }
  std::string as_text(const Json& found, Columns columns) override { return metrics_as_text(found, columns); }
};

class Serve final : public MetricsCommand {
 public:
  Serve() : MetricsCommand("serve", "serve metrics to a Prometheus server over HTTP until interrupted") {}

  int run() override {
    constexpr int kInterrupted = 130;
    serve_metrics(request_, address_, port_, [&](const std::string& url) {
      tools::write_out(json_ ? Json({{"url", url}}).dump() + "\n" : url + "\n");
    });
    return kInterrupted;
  }

 protected:
  void add_options(CLI::App& command) override {
    MetricsCommand::add_options(command);
    add_whole(command, "--port", port_, "port to listen on; 0: any free port",
              std::numeric_limits<std::uint16_t>::max());
    command.add_option("--address", address_, "address to listen on; 0.0.0.0: all interfaces")
        ->type_name("ADDRESS")
        ->capture_default_str();
  }

 private:
  std::string address_ = "127.0.0.1";
  std::uint16_t port_ = 9464;
};

class Rm final : public Command {
 public:
  Rm() : Command("rm", "remove the segments of a dead job or publication") {}

 protected:
  void add_options(CLI::App& command) override {
    add_job(command, job_, "name of the job")->envname("PS_SHM_JOB");
    command.add_option("--publication", publication_, "name of the publication")->type_name("NAME");
    command.add_flag("--all-dead", all_dead_, "remove all dead jobs and publications instead; never a kept job");
    command.add_flag("--yes", yes_, "do not ask for confirmation; needed for --all-dead without a terminal");
    command.add_flag("--force", force_, "also remove damaged and incomplete segments; never those of a live job");
  }
  // Throws Error if the user declines.
  Json find() override {
    if (!job_.empty() + !publication_.empty() + all_dead_ != 1)
      throw BadUsage(
          "name the job to remove with --job, or the publication with --publication, or give --all-dead instead");
    if (!is_confirmed()) throw Error("nothing was removed");
    if (!publication_.empty()) return remove_publication(publication_, force_);
    return all_dead_ ? remove_dead() : remove(job_, force_);
  }
  std::string as_text(const Json& found, Columns columns) override { return removal_as_text(found, columns); }

 private:
  // Asks for confirmation at a terminal; otherwise a name is sufficient.
  bool is_confirmed() const {
    if (yes_) return true;
    if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) {
      if (all_dead_) throw BadUsage("--all-dead: there is no terminal to ask for confirmation; give --yes, too");
      return true;
    }
    const std::string what = all_dead_              ? "all dead jobs and publications"
                             : publication_.empty() ? fmt::format("job {}", job_)
                                                    : fmt::format("publication {}", publication_);
    fmt::print(stderr, "remove {} from /dev/shm? [y/N] ", what);
    const int answer = std::getchar();
    return answer == 'y' || answer == 'Y';
  }

  std::string job_, publication_;
  bool all_dead_ = false, yes_ = false, force_ = false;
};

class Watch final : public JobCommand {
 public:
  Watch() : JobCommand("watch", "watch a running job, full-screen on a terminal, as plain lines elsewhere") {}

  int run() override { return watch::watch(job()); }

 protected:
  bool takes_output_options() const override { return false; }
};

}  // namespace

void Command::add_to(CLI::App& app) {
  app_ = app.add_subcommand(name_, purpose_);
  if (takes_output_options()) {
    app_->add_flag("--json", json_, "print one JSON object");
    app_->add_flag("--wide", wide_,
                   "do not fit tables to the terminal's width; the default if stdout is not a terminal");
  }
  add_options(*app_);
}

bool Command::was_chosen() const { return app_->parsed(); }

namespace {

// What somebody has to look at is red on a terminal with colours.
std::string with_colours(std::string text) {
  if (!report::has_colour(stdout)) return text;
  for (const std::string mark : {"WRONG:", "NOT INITIALISED"}) {
    const std::string red = report::coloured(report::Colour::kRed, mark);
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += red.size())
      text.replace(at, mark.size(), red);
  }
  return text;
}

}  // namespace

Columns Command::columns() const { return wide_ ? std::nullopt : report::columns_of(stdout); }

int Command::run() {
  const Columns width = columns();
  const Json found = find();
  tools::write_out(json_ ? found.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                         : with_colours(as_text(found, width)));
  return has_found(found) ? kFound : 0;
}

namespace {

template <class... C>
std::vector<std::unique_ptr<Command>> make_each() {
  std::vector<std::unique_ptr<Command>> all;
  (all.push_back(std::make_unique<C>()), ...);
  return all;
}

}  // namespace

std::vector<std::unique_ptr<Command>> make_commands() {
  return make_each<Ls, Show, Vars, Workers, Events, Set, Dump, Stats, Diff, Publications, Doctor, Metrics, Serve, Rm,
                   Watch>();
}

}  // namespace ps_shm::inspect
