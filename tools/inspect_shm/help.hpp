// The output of inspect_shm --help, and messages about wrong command lines; both are derived from its commands.
#pragma once

#include <string>

#include "cli/help.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace ps_shm::inspect {

// All commands, or the options of the command that help was requested for. Requires: `app` has parsed its arguments.
tools::HelpPage help_of(const CLI::App& app);

// Files to install: the manual page for --help-man, the completion for --help-bash; nothing for other options.
std::string help_file(const CLI::App& app, const std::string& option);

// Describes an unknown command, an unknown option, or a job without --job; empty if there is no such mistake.
std::string describe_mistake(const CLI::App& app, int argc, char** argv);

}  // namespace ps_shm::inspect
