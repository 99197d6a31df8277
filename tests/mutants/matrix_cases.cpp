// Cases that fail in the way that PS_SHM_TEST_FAULT asks for: for test_matrix.py.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

namespace {

bool is_wanted(std::string_view fault) {
  const char* const wanted = std::getenv("PS_SHM_TEST_FAULT");
  return wanted != nullptr && fault == wanted;
}

[[noreturn]] void hang() {
  for (;;) pause();
}

[[maybe_unused]] const bool has_begun = [] {
  if (is_wanted("no start")) _exit(3);
  return !is_wanted("no end") || std::atexit([] { _exit(4); }) == 0;
}();

}  // namespace

TEST_CASE("matrix: a child is killed") {
  if (is_wanted("all hang")) hang();
  const pid_t child = fork();
  if (child == 0) std::abort();  // doctest's handler writes to the parent's results
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("matrix: a name with \"<&>\"") {
  if (is_wanted("all hang")) hang();
  CHECK(!is_wanted("failures"));
}

TEST_CASE("matrix: the process ends") {
  if (is_wanted("hang") || is_wanted("all hang")) hang();
  if (is_wanted("killed")) std::raise(SIGKILL);
  if (is_wanted("signal")) std::raise(SIGSEGV);
  if (is_wanted("exit")) std::exit(0);
}

TEST_CASE("matrix: the last one") {
  if (is_wanted("all hang")) hang();
  CHECK(!is_wanted("failures"));
}
