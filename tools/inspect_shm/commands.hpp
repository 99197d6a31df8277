// The commands of inspect_shm: a class for each, with its help, its options, what it finds and how that is printed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "inspect_shm/inspect.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace ps_shm::inspect {

class Command {
 public:
  Command(std::string name, std::string purpose) : name_(std::move(name)), purpose_(std::move(purpose)) {}
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Declares the command and its options. Requires: this object outlives `app`'s parsing.
  void add_to(CLI::App& app);

  bool was_chosen() const;  // by the command line that `app` has parsed

  // Returns the exit code. Throws BadUsage, Error.
  virtual int run();

 protected:
  virtual bool takes_output_options() const { return true; }  // --json, --wide
  virtual void add_options(CLI::App&) {}
  virtual Json find() { return {}; }
  virtual std::string as_text(const Json&, Columns) { return {}; }

  // How stdout is to be written; unlimited with --wide.
  Columns columns() const;

  bool json_ = false, wide_ = false;

 private:
  std::string name_, purpose_;
  CLI::App* app_ = nullptr;
};

// All commands, in the order of the help.
std::vector<std::unique_ptr<Command>> make_commands();

}  // namespace ps_shm::inspect
