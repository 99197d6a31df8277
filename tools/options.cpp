#include "options.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ps/errors.hpp"

namespace ps::tools {
namespace {

constexpr auto kAny = std::numeric_limits<std::uint64_t>::max();

template <class Number>
bool read_all(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

// These throw Error where `text` is none.
std::uint64_t read_whole(const std::string& text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  const bool is_negative = text.size() > 1 && text[0] == '-' && read_all(text.substr(1), value);
  if (!is_negative && !read_all(text, value)) throw Error(fmt::format("'{}' is no whole number", text));
  if (is_negative || value < least) throw Error(fmt::format("must be at least {}", least));
  if (value > most) throw Error(fmt::format("must be at most {}", most));
  return value;
}

double read_real(const std::string& text) {
  double value = 0;
  if (!read_all(text, value) || !std::isfinite(value)) throw Error(fmt::format("'{}' is no number", text));
  return value;
}

double read_seconds(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ms", 1e3}, {"us", 1e6}, {"ns", 1e9}, {"s", 1.0}};
  std::string number = text;
  double units_per_second = 1.0, value = 0.0;
  for (const auto& [unit, per_second] : kUnits) {
    if (!number.ends_with(unit)) continue;
    number.resize(number.size() - unit.size());
    units_per_second = per_second;
    break;
  }
  if (!read_all(number, value) || !std::isfinite(value))
    throw Error(fmt::format("'{}' is no time; write 5ms, 100us, 2s or plain seconds", text));
  if (value < 0) throw Error("must be at least 0");
  return value / units_per_second;
}

class CommandLine {
 public:
  CommandLine(const char* program, const char* purpose) : program_(program), app_(purpose) {}

  // `use` throws Error where it cannot use the text; of an option that is given twice it gets the last.
  CLI::Option* add(const std::string& name, const std::string& type, const std::string& what,
                   const std::function<void(const std::string&)>& use) {
    const auto checked = [name, use](const std::string& text) {
      try {
        use(text);
      } catch (const Error& error) {
        throw CLI::ValidationError(name, error.what());
      }
    };
    CLI::Option* option = app_.add_option_function<std::string>(name, checked, what);
    return option->type_name(type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->envname(variable(name));
  }

  template <class Whole>
  void add_whole(const std::string& name, Whole& value, std::uint64_t least, std::uint64_t most,
                 const std::string& what) {
    add(name, "N", what, [=, &value](const std::string& text) {
      if constexpr (std::is_integral_v<Whole>)
        value = static_cast<Whole>(read_whole(text, least, most));
      else
        value = static_cast<typename Whole::value_type>(read_whole(text, least, most));
    });
  }

  void add_seconds(const std::string& name, double& value, const std::string& what) {
    add(name, "TIME", what, [&value](const std::string& text) { value = read_seconds(text); });
  }

  template <class Value>
  void add_choice(const std::string& name, Value& value, const std::string& what,
                  const std::vector<std::pair<std::string, Value>>& choices) {
    std::string words;
    for (const auto& choice : choices) words += (words.empty() ? "" : "|") + choice.first;
    add(name, words, what, [=, &value](const std::string& text) {
      for (const auto& [word, chosen] : choices)
        if (word == text) {
          value = chosen;
          return;
        }
      throw Error(fmt::format("unknown {} '{}'; expected {}", name.substr(2), text, words));
    });
  }

  void add_flag(const std::string& name, bool& value, const std::string& what) {
    app_.add_flag(name, value, what)->envname(variable(name));
  }

  void add_job_name(std::string& job, const std::string& what) {
    add("--job", "NAME", what, [&job](const std::string& text) {
      check_job_name(text);
      job = text;
    });
  }

  void add_rates(JobConfig& job);
  void add_job(PsSettings& settings);
  void add_training(TrainingSettings& settings);

  std::optional<int> parse(int argc, char** argv, const std::function<void()>& check) {
    try {
      app_.parse(argc, argv);
      check();
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);
      return fail(program_, kWrongUsage, std::string(error.what()) + " (see --help)");
    } catch (const Error& error) {
      return fail(program_, kWrongUsage, std::string(error.what()) + " (see --help)");
    }
    return std::nullopt;
  }

 private:
  static std::string variable(const std::string& option) {
    std::string name = "PS_" + option.substr(2);
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return name;
  }

  const char* program_;
  CLI::App app_;
};

void CommandLine::add_rates(JobConfig& job) {
  add("--lr", "X", "learning rate at step 0 (0.1)", [&job](const std::string& text) {
    job.learning_rate = static_cast<float>(read_real(text));
    if (!(job.learning_rate > 0)) throw Error("must be greater than 0");
  });
  add("--lr-schedule", "SPEC", "constant, or exp:DECAY:STEPS: rate * DECAY ^ (step / STEPS) (constant)",
      [&job](const std::string& text) { job.schedule = Schedule::parse(text); });
  add("--l2", "X", "L2 regularisation of weights (0)", [&job](const std::string& text) {
    job.l2 = static_cast<float>(read_real(text));
    if (!(job.l2 >= 0)) throw Error("must be at least 0");
  });
}

void CommandLine::add_job(PsSettings& settings) {
  JobConfig& job = settings.job;
  add_whole("--workers", job.workers, 1, kMaxWorkers, fmt::format("how many workers start the job ({})", job.workers));
  add_whole("--max-workers", job.max_workers, 1, kMaxWorkers, "how many may be there at one time (16, or 2 N)");
  add_choice<Mode>("--mode", job.mode, "when a push applies: at once, or step by step with all workers' mean (async)",
                   {{"async", Mode::kAsync}, {"sync", Mode::kSync}});
  add_choice<Layout>("--layout", job.layout, "how variables lie in memory (versioned)",
                     {{"versioned", Layout::kVersioned}, {"inplace", Layout::kInplace}});
  add_choice<Adds>("--adds", job.adds, "how in-place variables are added to; racy loses updates (exact)",
                   {{"exact", Adds::kExact}, {"racy", Adds::kRacy}});
  add("--optimizer", "sgd", "the optimizer (sgd)", [](const std::string& text) {
    if (text != "sgd") throw Error(fmt::format("unknown optimizer '{}'; expected sgd", text));
  });
  add_rates(job);
  add_whole("--seed", job.seed, 0, kAny, "of initial values and data order (1)");
  add_seconds("--linger", job.linger_seconds, "how long the ps stays after the last worker has left (30s)");
  add_seconds("--step-timeout", job.step_timeout_seconds, "sync: deadline of a wait for live peers (none)");
  add_flag("--keep-segments", settings.keep_segments, "leave the job in /dev/shm at the end, for inspect_shm");
}

void CommandLine::add_training(TrainingSettings& settings) {
  add_choice<std::string>("--model", settings.model, "what to train; count adds 1.0 to the variable `var` (mlp)",
                          {{"count", "count"}, {"softmax", "softmax"}, {"mlp", "mlp"}});
  add("--data", "SOURCE", "digits, fashion-mnist or a folder of IDX files (digits)",
      [&settings](const std::string& text) { settings.data = text; });
  add_whole("--batch", settings.batch, 1, kAny, "examples in a batch (32; for images of 784 pixels and more 100)");
  add_whole("--size", settings.size, 1, kAny, "count: elements of the variable (1)");
  add_seconds("--interval", settings.interval_seconds, "count: wait after each add (0)");
  add_seconds("--wait-job", settings.wait_job_seconds, "how long to wait for the job to exist (60s)");
}

std::string default_job_name() {
  const passwd* user = getpwuid(geteuid());
  std::string name = user != nullptr ? user->pw_name : "job";
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  if (name.empty() || !std::isalnum(static_cast<unsigned char>(name[0]))) name.insert(0, 1, 'u');
  return fmt::format("{}-{}", name.substr(0, 40), getpid());
}

// RANK:TIME of one rank, or TIME of all; several with commas between them.
void read_delays(std::string text, LaunchSettings& settings) {
  for (text += ','; !text.empty(); text.erase(0, text.find(',') + 1)) {
    const std::string one = text.substr(0, text.find(','));
    const auto colon = one.find(':');
    if (colon == std::string::npos)
      settings.delay_seconds = read_seconds(one);
    else
      settings.delay_seconds_of_rank[static_cast<std::uint32_t>(read_whole(one.substr(0, colon), 0, kMaxWorkers - 1))] =
          read_seconds(one.substr(colon + 1));
  }
}

// What launchers of other systems say of a process's place on its machine.
void look_for_rank(std::optional<std::uint32_t>& rank) {
  for (const char* variable : {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* text = std::getenv(variable);
    if (rank || text == nullptr || *text == '\0') continue;
    try {
      rank = static_cast<std::uint32_t>(read_whole(text, 0, kMaxWorkers - 1));
    } catch (const Error& error) {
      throw Error(fmt::format("environment variable {}: {}", variable, error.what()));
    }
  }
}

}  // namespace

std::optional<int> parse(int argc, char** argv, PsSettings& settings) {
  CommandLine line("ps_shm",
                   "The ps of a job: creates it in shared memory, watches its workers, removes it at the end.");
  line.add_job_name(settings.job.job, "the job's name (required)");
  line.add_job(settings);
  line.add_whole("--steps", settings.job.steps, 1, kAny, "the global step at which the job is finished (no limit)");
  return line.parse(argc, argv, [&] {
    if (settings.job.job.empty()) throw Error("--job: give the job a name");
    check(settings.job);
  });
}

std::optional<int> parse(int argc, char** argv, WorkerSettings& settings) {
  CommandLine line("worker_shm", "A worker of a job: pulls parameters, computes gradients, pushes them back.");
  line.add_job_name(settings.alone.job, "the job to work for (required, unless --standalone)");
  line.add_training(settings.training);
  line.add_whole("--steps", settings.training.steps, 1, kAny,
                 "count: adds (1000); --standalone: steps (6000; for other data than digits 30000)");
  line.add_whole("--rank", settings.rank, 0, kMaxWorkers - 1,
                 "this worker's number (also from RANK, LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID; else a "
                 "free one)");
  line.add_whole("--seed", settings.seed, 0, kAny, "of the data order (the job's)");
  line.add_seconds("--delay", settings.delay_seconds, "wait in every step, after the gradient and before the push (0)");
  line.add_flag("--standalone", settings.standalone, "train in this process alone, with no ps");
  line.add_rates(settings.alone);
  line.add_flag("--json", settings.json, "print one JSON object on stdout at the end, all else on stderr");
  line.add_flag("--together", settings.together, "begin when the job's N workers have joined, not before");
  line.add_flag("--quiet", settings.quiet, "print no report lines");
  return line.parse(argc, argv, [&] {
    if (settings.standalone && settings.training.is_count())
      throw Error("--standalone: model count needs a ps; choose --model softmax or mlp");
    if (settings.alone.job.empty() && !settings.standalone) throw Error("--job: name the job to work for");
    look_for_rank(settings.rank);
  });
}

std::optional<int> parse(int argc, char** argv, LaunchSettings& settings) {
  settings.ps.job.workers = 3;
  CommandLine line("launch_shm", "Starts one ps and its workers on this machine, shows their progress and a summary.");
  line.add_job_name(settings.ps.job.job, "the job's name (made of the user's name and a number)");
  line.add_job(settings.ps);
  line.add_whole("--steps", settings.training.steps, 1, kAny,
                 "global steps (6000; for other data than digits 30000); count: adds of each worker (1000)");
  line.add_training(settings.training);
  line.add("--delay", "RANK:TIME", "slow a worker's every step down; TIME alone: all workers'; may be repeated",
           [&settings](const std::string& text) { read_delays(text, settings); })
      ->multi_option_policy(CLI::MultiOptionPolicy::Join)
      ->delimiter(',');
  line.add_flag("--json", settings.json, "print one JSON object on stdout at the end, all else on stderr");
  line.add_flag("--verbose", settings.verbose, "show all that ps and workers print");
  return line.parse(argc, argv, [&] {
    if (settings.ps.job.job.empty()) settings.ps.job.job = default_job_name();
    check(settings.ps.job);
    for (const auto& [rank, ignored] : settings.delay_seconds_of_rank)
      if (rank >= settings.ps.job.workers)
        throw Error(
            fmt::format("--delay: there is no worker {}; ranks are 0 to {}", rank, settings.ps.job.workers - 1));
  });
}

int fail(const char* program, int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  message = fmt::format("{}: {}\n", program, message);
  std::fputs(message.c_str(), stderr);
  return code;
}

}  // namespace ps::tools
