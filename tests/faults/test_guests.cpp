// Guests: their changes are made exactly once, wherever one is killed, and no worker waits for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/segment/job_segments.hpp"
#include "support/conservation.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"
#include "worker/guest_rows.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr std::uint64_t kElements = 600;  // three chunks
constexpr std::uint64_t kRows = 8, kWidth = 4;

JobConfig with_guests(Mode mode, std::uint32_t workers = 1) {
  return {.workers = workers,
          .mode = mode,
          .chunk_bytes = 1024,
          .optimizer = {.rule = UpdateRule::kAdd},
          .linger = Seconds(1000)};
}

WorkerOptions guest_of(const JobConfig& config) {
  WorkerOptions given = options(config);
  given.guest = true;
  return given;
}

std::vector<VariableSpec> specs_of(Mode mode) {
  std::vector<VariableSpec> specs = {{.name = "v", .shape = {kElements}, .layout = Layout::kVersioned},
                                     {.name = "one", .shape = {1}, .layout = Layout::kVersioned}};
  if (mode != Mode::kSync) specs.push_back({.name = "rows", .shape = {kRows, kWidth}, .layout = Layout::kInplace});
  return specs;
}

std::vector<Variable> declare(Worker& worker, Mode mode) {
  return worker.variables(specs_of(mode), [](std::size_t, std::span<float> out) { zero(out); });
}

// Adds 1 to every element, and returns the number of elements in doubt. sets_them: they get the value that all of them
// have behind the tickets from 1 to this one.
std::uint64_t add_once(Worker& guest, Mode mode, std::uint64_t ticket, bool sets_them = false) {
  const std::vector<float> ones(kElements, 1.0F), sums(kElements, float(ticket));
  std::vector<Variable> variables;
  std::vector<std::span<const std::byte>> deltas, in_doubt;
  for (const VariableSpec& spec : specs_of(mode)) {
    variables.push_back(guest.variable(spec.name));
    deltas.push_back(std::as_bytes(std::span(ones).first(spec.element_count())));
    if (sets_them) in_doubt.push_back(std::as_bytes(std::span(sums).first(spec.element_count())));
  }
  return guest.add_once(ticket, variables, deltas, in_doubt);
}

// Kills this process before its `number`-th store to a shared word.
void kill_before_store(std::uint64_t number) {
  static std::uint64_t left;
  left = number;
  shm::g_fault_hooks.before_access = [](const void*, bool stores) {
    if (stores && --left == 0) raise(SIGKILL);
  };
}

// A worker that steps until `stop`, and pushes nothing.
int step_until(const JobConfig& config, const SharedCount& begun, const SharedCount& stop) {
  Worker worker(options(config));
  declare(worker, config.mode);
  begun.raise();
  while (stop.get() == 0) worker.step();
  return 0;
}

// For each store of a guest in turn: one guest is killed before it, and the next one repeats its change.
void kill_at_every_store(Mode mode, bool sets_doubtful = false) {
  Job job(with_guests(mode));
  const SharedCount begun, stop;
  Child stepping([&] { return step_until(job.config, begun, stop); });
  REQUIRE(eventually([&] { return begun.get() != 0; }));
  const JobView view(job.name.text());
  std::uint64_t in_doubt = 0, ticket = 1;
  for (bool is_complete = false; !is_complete; ++ticket) {
    Child guest([&] {
      kill_before_store(ticket);
      Worker worker(guest_of(job.config));
      add_once(worker, mode, ticket, sets_doubtful);
      worker.leave();
      return 0;
    });
    const int code = guest.join();
    REQUIRE((code == 0 || code == -1));
    is_complete = code == 0;
    Worker next(guest_of(job.config));
    in_doubt += add_once(next, mode, ticket, sets_doubtful);
    CHECK(add_once(next, mode, ticket, sets_doubtful) == 0);  // everything is done
    for (const std::string name : {"v", "one", "rows"}) {
      if (name == "rows" && !sets_doubtful) continue;
      const std::vector<float> values = view.values(name);
      REQUIRE(std::all_of(values.begin(), values.end(), [&](float value) { return value == float(ticket); }));
    }
  }
  --ticket;
  CHECK(ticket > 20);  // stores
  if (mode != Mode::kSync) {
    double sum = 0;
    for (const float value : view.values("rows")) {
      CHECK(value <= float(ticket));
      sum += double(value);
    }
    CHECK(in_doubt % (kRows * kWidth) == 0);  // whole blocks
    CHECK(in_doubt > 0);                      // some were killed within the block
    CHECK(double(ticket * kRows * kWidth) - sum <= double(in_doubt));
  } else {
    CHECK(in_doubt == 0);
  }
  CHECK(view.workers().size() == 1);
  stop.raise();
  CHECK(stepping.join() == 0);
  CHECK(test::is_conserved(job.name.text()));
}

