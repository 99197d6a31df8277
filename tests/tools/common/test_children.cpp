// Child processes of a program: the end of each is noticed.
#include "common/children.hpp"

#include <csignal>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace ps_shm;
using tools::Child;

namespace {

// The lines that it prints until its end.
std::vector<std::string> lines_of(Child& child) {
  std::vector<std::string> lines;
  Child* const all[] = {&child};
  while (!child.has_ended())
    tools::attend(all, 100, [&](const Child&, bool, const std::string& line) { lines.push_back(line); });
  return lines;
}

}  // namespace

TEST_CASE("children: one that the kernel or another part of the program has reaped has ended, in a way unknown") {
  for (const bool is_ours : {false, true}) {
    CAPTURE(is_ours);
    std::signal(SIGCHLD, SIG_IGN);  // the kernel reaps it
    Child child("child", "echo", {"a line"}, {}, is_ours);
    CHECK(lines_of(child) == std::vector<std::string>{"a line"});
    CHECK(child.exit_code() == 1);
    CHECK(child.outcome() == "ended with an unknown exit code");
    child.send(SIGTERM);  // no effect
    std::signal(SIGCHLD, SIG_DFL);
  }
}

TEST_CASE("children: a signal ends one, and the outcome says so") {
  for (const bool is_ours : {false, true}) {
    CAPTURE(is_ours);
    Child child("child", "sleep", {"1000"}, {}, is_ours);
    child.send(SIGTERM);
    CHECK(lines_of(child).empty());
    CHECK(child.exit_code() == 128 + SIGTERM);
    CHECK(child.ended_as_asked());
  }
}
