#include "cli/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
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
    if (!row->is_flag && argument == option) ++i;  // its value
  }
  return argc;
}

void CommandLine::fail_unknown(const std::string& argument) const {
  if (!argument.starts_with("-"))
    throw Error(fmt::format("'{}': every argument is an option or its value, as in --{} {}", argument, rows_[0].name,
                            argument));
  std::vector<std::string> known;
  for (const Row& row : rows_) known.push_back(option_of(row.name));
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
    if (known != argc) fail_unknown(argv[known]);
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
    return fail(program_.name, kWrongUsage, std::string(error.what()) + " (see --help)");
  } catch (const Error& error) {
    return fail(program_.name, kWrongUsage, std::string(error.what()) + " (see --help)");
  }
  return std::nullopt;
}

}  // namespace ps_shm::tools
