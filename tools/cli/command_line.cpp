#include "cli/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cli/output.hpp"
#include "cli/version.hpp"
#include "config/spelling.hpp"
#include "config/values.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

std::string option_of(const std::string& setting) { return "--" + setting; }

std::string variable_of(const std::string& setting) {
  std::string name = "PS_SHM_" + setting;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

CommandLine::CommandLine(Program program) : program_(std::move(program)), app_(std::make_unique<CLI::App>()) {
  app_->set_help_flag("-h,--help");
  app_->set_help_all_flag("--help-all");
  app_->set_version_flag("--version", version_text(program_.name));
}
CommandLine::~CommandLine() = default;

void CommandLine::add_option(Row row, std::function<void(const std::string&)> use) {
  const std::string name = option_of(row.name), variable = variable_of(row.name);
  if (row.is_flag) {
    Flag& flag = flags_.emplace_back(Flag{nullptr, false, std::move(use)});
    flag.option = app_->add_flag(name, flag.value)->envname(variable);
  } else {
    CLI::Option* option = app_->add_option_function<std::string>(name, use)->type_name(row.form)->envname(variable);
    option->multi_option_policy(row.takes_all ? CLI::MultiOptionPolicy::Join : CLI::MultiOptionPolicy::TakeLast);
    // Mistakes are reported in the order in which they were made.
    if (row.takes_all)
      option->delimiter(',');
    else
      option->trigger_on_parse();
  }
  rows_.push_back(std::move(row));
}

bool CommandLine::was_given(const std::string& setting) const {
  const CLI::Option* const option = app_->get_option_no_throw(option_of(setting));
  return option != nullptr && option->count() != 0;
}

int CommandLine::count_known(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], option = argument.substr(0, argument.find('='));
    if (argument == "-h" || argument == "--help" || argument == "--help-all" || argument == "--version") continue;
    const auto row =
        std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return option_of(r.name) == option; });
    if (row == rows_.end()) return i;
    typed_.insert(row->name);
    if (!row->is_flag && argument == option && ++i == argc) return i - 1;  // its value is missing
  }
  return argc;
}

// The first flag whose given value is no truth value. Empty: none.
std::string CommandLine::describe_flag(int argc, char** argv) const {
  const auto is_wrong = [](const std::string& value) {
    try {
      static_cast<void>(CLI::detail::to_flag_value(value));
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  for (const Row& row : rows_) {
    const std::string option = option_of(row.name);
    const char* const variable = std::getenv(variable_of(row.name).c_str());
    std::string value = variable != nullptr && !was_typed(row.name) ? variable : "";
    for (int i = 1; i < argc; ++i)
      if (std::string_view(argv[i]).starts_with(option + "=")) value = argv[i] + option.size() + 1;
    if (row.is_flag && !value.empty() && is_wrong(value))
      return fmt::format("{}: '{}' is neither true nor false", option, value);
  }
  return "";
}

// A mistake in an environment variable is reported with the variable's name: nobody has typed the option.
std::string CommandLine::described(const std::string& mistake) const {
  const std::string message = with_option_names(mistake);
  for (const Row& row : rows_) {
    const std::string option = option_of(row.name);
    const char next = message.starts_with(option) && message.size() > option.size() ? message[option.size()] : 'x';
    if ((next == ':' || next == ' ') && was_given(row.name) && !was_typed(row.name))
      return fmt::format("environment variable {}{}", variable_of(row.name), message.substr(option.size()));
  }
  return message;
}

void CommandLine::fail_beyond(const std::string& argument) const {
  if (!argument.starts_with("-"))
    throw Error(fmt::format("'{}': every argument is an option or its value, as in --{} {}", argument, rows_[0].name,
                            argument));
  std::vector<std::string> known;
  for (const Row& row : rows_) {
    known.push_back(option_of(row.name));
    if (known.back() == argument)
      throw Error(fmt::format("{0}: the value is missing; give {0} {1}", argument, row.form));
  }
  const std::string option = argument.substr(0, argument.find('='));
  throw Error(fmt::format("{}: no such option{}", option, config::did_you_mean(option, known)));
}

HelpPage CommandLine::help(bool has_all) const {
  HelpPage page{.purpose = program_.purpose,
                .usage = fmt::format("{} [OPTIONS], or one of --help, --help-all, --version", program_.name),
                .sections = {},
                .notes = {},
                .examples = program_.examples};
  std::size_t shown = 0;
  for (const config::Group group : config::kGroups) {
    HelpSection& section = page.sections.emplace_back(HelpSection{to_string(group), {}});
    for (const Row& row : rows_)
      if (row.group == group && (has_all || row.is_common))
        section.entries.push_back({option_of(row.name) + (row.is_flag ? "" : " " + row.form), row.meaning});
    shown += section.entries.size();
  }
  if (!has_all)
    page.notes.push_back(
        fmt::format("These are the {} most common options; --help-all lists all {}.", shown, rows_.size()));
  page.notes.push_back("Each option --NAME can also be set by the environment variable PS_SHM_NAME. " +
                       config::describe_forms());
  return page;
}

std::optional<int> CommandLine::parse(int argc, char** argv, const std::function<void()>& check) {
  const std::string_view only = argc == 2 ? argv[1] : "";
  if (only == "--help-man" || only == "--help-bash") {  // called by the build, which installs the output
    write_out(only == "--help-man" ? to_man(program_.name, help(true))
                                   : to_bash(program_.name, help(true).sections, false));
    return 0;
  }
  try {
    const int known = count_known(argc, argv);
    app_->parse(known, argv);
    if (known != argc) fail_beyond(argv[known]);
    for (const Flag& flag : flags_)
      if (flag.option->count() != 0) flag.use(flag.value ? "true" : "false");
    check();
  } catch (const CLI::CallForHelp&) {
    write_out(to_text(help(false)));
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    write_out(to_text(help(true)));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    write_out(version.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string flag = describe_flag(argc, argv);
    return fail(program_.name, kWrongUsage, described(flag.empty() ? error.what() : flag) + " (see --help)");
  } catch (const Error& error) {
    return fail(program_.name, kWrongUsage, described(error.what()) + " (see --help)");
  }
  return std::nullopt;
}

}  // namespace ps_shm::tools