// Gives all rows of a table what they lack of the ticket, which each has in each element.
GuestRows::Given give(Worker& guest, const TableSpec& spec, std::uint32_t ticket) {
  GuestRows rows(guest.table(spec));
  const std::vector<std::uint64_t> keys = {1, 2, 3, 4, 5, 6};
  const std::vector<float> values(keys.size() * kWidth, float(ticket)), bases(keys.size() * kWidth, float(ticket - 1));
  return rows.give(ticket, GuestRows::How::kAdd, keys, values, bases);
}

}  // namespace

TEST_CASE("guests: a change is made once, before whichever store its guest is killed (guest.G3, guest.G4)") {
  kill_at_every_store(Mode::kAsync);
}

TEST_CASE("guests: elements in doubt get the values that the change has for them (guest.G4)") {
  kill_at_every_store(Mode::kAsync, true);
}

TEST_CASE("guests: in mode sync too, in one step of the workers (guest.G2, guest.G5)") {
  kill_at_every_store(Mode::kSync);
}

TEST_CASE("guests: an assignment is no step of adam, and a reset sets its count to zero (slot.V15)") {
  JobConfig config = with_guests(Mode::kAsync);
  config.optimizer = {.rule = UpdateRule::kAdam, .lr = 0.5F, .beta1 = 0.5F, .beta2 = 0.75F};
  Job job(config);
  Worker worker = job.join();
  const Variable v = worker.variable({.name = "v", .shape = {kElements}, .layout = Layout::kVersioned}, zero);
  Worker guest(guest_of(job.config));
  const std::vector<Variable> one = {guest.variable("v")};
  const std::vector<float> eights(kElements, 8.0F);
  const std::vector<std::span<const std::byte>> values = {std::as_bytes(std::span(eights))};
  for (std::uint64_t ticket = 1; ticket < 7; ++ticket) {
    guest.assign_once(ticket, one, values, ticket % 2 == 0 ? Slots::kReset : Slots::kKeep);
    worker.push(v, std::vector<float>(kElements, 3.0F));
    for (const float value : pulled(worker, v)) REQUIRE(value == doctest::Approx(7.5F).epsilon(1e-5));
  }
}

TEST_CASE("guests: values are assigned, and a smaller ticket is refused") {
  for (const Mode mode : {Mode::kAsync, Mode::kSsp}) {
    CAPTURE(to_string(mode));
    Job job(with_guests(mode));
    Worker worker = job.join();
    const std::vector<Variable> variables = declare(worker, mode);
    Worker guest(guest_of(job.config));
    CHECK(guest.rank() == guest.config().max_workers - 1);
    add_once(guest, mode, 5);
    const std::vector<float> sevens(kElements, 7.0F);
    const std::vector<Variable> one = {guest.variable("v")};
    const std::vector<std::span<const std::byte>> values = {std::as_bytes(std::span(sevens))};
    guest.assign_once(6, one, values);
    CHECK(worker.pull(variables[1]) == 1);
    std::vector<float> out(kElements);
    worker.pull(variables[0], out);
    CHECK(out == sevens);
    CHECK_THROWS_AS(guest.assign_once(5, one, values), Error);
    CHECK_THROWS_AS(guest.assign_once(0, one, values), Error);
    CHECK_THROWS_AS(worker.assign_once(7, variables, values), Error);  // it is no guest
    CHECK_THROWS_AS(static_cast<void>(guest.step()), Error);
    CHECK_THROWS_AS(guest.barrier(), Error);
  }
}

