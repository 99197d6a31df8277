// The command line of a program, based on CLI11: one option for each row of a table of settings, checked as it is read,
// with an environment variable as fallback; --help shows the common options, --help-all all of them in groups.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/help.hpp"
#include "cli/option_names.hpp"
#include "cli/options.hpp"
#include "config/setting.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ps_shm::tools {

std::string option_of(const std::string& setting);    // --chunk-bytes
std::string variable_of(const std::string& setting);  // PS_SHM_CHUNK_BYTES

// A learning-rate schedule may be in epochs, also after a warm-up: epoch:DECAY is step:DECAY:STEPS of an epoch's steps.
bool is_epoch_schedule(const std::string& text);
Schedule resolve_schedule(const std::string& text, std::uint64_t steps_per_epoch);

struct Program {
  const char* name;
  unsigned taker;  // whose settings it takes
  const char* purpose;
  std::vector<HelpEntry> examples;
};

// CLI11 is hidden behind a pointer: its header takes seconds to compile in each file that includes it.
class CommandLine {
 public:
  explicit CommandLine(Program program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds an option for each row. Given values are stored in `settings`, which must outlive this object.
  template <class Struct>
  void add(const config::Settings<Struct>& rows, Struct& settings) {
    for (const config::Setting<Struct>& row : rows)
      add_option(
          {row.name, row.value.form, with_option_names(with_default(row.meaning, config::show_default(row, Struct{}))),
           row.group, row.value.kind == config::Kind::kFlag, row.traits.takes_all,
           (row.traits.common & program_.taker) != 0},
          [&row, &settings](const std::string& text) {
            read(row, settings, text);
            check(row, settings);
          });
  }

  // Whether the setting was given on the command line or in the environment; on the command line. Requires: parsed.
  bool was_given(const std::string& setting) const;
  bool was_typed(const std::string& setting) const { return typed_.count(setting) != 0; }

  // Calls `check` when all options have been read. Returns the exit code if the program is to end now.
  std::optional<int> parse(int argc, char** argv, const std::function<void()>& check);

 private:
  struct Row {
    std::string name, form, meaning;
    config::Group group;
    bool is_flag, takes_all, is_common;
  };
  struct Flag {
    CLI::Option* option;
    bool value;
    std::function<void(const std::string&)> use;
  };

  void add_option(Row row, std::function<void(const std::string&)> use);
  // The number of arguments that can be parsed: all, or those before the first unknown option or missing value.
  int count_known(int argc, char** argv);
  std::string describe_flag(int argc, char** argv) const;
  std::string described(const std::string& mistake) const;
  [[noreturn]] void fail_beyond(const std::string& argument) const;
  HelpPage help(bool has_all) const;  // all options, or only the common ones

  const Program program_;
  std::unique_ptr<CLI::App> app_;
  std::vector<Row> rows_;
  std::deque<Flag> flags_;  // a deque, because CLI11 keeps pointers into it
  std::set<std::string> typed_;
};

}  // namespace ps_shm::tools
