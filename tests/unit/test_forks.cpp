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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/liveness.hpp"
#include "support/processes.hpp"
#include "support/table_job.hpp"
#include "support/test_bundle.hpp"
#include "support/test_job.hpp"

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

namespace {

using Calls = std::vector<std::function<void()>>;

// How many of the calls do not throw Error with kInvalidState.
int count_not_refused(const Calls& calls) {
  int count = 0;
  for (const auto& call : calls) try {
      call();
      ++count;
    } catch (const Error& error) {
      count += error.code() != ErrorCode::kInvalidState;
    }
  return count;
}

void use_in_child(Mode mode, bool within_group) {
  const JobName name;
  JobConfig config;
  config.job = name.text();
  config.workers = 1;
  config.mode = mode;
  std::optional<Server> server(config);
  std::optional<Worker> worker(WorkerOptions{.job = name.text()});
  const Variable v = worker->variable({.name = "v", .shape = {4}}, [](std::span<float>) {});
  const Variable scalar = worker->variable({.name = "scalar"}, [](std::span<float>) {});
  VariableSpec spec{.name = "rows", .shape = {4, 2}};
  if (mode != Mode::kSync) spec.layout = Layout::kInplace;
  const Variable rows = worker->variable(spec, [](std::span<float>) {});
  const std::uint32_t ids[] = {1};
  std::array<float, 4> four{};
  std::array<float, 2> two{};
  worker->push(v, four);
  if (mode == Mode::kSync) static_cast<void>(worker->gradient(v));
  std::optional<JobView> view(std::in_place, name.text());
  std::optional<JobControl> control(std::in_place, name.text());
  std::optional<Snapshot> of_worker(worker->snapshot());
  std::vector<PushGroup> group;
  if (within_group) group.push_back(worker->group_pushes());
  Child child([&] {
    const Calls calls{
        [&] { worker->pull(v, four); },
        [&] { static_cast<void>(worker->pull(scalar)); },
        [&] { worker->pull_all(std::array{v}, std::array{std::span<float>(four)}); },
        [&] { worker->push(v, four); },
        [&] { worker->push(scalar, 1.0F); },
        [&] { worker->push(std::array{v}, std::array{std::span<const float>(four)}); },
        [&] { static_cast<void>(worker->gradient(v)); },
        [&] { worker->add(v, four); },
        [&] { worker->assign(v, four); },
        [&] { worker->pull_rows(rows, ids, two); },
        [&] { worker->push_rows(rows, ids, two); },
        [&] { worker->add_rows(rows, ids, two); },
        [&] { worker->assign_rows(rows, ids, two); },
        [&] { static_cast<void>(worker->group_pushes()); },
        [&] { static_cast<void>(worker->snapshot()); },
        [&] { static_cast<void>(worker->variable("v")); },
        [&] { static_cast<void>(worker->variable({.name = "v", .shape = {4}}, [](std::span<float>) {})); },
        [&] { static_cast<void>(worker->shared("data", [](const auto&) {})); },
        [&] { static_cast<void>(worker->step()); },
        [&] { worker->barrier(); },
        [&] { worker->wait_for_workers(); },
        [&] { worker->wait_to_be_last(); },
        [&] { static_cast<void>(worker->live()); },
        [&] { static_cast<void>(worker->global_step()); },
        [&] { static_cast<void>(worker->finished()); },
        [&] { worker->report(0.5, 1); },
        [&] { static_cast<void>(worker->examples_before()); },
        [&] { static_cast<void>(worker->staleness()); },
        [&] { of_worker->copy("v", four); },
        [&] { static_cast<void>(of_worker->updates("v")); },
        [&] { static_cast<void>(view->info()); },
        [&] { static_cast<void>(view->values("v")); },
        [&] { static_cast<void>(view->workers()); },
        [&] { static_cast<void>(view->snapshot()); },
        [&] { static_cast<void>(control->current()); },
        [&] { control->change([](LiveSettings&) {}); },
        [&] { server->serve({}); },
        [&] { static_cast<void>(server->global_step()); },
        [&] { server->keep_segments(); },
        [&] { static_cast<void>(server->snapshot()); },
    };
    const int not_refused = count_not_refused(calls);
    group.clear();
    of_worker.reset();
    control.reset();
    view.reset();
    worker.reset();
    server.reset();
    return not_refused;
  });
  CHECK(child.join() == 0);
  CHECK(view->workers().at(0).state == WorkerState::kAlive);
  of_worker->copy("v", four);
  group.clear();
  of_worker.reset();
  std::optional<Snapshot> of_view(view->snapshot());
  Child second([&] {
    const int not_refused = count_not_refused({[&] { of_view->copy("v", four); }});
    of_view.reset();
    return not_refused;
  });
  CHECK(second.join() == 0);
  of_view->copy("v", four);
  of_view.reset();
  worker->push(v, four);
  CHECK(worker->step() == 1);
}

}  // namespace