TEST_CASE("guests: a job has one, which is refused where a worker has its rank") {
  JobConfig given = with_guests(Mode::kAsync);
  given.max_workers = 2;
  Job job(given);
  {
    const Worker guest(guest_of(job.config));
    CHECK_THROWS_AS(Worker{guest_of(job.config)}, Error);
    const Worker first = job.join();
    CHECK(first.rank() == 0);
    CHECK_THROWS_AS(Worker{job.options()}, Error);  // the guest has the last rank
  }
  const Worker first(job.options()), second(job.options());
  CHECK(second.rank() == 1);
  CHECK_THROWS_AS(Worker{guest_of(job.config)}, Error);
}

TEST_CASE("guests: a job of two workers does not begin with a worker and a guest (guest.G1, guest.G2)") {
  Job job(with_guests(Mode::kSync, 2));
  const SharedCount first_steps, second_steps;
  const auto work = [&](const SharedCount& steps) {
    Worker worker = job.join();
    declare(worker, Mode::kSync);
    worker.wait_for_workers();
    for (int step = 0; step < 20; ++step) worker.step(), steps.raise();
    return 0;
  };
  Child first([&] { return work(first_steps); });
  Child guest([&] {
    Worker worker(guest_of(job.config));
    add_once(worker, Mode::kSync, 1);
    return 0;
  });
  // The guest has joined, and waits for the first step; then it is stopped, and holds nobody up.
  REQUIRE(eventually([&] {
    const shm::JobSegments segments = job.attach();
    return segments.worker(segments.ranks() - 1).barriers[0].published.load_acquire() == 1;
  }));
  CHECK(first_steps.get() == 0);
  guest.stop();
  Child second([&] { return work(second_steps); });
  CHECK(first.join() == 0);
  CHECK(second.join() == 0);
  CHECK(job.view().values("one")[0] == 1);
  ::kill(guest.pid(), SIGCONT);
  CHECK(guest.join() == 0);
}

TEST_CASE("guests: a job of two workers does not end with a worker and a guest, nor waits for a guest (guest.G1)") {
  Job job(with_guests(Mode::kAsync, 2));
  const auto come_and_go = [&](const WorkerOptions& who) { Worker(who).leave(); };
  come_and_go(job.options(0));
  come_and_go(guest_of(job.config));
  int looks = 0;
  CHECK(job.server.serve(
            {.stop_requested = [&] { return ++looks > 3; }, .stop_at_once = {}, .log = {}, .every_second = {}}) ==
        EndReason::kStopRequested);
}

TEST_CASE("guests: a job ends beside a guest that stays (guest.G1)") {
  Job job(with_guests(Mode::kAsync));
  Worker(job.options()).leave();
  const Worker guest(guest_of(job.config));
  CHECK(job.server.serve({.stop_requested = {}, .stop_at_once = [] { return true; }, .log = {}, .every_second = {}}) ==
        EndReason::kAllWorkersLeft);
  CHECK(guest.finished());
}

