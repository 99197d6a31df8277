// One program's command line over CLI11: an option for each row of a table of settings, checked as it is read, and looked
// for in the environment; --help shows the common ones, --help-all all of them in groups.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/setting.hpp"
#include "help.hpp"
#include "option_names.hpp"
#include "options.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ps::tools {

std::string option_of(const std::string& setting);    // --chunk-bytes
std::string variable_of(const std::string& setting);  // PS_CHUNK_BYTES

// A learning-rate schedule may be in epochs, also behind a warm-up: epoch:DECAY is step:DECAY:STEPS with an epoch's steps.
bool is_epoch_schedule(const std::string& text);
Schedule resolve_schedule(const std::string& text, std::uint64_t steps_per_epoch);

struct Program {
  const char* name;
  unsigned taker;  // of settings
  const char* purpose;
  std::vector<HelpEntry> examples;
};

// CLI11 is behind a pointer: its header takes the compiler seconds in each file that includes it.
class CommandLine {
 public:
  explicit CommandLine(Program program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // An option for each row. What is given goes into `settings`, which outlives this object.
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

  // Whether the setting was given, here or in the environment; here alone. Requires: parsed.
  bool was_given(const std::string& setting) const;
  bool was_typed(const std::string& setting) const { return typed_.count(setting) != 0; }

  // `check` is called when all options have been read. Returns the exit code with which the program shall end, if any.
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
  // How many of the arguments can be parsed: all of them, or those before the first that is no option of ours.
  int count_known(int argc, char** argv);
  [[noreturn]] void fail_unknown(const std::string& argument) const;
  HelpPage help(bool has_all) const;  // else the common ones

  const Program program_;
  std::unique_ptr<CLI::App> app_;
  std::vector<Row> rows_;
  std::deque<Flag> flags_;  // a deque: CLI11 points into it
  std::set<std::string> typed_;
};

}  // namespace ps::tools
