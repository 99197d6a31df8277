// A forked child has its parent's handles, and can use none of them: each call that needs the parent's shared memory
// throws an Error, the others do what they say, and neither these nor a destructor changes anything for the parent.
// tests/checks/check_forks.py knows the public functions, and looks for each of them among the calls here.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/folder_publisher.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/worker.hpp"
#include "support/folder.hpp"
#include "support/processes.hpp"
#include "support/table_job.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using test::Child;
using test::JobName;

namespace {

// For a child that ends with it: 0, or the number of the first call that is not refused as one on a parent's object.
int find_unrefused(const std::vector<std::function<void()>>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) try {
      calls[i]();
      return int(i + 1);
    } catch (const Error& error) {
      const bool is_told = std::string_view(error.what()).find("parent") != std::string_view::npos;
      if (error.code() != ErrorCode::kInvalidState || !is_told) return int(i + 1);
    }
  return 0;
}

// 0, or 200 and the number of the first call that returns false or throws.
int find_wrong(const std::vector<std::function<bool()>>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) try {
      if (!calls[i]()) return int(201 + i);
    } catch (const std::exception&) {
      return int(201 + i);
    }
  return 0;
}

void use_in_child(Mode mode, bool within_group) {
  const JobConfig config = test::config_of({.mode = mode});
  const JobName name(config.job);
  std::optional<Server> server(config);
  std::optional<Worker> worker(WorkerOptions{.job = name.text()});
  std::optional<Worker> guest(WorkerOptions{.job = name.text(), .guest = true});
  const Variable v = worker->variable({.name = "v", .shape = {4}}, [](std::span<float>) {});
  const Variable scalar = worker->variable({.name = "scalar"}, [](std::span<float>) {});
  VariableSpec spec{.name = "rows", .shape = {4, 2}};
  if (mode != Mode::kSync) spec.layout = Layout::kInplace, spec.rule = UpdateRule::kAdd;
  const Variable rows = worker->variable(spec, [](std::span<float>) {});
  const Variable of_guest = guest->variable("v");
  const std::uint32_t ids[] = {1};
  const std::uint64_t long_ids[] = {1};
  std::array<float, 4> four{};
  std::array<float, 2> two{};
  std::array<Versions, 1> since;
  const std::span<std::byte> out = std::as_writable_bytes(std::span(four));
  const std::span<const std::byte> bytes = out;
  const auto none = [](std::span<float>) {};
  worker->push(v, four);
  if (mode == Mode::kSync) static_cast<void>(worker->gradient(v));
  std::optional<JobView> view(std::in_place, name.text());
  std::optional<JobControl> control(std::in_place, name.text());
  std::optional<Snapshot> of_worker(worker->snapshot());
  std::vector<PushGroup> group;
  if (within_group) group.push_back(worker->group_pushes());
  Child child([&] {
    int fault = find_unrefused({
        [&] { worker->pull(v, four); },
        [&] { worker->pull(v, out); },
        [&] { static_cast<void>(worker->pull(scalar)); },
        [&] { worker->pull_all(std::array{v}, std::array{std::span<float>(four)}); },
        [&] { worker->pull_average(v, four); },
        [&] { worker->pull_if_changed(v, four, since[0]); },
        [&] { worker->push(v, four); },
        [&] { worker->push(scalar, 1.0F); },
        [&] { worker->push(std::array{v}, std::array{std::span<const float>(four)}); },
        [&] {
          const std::span<float> copied = four;
          worker->push(std::array{v}, std::array{std::span<const float>(four)}, std::array{copied}, since);
        },
        [&] { static_cast<void>(worker->gradient(v)); },
        [&] { worker->add(v, four); },
        [&] { worker->add(scalar, 1.0F); },
        [&] { worker->add(v, bytes); },
        [&] { guest->add_once(1, std::array{of_guest}, std::array{bytes}); },
        [&] { worker->assign(v, four); },
        [&] { worker->assign(scalar, 1.0F); },
        [&] { worker->assign(v, bytes); },
        [&] { guest->assign_once(1, std::array{of_guest}, std::array{bytes}); },
        [&] { worker->pull_rows(rows, ids, two); },
        [&] { worker->pull_rows(rows, long_ids, two); },
        [&] { worker->push_rows(rows, ids, two); },
        [&] { worker->push_rows(rows, long_ids, two); },
        [&] { worker->add_rows(rows, ids, two); },
        [&] { worker->add_rows(rows, long_ids, two); },
        [&] { worker->assign_rows(rows, ids, two); },
        [&] { worker->assign_rows(rows, long_ids, two); },
        [&] { static_cast<void>(rows.view()); },
        [&] { static_cast<void>(rows.lr_scale()); },
        [&] { static_cast<void>(rows.regularize()); },
        [&] { static_cast<void>(worker->group_pushes()); },
        [&] { static_cast<void>(worker->snapshot()); },
        [&] { static_cast<void>(worker->variable("v")); },
        [&] { static_cast<void>(worker->variable({.name = "v", .shape = {4}}, none)); },
        [&] {
          const VariableSpec specs[] = {{.name = "v", .shape = {4}}};
          static_cast<void>(worker->variables(specs, [](std::size_t, std::span<float>) {}));
        },
        [&] { static_cast<void>(worker->table(test::spec_of(64, 2))); },
        [&] { static_cast<void>(worker->shared_data("data", [](const auto&) {})); },
        [&] { static_cast<void>(worker->step()); },
        [&] { static_cast<void>(worker->dropped_steps()); },
        [&] { worker->barrier(); },
        [&] { worker->wait_for_workers(); },
        [&] { worker->wait_to_be_last(); },
        [&] { worker->set_factors(v, 0.5F, 1); },
        [&] { static_cast<void>(worker->live()); },
        [&] { static_cast<void>(worker->global_step()); },
        [&] { static_cast<void>(worker->finished()); },
        [&] { worker->report(0.5, 1); },
        [&] { static_cast<void>(worker->examples_before()); },
        [&] { static_cast<void>(worker->staleness()); },
        [&] { of_worker->copy("v", four); },
        [&] { of_worker->copy("v", out); },
        [&] { of_worker->read("v", 0, out); },
        [&] { static_cast<void>(of_worker->updates("v")); },
        [&] { static_cast<void>(of_worker->is_point_in_time("v")); },
        [&] { static_cast<void>(view->info()); },
        [&] { static_cast<void>(view->global_step()); },
        [&] { static_cast<void>(view->workers()); },
        [&] { static_cast<void>(view->variables()); },
        [&] { static_cast<void>(view->values("v")); },
        [&] { static_cast<void>(view->bytes("v")); },
        [&] { static_cast<void>(view->sample("v", 1)); },
        [&] { static_cast<void>(view->averages("v")); },
        [&] { static_cast<void>(view->slot("v", "m")); },
        [&] { static_cast<void>(view->tables()); },
        [&] { static_cast<void>(view->count_rows("items")); },
        [&] { static_cast<void>(view->table_rows("items")); },
        [&] { static_cast<void>(view->snapshot()); },
        [&] { static_cast<void>(view->buffers()); },
        [&] { static_cast<void>(view->events()); },
        [&] { static_cast<void>(view->staleness()); },
        [&] { static_cast<void>(view->staleness_counts()); },
        [&] { static_cast<void>(view->digest()); },
        [&] { static_cast<void>(control->current()); },
        [&] { control->change([](LiveSettings&) {}); },
        [&] { server->serve({}); },
        [&] { static_cast<void>(server->global_step()); },
        [&] { static_cast<void>(server->snapshot()); },
        [&] { server->keep_segments(); },
    });
    if (fault == 0)
      fault = find_wrong({
          [&] { return worker->rank() == 0; },
          [&] { return worker->is_chief(); },
          [&] { return worker->config().job == name.text(); },
          [&] { return worker->prefetch_rows(rows, ids), true; },
          [&] { return worker->prefetch_rows(rows, long_ids), true; },
          [&] { return rows.name() == "rows"; },
          [&] { return rows.dtype() == DType::kFloat32; },
          [&] { return rows.element_count() == 8; },
          [&] { return rows.shape().size() == 2; },
          [&] { return rows.layout() == spec.layout.value_or(Layout::kVersioned); },
          [&] { return rows.rows() == (mode == Mode::kSync ? 0 : 4); },
          [&] { return rows.row_size() == (mode == Mode::kSync ? 0 : 2); },
          [&] { return of_worker->epoch() == 1; },
          [&] { return of_worker->global_step() == 0; },
          [&] { return of_worker->partial_ranks().empty(); },
          [&] { return of_worker->variables().size() == 3; },
          [&] { return control->config().job == name.text(); },
          [&] { return JobView::try_open(name.text())->global_step() == 0; },  // one of its own
          [&] { return worker->leave(), true; },
      });
    group.clear();
    of_worker.reset();
    control.reset();
    view.reset();
    guest.reset();
    worker.reset();
    server.reset();
    return fault;
  });
  CHECK(child.join() == 0);
  CHECK(view->workers().at(0).state == WorkerState::kAlive);
  of_worker->copy("v", four);
  group.clear();
  of_worker.reset();
  std::optional<Snapshot> of_view(view->snapshot());
  Child second([&] {
    const int fault = find_unrefused({[&] { of_view->copy("v", four); }});
    of_view.reset();
    return fault;
  });
  CHECK(second.join() == 0);
  of_view->copy("v", four);
  of_view.reset();
  worker->push(v, four);
  if (mode != Mode::kSync) {
    CHECK(guest->add_once(1, std::array{of_guest}, std::array{bytes}) == 0);
    CHECK(rows.view().size() == 8);
  }
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
    const int fault = find_unrefused({
        [&] { job.table.pull(keys, two); },
        [&] { job.table.push(keys, two); },
        [&] { job.table.assign(keys, two); },
        [&] { job.table.contains(keys, found); },
        [&] { job.table.evict(keys); },
        [&] { job.table.expire(); },
        [&] { job.table.dump(0, [](const TableRow&) {}); },
        [&] { static_cast<void>(job.table.statistics()); },
    });
    if (fault != 0) return fault;
    return find_wrong({
        [&] { return job.table.prefetch(keys), true; },  // does nothing
        [&] { return job.table.name() == "items"; },
        [&] { return job.table.row_size() == 2; },
        [&] { return job.table.slots().empty(); },
        [&] { return job.table.state_size() == 0; },
    });
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
  const std::array<float, 1> floats{};
  for (const bool is_writing : {false, true}) {
    std::optional<Publisher::Writing> writing = publisher->begin();
    if (!is_writing) writing->commit(20);
    Child child([&] {
      int fault = find_unrefused({
          [&] { publisher->publish(write); },
          [&] { publisher->publish(changed, write); },
          [&] { publisher->publish_slices([](std::uint32_t, Publisher::SliceOutput&) {}, 1); },
          [&] { static_cast<void>(publisher->begin()); },
          [&] { static_cast<void>(publisher->readers()); },
          [&] { static_cast<void>(publisher->wait_for(1)); },
          [&] { static_cast<void>(publisher->trim()); },
          [&] { static_cast<void>(publisher->generation()); },
          [&] { static_cast<void>(publisher->step()); },
          [&] { static_cast<void>(publisher->tensor(0)); },
          [&] { static_cast<void>(publisher->memory()); },
          [&] { static_cast<void>(subscriber->read()); },
          [&] { static_cast<void>(subscriber->try_read()); },
          [&] { subscriber->acknowledge(1); },
          [&] { static_cast<void>(subscriber->memory()); },
          [&] { subscriber->pin(*held, 0); },
          [&] { subscriber->unpin_all(); },
          [&] { static_cast<void>(subscriber->newest()); },
          [&] { static_cast<void>(subscriber->is_published()); },
          [&] { static_cast<void>(subscriber->has_ended()); },
          [&] { static_cast<void>(held->step()); },
          [&] { static_cast<void>(held->unix_ns()); },
          [&] { static_cast<void>(held->is_partial()); },
          [&] { static_cast<void>(held->tensor(0)); },
          [&] { static_cast<void>(held->values<std::int64_t>(0)); },
          [&] { held->copy(0, {}); },
      });
      if (fault == 0 && is_writing)
        fault = find_unrefused({
            [&] { writing->write(0, std::as_bytes(std::span(floats))); },
            [&] { writing->write_floats(0, floats); },
            [&] { static_cast<void>(writing->out(0)); },
            [&] { writing->commit(); },
        });
      if (fault == 0)
        fault = find_wrong({
            [&] { return publisher->spec().name == name.text(); },
            [&] { return publisher->find("t1") == 1; },
            [&] { return publisher->busy_ranks().empty(); },
            [&] { return subscriber->spec().name == name.text(); },
            [&] { return subscriber->rank() == 0; },
            [&] { return subscriber->find("t1") == 1; },
            [&] { return held->number() == 1; },
            [&] { return held->tensor_count() == 3; },
            [&] { return held->spec(1).name == "t1"; },
        });
      writing.reset();
      held.reset();
      subscriber.reset();
      publisher.reset();
      return fault;
    });
    CHECK(child.join() == 0);
    if (is_writing) CHECK(writing->commit(30) == 3);
  }
  CHECK(name.exists());
  CHECK(subscriber->is_published());
  CHECK(test::is_whole(*held));
  for (int i = 0; i < 20; ++i) REQUIRE(test::publish_next(*publisher));
  CHECK(test::is_whole(*held));
}