TEST_CASE("fork: every call of a parent's object throws Error in the child, and no destructor does anything") {
  for (const Mode mode : {Mode::kAsync, Mode::kSsp, Mode::kSync})
    for (const bool within_group : {false, true}) {
      CAPTURE(to_string(mode));
      CAPTURE(within_group);
      use_in_child(mode, within_group);
    }
}

TEST_CASE("fork: every call of a parent's table throws Error in the child, but for those that read no memory of it") {
  test::TableJob job(test::spec_of(64, 2));
  const std::uint64_t keys[] = {1};
  std::array<float, 2> two{};
  std::array<bool, 1> found{};
  job.push({1}, 1.0F);
  Child child([&] {
    job.table.prefetch(keys);  // does nothing
    const bool is_known = job.table.name() == "items" && job.table.row_size() == 2 && job.table.slots().empty() &&
                          job.table.state_size() == 0;
    const Calls calls{
        [&] { job.table.pull(keys, two); },
        [&] { job.table.push(keys, two); },
        [&] { job.table.assign(keys, two); },
        [&] { job.table.contains(keys, found); },
        [&] { job.table.evict(keys); },
        [&] { job.table.expire(); },
        [&] { job.table.dump(0, [](const TableRow&) {}); },
        [&] { static_cast<void>(job.table.statistics()); },
        [&] { static_cast<void>(job.worker.table(test::spec_of(64, 2))); },
    };
    const int not_refused = count_not_refused(calls);
    return is_known ? not_refused : 99;
  });
  CHECK(child.join() == 0);
  CHECK(job.has(1));
}

TEST_CASE("fork: every call of a parent's publisher, subscriber and generation throws Error in the child") {
  const test::PublicationName name;
  std::optional<Publisher> publisher(test::bundle_of(name));
  std::optional<Subscriber> subscriber(name.text());
  test::publish_next(*publisher);
  std::optional<Generation> held = subscriber->read();
  const auto write = [](std::uint32_t, std::span<std::byte>) {};
  const std::uint32_t changed[] = {0};
  Child child([&] {
    const Calls calls{
        [&] { publisher->publish(write); },
        [&] { publisher->publish(changed, write); },
        [&] { static_cast<void>(publisher->generation()); },
        [&] { static_cast<void>(publisher->step()); },
        [&] { static_cast<void>(publisher->tensor(0)); },
        [&] { static_cast<void>(subscriber->read()); },
        [&] { static_cast<void>(subscriber->try_read()); },
        [&] { static_cast<void>(publisher->readers()); },
        [&] { static_cast<void>(publisher->wait_for(1)); },
        [&] { static_cast<void>(publisher->trim()); },
        [&] { static_cast<void>(subscriber->newest()); },
        [&] { static_cast<void>(publisher->memory()); },
        [&] { static_cast<void>(subscriber->memory()); },
        [&] { subscriber->pin(*held, 0); },
        [&] { subscriber->unpin_all(); },
        [&] { subscriber->acknowledge(1); },
        [&] { static_cast<void>(subscriber->is_published()); },
        [&] { static_cast<void>(subscriber->has_ended()); },
        [&] { static_cast<void>(held->step()); },
        [&] { static_cast<void>(held->unix_ns()); },
        [&] { static_cast<void>(held->tensor(0)); },
        [&] { held->copy(0, {}); },
    };
    const int not_refused = count_not_refused(calls);
    held.reset();
    subscriber.reset();
    publisher.reset();
    return not_refused;
  });
  CHECK(child.join() == 0);
  CHECK(name.exists());
  CHECK(subscriber->is_published());
  for (int i = 0; i < 20; ++i) REQUIRE(test::publish_next(*publisher));
  CHECK(test::is_whole(*held));
}