// Of six rows the worker has pushed five: each has what it was pushed, and the ticket.
TEST_CASE("guests: rows are given once, before whichever store the guest is killed (bridge.T2, bridge.T3)") {
  Job job(with_guests(Mode::kAsync));
  Worker worker = job.join();
  const TableSpec spec{.name = "t", .row_size = kWidth, .max_rows = 64, .rule = {}, .initial_range = 0.0F};
  Table table = worker.table(spec);
  const std::vector<std::uint64_t> pushed = {1, 2, 3, 4, 5}, all = {1, 2, 3, 4, 5, 6};
  const std::vector<float> work(pushed.size() * kWidth, 0.5F);
  table.push(pushed, work);
  std::vector<float> of_workers(all.size(), 0.5F), found(all.size() * kWidth);
  of_workers.back() = 0;
  worker.step();
  std::uint64_t in_doubt = 0;
  std::uint32_t ticket = 1;
  for (bool is_complete = false; !is_complete; ++ticket) {
    Child guest([&] {
      kill_before_store(ticket);
      Worker one(guest_of(job.config));
      give(one, spec, ticket);
      one.leave();
      return 0;
    });
    const int code = guest.join();
    REQUIRE((code == 0 || code == -1));
    is_complete = code == 0;
    if (ticket % 16 == 0) {  // an evicted row lacks all of it
      CHECK(table.evict(std::span(pushed).first(1)) == 1);
      of_workers.front() = 0;
    }
    Worker next(guest_of(job.config));
    const GuestRows::Given given = give(next, spec, ticket);
    CHECK(given.absent == 0);
    REQUIRE(given.in_doubt <= 1);
    in_doubt += given.in_doubt;
    CHECK(give(next, spec, ticket).in_doubt == 0);
    table.pull(all, found);
    std::uint64_t lost = 0;
    for (std::size_t row = 0; row < all.size(); ++row) {
      const bool is_lost = found[row * kWidth] == float(ticket) && of_workers[row] != 0;
      if (is_lost) of_workers[row] = 0, ++lost;
      for (std::size_t i = 0; i < kWidth; ++i) REQUIRE(found[row * kWidth + i] == float(ticket) + of_workers[row]);
    }
    CHECK(lost <= given.in_doubt);
    of_workers.assign(all.size(), 0.5F);  // more work
    std::vector<float> more(all.size() * kWidth);
    for (std::size_t row = 0; row < all.size(); ++row)
      for (std::size_t i = 0; i < kWidth; ++i) more[row * kWidth + i] = float(ticket) + 0.5F - found[row * kWidth + i];
    table.push(all, more);
  }
  CHECK(ticket > 20);  // stores
  CHECK(in_doubt > 0);
}

TEST_CASE("guests: a row is marked until it is evicted, and a guest evicts none (bridge.T2, bridge.T3)") {
  Job job(with_guests(Mode::kAsync));
  Worker worker = job.join();
  const TableSpec spec{.name = "t", .row_size = kWidth, .max_rows = 64, .rule = {}, .initial_range = 0.0F};
  Table table = worker.table(spec);
  std::vector<std::uint64_t> keys(64);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = 100 + i;
  const std::vector<float> work(keys.size() * kWidth, 1.0F);
  table.push(keys, work);
  worker.step();
  Worker guest(guest_of(job.config));
  GuestRows rows(guest.table(spec));
  MarkedRows before, after;
  const std::uint32_t version = rows.changed_since(0, before);
  CHECK(before.keys.size() == 64);
  CHECK(std::all_of(before.marks.begin(), before.marks.end(), [](std::uint32_t mark) { return mark == 0; }));
  const std::vector<std::uint64_t> some = {7, 100, 101};
  const std::vector<float> values(some.size() * kWidth, 5.0F);
  CHECK(rows.give(9, GuestRows::How::kAdd, some, values, values).absent == 1);
  CHECK(table.statistics().evicted == 0);
  rows.changed_since(version, after);
  CHECK(after.keys.size() >= 2);
  std::vector<float> found(some.size() * kWidth);
  std::vector<std::uint32_t> marks(some.size());
  std::vector<std::uint8_t> is_there(some.size());
  rows.read(some, found, marks, is_there);
  CHECK(is_there == std::vector<std::uint8_t>{0, 1, 1});
  CHECK((marks[1] == GuestRows::done(9) && marks[2] == GuestRows::done(9)));
  CHECK((found[kWidth] == 6.0F && found[2 * kWidth] == 6.0F));
  CHECK(table.evict(std::span(some).subspan(1, 1)) == 1);
  table.push(std::span(some).subspan(1, 1), std::span(work).first(kWidth));
  rows.read(some, found, marks, is_there);
  CHECK((marks[1] == 0 && found[kWidth] == 1.0F && found[2 * kWidth] == 6.0F));
}