TEST_CASE("fork: every call of a parent's publisher to a folder throws Error in the child") {
  const test::Folder place;
  const std::vector<TensorSpec> tensors = {{.name = "w", .shape = {4}}};
  std::optional<FolderPublisher> folder(std::in_place, place.path("weights"), tensors);
  const auto fill = [](std::uint32_t, std::span<std::byte> out) { test::fill_words(out, 7); };
  folder->publish(fill);
  const std::string newest = folder->path();
  std::optional<FolderPublisher::Writing> file(folder->begin());
  test::fill_words(file->out(0), 8);
  const std::array<float, 4> floats{};
  Child child([&] {
    int fault = find_unrefused({
        [&] { folder->publish(fill); },
        [&] { static_cast<void>(folder->begin()); },
        [&] { file->write(0, std::as_bytes(std::span(floats))); },
        [&] { file->write_floats(0, floats); },
        [&] { static_cast<void>(file->out(0)); },
        [&] { file->commit(); },
    });
    if (fault == 0)
      fault = find_wrong({
          [&] { return folder->generation() == 1; },
          [&] { return folder->path() == newest; },
          [&] { return folder->tensors() == tensors; },
      });
    file.reset();
    folder.reset();
    return fault;
  });
  CHECK(child.join() == 0);
  CHECK_THROWS_AS(FolderPublisher(place.path("weights"), tensors), Error);  // it still has its publisher
  CHECK(file->commit() == 2);
  CHECK(folder->publish(fill) == 3);
}
