#include "inspect_shm/help.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "config/spelling.hpp"

namespace ps_shm::inspect {
namespace {

tools::HelpEntry entry_of(const CLI::Option& option) {
  const std::string form = option.get_positional() ? "" : option.get_type_name();
  const std::string otherwise = option.get_default_str();
  return {option.get_name() + (form.empty() ? "" : " " + form),
          otherwise.empty() ? option.get_description() : tools::with_default(option.get_description(), otherwise)};
}

tools::HelpPage help_of_command(const CLI::App& command) {
  tools::HelpPage page;
  page.purpose = command.get_description();
  page.usage = fmt::format("inspect_shm {} [OPTIONS]", command.get_name());
  tools::HelpSection& options = page.sections.emplace_back();
  options.heading = "Options";
  for (const CLI::Option* option : command.get_options()) {
    options.entries.push_back(entry_of(*option));
    if (!option->get_positional()) continue;
    page.usage += option->get_required() ? fmt::format(" {}...", option->get_name())
                                         : fmt::format(" [{}...]", option->get_name());
  }
  return page;
}

tools::HelpPage help_of_all(const CLI::App& app) {
  tools::HelpPage page;
  page.purpose = app.get_description();
  page.usage = "inspect_shm COMMAND [OPTIONS], or one of --help, --version";
  page.notes = {
      "inspect_shm COMMAND --help lists the command's options. The environment variable PS_SHM_JOB replaces --job."};
  page.examples = {{"inspect_shm ls", "lists the jobs of this machine"},
                   {"inspect_shm workers --job demo", "shows the progress of its workers, and what they wait for"},
                   {"inspect_shm set --job demo lr=0.005", "changes the learning rate of a running job"}};
  tools::HelpSection& commands = page.sections.emplace_back();
  commands.heading = "Commands";
  for (const CLI::App* command : app.get_subcommands({}))
    commands.entries.push_back({command->get_name(), command->get_description()});
  return page;
}

}  // namespace

tools::HelpPage help_of(const CLI::App& app) {
  const std::vector<CLI::App*> asked = app.get_subcommands();
  return asked.empty() ? help_of_all(app) : help_of_command(*asked[0]);
}

std::string help_file(const CLI::App& app, const std::string& option) {
  tools::HelpPage all = help_of_all(app);
  std::vector<tools::HelpSection> commands;
  for (const CLI::App* command : app.get_subcommands({}))
    commands.push_back({command->get_name(), help_of_command(*command).sections[0].entries});
  if (option == "--help-bash") return tools::to_bash("inspect_shm", commands, true);
  if (option != "--help-man") return {};
  for (const CLI::App* command : app.get_subcommands({})) {
    tools::HelpPage page = help_of_command(*command);
    all.sections.push_back({page.usage, std::move(page.sections[0].entries)});
  }
  return tools::to_man("inspect_shm", all);
}

std::string describe_mistake(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (argc < 2) return fmt::format("name a command: {}", fmt::join(commands, ", "));
  const std::string name = argv[1];
  if (name.starts_with("-") && std::find(commands.begin(), commands.end(), argv[argc - 1]) != commands.end())
    return fmt::format("the command comes first, as in inspect_shm {} {}", argv[argc - 1], name);
  if (name.starts_with("-")) return fmt::format("name a command before {}: {}", name, fmt::join(commands, ", "));
  if (std::find(commands.begin(), commands.end(), name) == commands.end()) {
    const std::string meant = config::did_you_mean(name, commands);
    return fmt::format("'{}' is not a command{}", name,
                       meant.empty() ? fmt::format("; the commands are {}", fmt::join(commands, ", ")) : meant);
  }
  const CLI::App* command = app.get_subcommand(name);
  std::vector<std::string> known;
  const CLI::Option* words = nullptr;  // arguments that are not options
  for (const CLI::Option* option : command->get_options())
    if (option->get_positional())
      words = option;
    else
      known.push_back(option->get_name());
  int count = 0;
  std::vector<const CLI::Option*> given;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i], word = argument.substr(0, argument.find('='));
    if (!argument.starts_with("-")) {
      if (words == nullptr) return fmt::format("'{0}': name the job with --job {0}", argument);
      ++count;
      continue;
    }
    const CLI::Option* option = command->get_option_no_throw(word);
    if (option == nullptr) return fmt::format("{}: no such option{}", word, config::did_you_mean(word, known));
    for (const CLI::Option* other : given)
      if (option->get_excludes().count(const_cast<CLI::Option*>(other)) != 0)
        return fmt::format("{}: cannot be combined with {}", word, other->get_name());
    given.push_back(option);
    if (option->get_items_expected_min() > 0 && word == argument && ++i == argc)
      return fmt::format("{0}: the value is missing; give {0} {1}", word, option->get_type_name());
  }
  if (words != nullptr && words->get_required() &&
      (count < words->get_items_expected_min() || count > words->get_items_expected_max()))
    return fmt::format("{} needs {}", name, words->get_description());
  return {};
}

}  // namespace ps_shm::inspect
