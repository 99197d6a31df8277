// Forks and segments: a child inherits neither descriptors nor mappings of its parent, and what it opens is its own.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "shm/segment/liveness.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Bell;
using test::Child;
using test::JobName;

namespace {

constexpr std::size_t kBytes = 8192;
constexpr char kFolder[] = "/dev/shm/";
constexpr int kDescriptors = 64;

Segment linked(const JobName& name) {
  Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, kBytes);
  REQUIRE(segment.link(name.control()));
  segment.publish();
  return segment;
}

void open_and_let_go(const JobName& name) {
  Segment segment;
  if (segment.open(name.control(), Access::kReadWrite) != AttachOutcome::kReady) _exit(90);
}

enum Found { kNothing = 0, kDescriptor = 1, kMapping = 2 };

// What this process has of /dev/shm. May be called from a signal handler, or in a forked child.
int look() {
  int found = kNothing;
  char link[] = "/proc/self/fd/00", target[256];
  for (int descriptor = 3; descriptor < kDescriptors; ++descriptor) {
    char* const number = link + std::strlen("/proc/self/fd/");
    number[0] = descriptor < 10 ? char('0' + descriptor) : char('0' + descriptor / 10);
    number[1] = descriptor < 10 ? '\0' : char('0' + descriptor % 10);
    const ssize_t length = readlink(link, target, sizeof target);
    if (length > ssize_t(sizeof kFolder) && std::memcmp(target, kFolder, sizeof kFolder - 1) == 0) found |= kDescriptor;
  }
  static std::array<char, 1 << 20> text;
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::size_t size = 0;
  for (ssize_t more; (more = read(maps, text.data() + size, text.size() - size)) > 0;) size += std::size_t(more);
  ::close(maps);
  if (memmem(text.data(), size, kFolder, sizeof kFolder - 1) != nullptr) found |= kMapping;
  return found;
}

// What a child that is forked now has.
int look_in_child() {
  const pid_t child = fork();
  if (child == 0) _exit(look());
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WEXITSTATUS(status);
}

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

// Handlers of a program that uses the library; the linker runs this constructor before the library's.
int handlers_opened = 0;
std::unique_ptr<JobName> handlers_job;
std::vector<Segment> handlers_segments;

void open_in_handler() {
  if (!handlers_job) return;
  handlers_segments.emplace_back();
  if (handlers_segments.back().open(handlers_job->control(), Access::kReadWrite) == AttachOutcome::kReady)
    ++handlers_opened;
}

const int handlers = pthread_atfork(open_in_handler, open_in_handler, open_in_handler);

}  // namespace

TEST_CASE("fork: a child has nothing of a segment that another thread is opening or creating at this moment") {
  const JobName name;
  const Segment segment = linked(name);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      open_and_let_go(name);
      (void)Segment::create(SegmentKind::kShard, 0, name.text(), 77, kBytes, kBytes);
    }
  });
  int with_descriptor = 0, with_mapping = 0;
  for (int i = 0; i < 500; ++i) {
    const int found = look_in_child();
    with_descriptor += (found & kDescriptor) != 0;
    with_mapping += (found & kMapping) != 0;
  }
  stop = true;
  other.join();
  CHECK(with_descriptor == 0);
  CHECK(with_mapping == 0);
  CHECK(look() == (kDescriptor | kMapping));  // verifies that the test can see them
}

TEST_CASE("fork: a byte is free when its owner has released it, even if children forked meanwhile are alive") {
  constexpr int kHelpers = 60;
  const JobName name;
  const Segment segment = linked(name);
  int end[2];
  REQUIRE(pipe(end) == 0);
  std::vector<pid_t> helpers;
  std::atomic<int> forked{0};
  std::thread loader([&] {  // as a data loader does
    for (; forked < kHelpers; ++forked) {
      helpers.push_back(fork());
      char byte;
      if (helpers.back() == 0) _exit(close(end[1]) == 0 && read(end[0], &byte, 1) == 0 ? 0 : 1);
    }
  });
  bool was_free = true;
  while (was_free && forked < kHelpers) {
    Segment mine;
    was_free = mine.open(name.control(), Access::kReadWrite) == AttachOutcome::kReady &&
               test::eventually([&] { return TaskLocks(mine.descriptor()).try_take(kRankByte); });
  }
  loader.join();
  CHECK(was_free);
  ::close(end[1]);
  for (const pid_t helper : helpers) {
    int status = 1;
    CHECK(waitpid(helper, &status, 0) == helper);
    CHECK(status == 0);
  }
  ::close(end[0]);
}

