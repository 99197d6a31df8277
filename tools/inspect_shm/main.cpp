// inspect_shm: inspects the jobs of this machine, live, hung or dead, and removes dead ones. docs/inspector.md lists
// the commands that write.
#include <CLI/CLI.hpp>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "cli/output.hpp"
#include "cli/version.hpp"
#include "inspect_shm/commands.hpp"
#include "inspect_shm/help.hpp"
#include "shm/segment/truncation.hpp"

namespace {

namespace inspect = ps_shm::inspect;

int fail(int code, const std::string& message) { return ps_shm::tools::fail("inspect_shm", code, message); }

int run(int argc, char** argv) {
  ps_shm::shm::survive_truncation();
  char help[] = "--help";
  if ((argc == 2 || argc == 3) && std::string_view(argv[1]) == "help") {  // `help COMMAND` is `COMMAND --help`
    argv[1] = argv[argc - 1];
    argv[argc - 1] = help;
  }
  CLI::App app{
      "Inspects the jobs of this machine, whether live, hung or dead. The command set changes running jobs; rm and "
      "doctor --repair remove dead ones."};
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "print this help");
  app.set_version_flag("--version", ps_shm::tools::version_text("inspect_shm"));
  const auto commands = inspect::make_commands();
  for (const auto& command : commands) command->add_to(app);
  if (const std::string page = argc == 2 ? inspect::help_file(app, argv[1]) : ""; !page.empty()) {
    ps_shm::tools::write_out(page);
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    ps_shm::tools::write_out(to_text(inspect::help_of(app)));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    ps_shm::tools::write_out(version.what());
    return 0;
  } catch (const inspect::BadUsage& error) {
    return fail(2, std::string(error.what()) + " (see inspect_shm --help)");
  } catch (const CLI::ParseError& error) {
    const std::string mistake = inspect::describe_mistake(app, argc, argv);
    return fail(2, (mistake.empty() ? error.what() : mistake) + " (see inspect_shm --help)");
  }
  try {
    for (const auto& command : commands)
      if (command->was_chosen()) return command->run();
  } catch (const inspect::BadUsage& error) {
    return fail(2, std::string(error.what()) + " (see inspect_shm --help)");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return ps_shm::tools::run_main("inspect_shm", argc, argv, [&] { return run(argc, argv); });
}
