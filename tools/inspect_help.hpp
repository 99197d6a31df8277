// What inspect_shm --help prints, and what it says of a wrong command line; both are made of its commands.
#pragma once

#include <string>

#include "help.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace ps::inspect {

// All commands, or the options of the one that help was asked for. Requires: `app` has read its arguments.
tools::HelpPage help_of(const CLI::App& app);

// What is installed: of --help-man the manual page, of --help-bash the completion; of another option nothing.
std::string help_file(const CLI::App& app, const std::string& option);

// What is wrong with arguments that are no command, no option of it, or a job without --job; else nothing.
std::string describe_mistake(const CLI::App& app, int argc, char** argv);

}  // namespace ps::inspect