namespace {

volatile sig_atomic_t forks_of_handler = 0, found_by_handler = 0;

void fork_in_handler(int) {
  const int before = errno;
  found_by_handler = found_by_handler | look_in_child();
  forks_of_handler = forks_of_handler + 1;
  errno = before;
}

}  // namespace

TEST_CASE("fork: a signal handler may fork at any point, and its child has nothing") {
  const JobName name;
  const Segment segment = linked(name);
  const Bell done;
  Child child([&] {
    struct sigaction action {};
    action.sa_handler = fork_in_handler;
    sigaction(SIGALRM, &action, nullptr);
    for (int delay = 0; forks_of_handler < 300; delay = (delay + 1) % 60) {
      const itimerval once{.it_interval = {0, 0}, .it_value = {0, delay + 1}}, never{};
      setitimer(ITIMER_REAL, &once, nullptr);
      open_and_let_go(name);
      setitimer(ITIMER_REAL, &never, nullptr);
    }
    done.tell();
    return int(found_by_handler);
  });
  REQUIRE(done.hear());
  CHECK(child.join() == kNothing);
}

TEST_CASE("fork: a child's own segment stays open when it closes the inherited one") {
  const JobName name;
  auto inherited = std::make_unique<Segment>(linked(name));
  Child child([&] {
    Segment own;
    if (own.open(name.control(), Access::kReadWrite) != AttachOutcome::kReady) return 1;
    if (!TaskLocks(own.descriptor()).try_take(kRankByte)) return 2;
    inherited.reset();
    if (!is_open(own.descriptor())) return 3;
    return own.header().instance == 77 ? 0 : 4;
  });
  CHECK(child.join() == 0);
}

TEST_CASE("fork: a child does not unmap a new mapping at the address of its parent's segment") {
  const JobName name;
  Segment segment = linked(name);
  Child child([&] {
    void* own =
        mmap(segment.data(), kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own != segment.data()) return 1;  // the parent's mapping is still there
    *static_cast<char*>(own) = 'a';
    Segment moved = std::move(segment);
    moved = Segment();
    return msync(own, kBytes, MS_ASYNC) == 0 && *static_cast<char*>(own) == 'a' ? 0 : 2;  // ENOMEM: unmapped
  });
  CHECK(child.join() == 0);
  CHECK(segment.header().instance == 77);
}

TEST_CASE("fork: a program's own handlers open segments, and its child keeps the one that it has opened") {
  REQUIRE(handlers == 0);
  const JobName name;
  const Segment segment = linked(name);
  const Bell done;
  Child parent([&] {
    handlers_job = std::make_unique<JobName>(name.text());
    Child child([&] {
      return handlers_opened == 2 && is_open(handlers_segments.back().descriptor()) && look() != kNothing ? 0 : 1;
    });
    done.tell();
    const int code = child.join();
    return handlers_opened == 2 ? code : 2;
  });
  REQUIRE(done.hear());
  CHECK(parent.join() == 0);
}

// Regression: the ps's output went into its own control segment.
TEST_CASE("a segment never has the number of a standard stream that is closed") {
  const JobName name;
  const Segment segment = linked(name);
  Child child([&] {
    for (const int stream : {0, 1, 2}) ::close(stream);
    const Segment made = Segment::create(SegmentKind::kShard, 0, name.text(), 77, kBytes, kBytes);
    Segment opened;
    if (opened.open(name.control(), Access::kReadOnly) != AttachOutcome::kReady) return 1;
    if (made.descriptor() <= 2 || opened.descriptor() <= 2) return 2;
    if ((fcntl(opened.descriptor(), F_GETFD) & FD_CLOEXEC) == 0) return 3;
    return is_open(0) || is_open(1) || is_open(2) ? 4 : 0;
  });
  CHECK(child.join() == 0);
}
