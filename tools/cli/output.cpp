#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/option_names.hpp"
#include "report/terminal.hpp"

namespace ps_shm::tools {
namespace {

int g_error = 0;  // errno of the first error in write_out()
bool g_has_written = false;
std::string g_failure = "see standard error";  // of the last fail()

}  // namespace

void write_out(const std::string& text) noexcept {
  static std::mutex mutex;  // a line of one thread stays together
  const std::lock_guard lock(mutex);
  g_has_written = g_has_written || !text.empty();
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t count = write(STDOUT_FILENO, rest.data(), rest.size());
    if (count < 0) {
      if (errno != EPIPE && g_error == 0) g_error = errno;
      return;
    }
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
}

void tell(const std::string& line) {
  std::fprintf(stderr, "%s", report::fitted(line + '\n', report::columns_of(stderr)).c_str());
}

int fail(const char* program, int code, std::string message) {
  message = with_option_names(message);
  for (char& c : message)
    if (c == '\n') c = ' ';
  g_failure = message;
  const std::string line = fmt::format("{}: {}", program, message);
  fmt::print(stderr, "{}\n", report::has_colour(stderr) ? report::coloured(report::Colour::kRed, line) : line);
  return code;
}

int run_main(const char* program, int argc, char** argv, const std::function<int()>& body) {
  constexpr int kFailed = 1;
  using Json = nlohmann::ordered_json;
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0 && open("/", O_PATH) != stream) return kFailed;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGCHLD, SIG_DFL);
  const int code = body();
  if (code != 0 && !g_has_written && std::find(argv, argv + argc, std::string_view("--json")) != argv + argc)
    write_out(Json({{"error", g_failure}, {"exit_code", code}}).dump(-1, ' ', false, Json::error_handler_t::replace) +
              "\n");
  if (g_error == 0) return code;
  std::fprintf(stderr, "%s: output was lost: cannot write to standard output: %s\n", program, std::strerror(g_error));
  return code != 0 ? code : kFailed;
}

}  // namespace ps_shm::tools
