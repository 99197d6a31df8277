// What /proc reports about another process, which may end at any moment.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "shm/base/process_state.hpp"
#include "support/processes.hpp"

using namespace ps_shm;

namespace {

// A child that does nothing until it is killed.
pid_t sleeping_child() {
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  return child;
}

}  // namespace

TEST_CASE("process state: of this process, of one that does not exist, of a stopped one, and of a zombie") {
  CHECK(shm::process_state(static_cast<std::uint32_t>(getpid())) == 'R');
  CHECK(shm::is_runnable(static_cast<std::uint32_t>(getpid())));
  constexpr std::uint32_t kNobody = 0x7fffffff;  // above the kernel's largest number
  CHECK(shm::process_state(kNobody) == 0);
  CHECK_FALSE(shm::is_runnable(kNobody));

  const pid_t child = sleeping_child();
  const auto pid = static_cast<std::uint32_t>(child);
  CHECK(kill(child, SIGSTOP) == 0);
  REQUIRE(waitpid(child, nullptr, WUNTRACED) == child);
  CHECK(shm::process_state(pid) == 'T');
  CHECK_FALSE(shm::is_runnable(pid));
  CHECK(kill(child, SIGKILL) == 0);
  siginfo_t info;
  REQUIRE(waitid(P_PID, pid, &info, WEXITED | WNOWAIT) == 0);
  CHECK(shm::process_state(pid) == 'Z');
  CHECK_FALSE(shm::is_runnable(pid));
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK(shm::process_state(pid) == 0);
}

TEST_CASE("process state: reading a process that is reaped meanwhile does not throw") {
  std::atomic<std::uint32_t> pid{static_cast<std::uint32_t>(getpid())};
  std::atomic<bool> is_over{false};
  std::uint64_t reads = 0;
  std::thread reader([&] {  // an exception would end the process
    for (; !is_over; ++reads) static_cast<void>(shm::is_runnable(pid)), static_cast<void>(shm::process_state(pid));
  });
  for (int round = 0; round < 300; ++round) {
    const pid_t child = sleeping_child();
    pid = static_cast<std::uint32_t>(child);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  is_over = true;
  reader.join();
  CHECK(reads > 0);
}
