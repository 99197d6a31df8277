// In-place variables of one element: value and counter in one word, through both forms of push and pull.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"
#include "update/elements.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

namespace {

VariableSpec spec_of(UpdateRule rule = UpdateRule::kAdd, Layout layout = Layout::kInplace,
                     std::vector<std::uint64_t> shape = {}) {
  return {.name = "v", .shape = std::move(shape), .rule = rule, .layout = layout};
}

float value_in(const Job& job) { return job.view().values("v").front(); }

// The word of a job's variable "v", through a separate mapping.
struct WordOf {
  JobSegments segments;
  AtomicShm<std::uint64_t>* word;

  explicit WordOf(const std::string& job) : segments(attach(job)) {
    const Directory directory(segments);
    const VariableShm& record = directory.at(directory.find("v"));
    word = &reinterpret_cast<PieceWordShm*>(segments.shard_data(record.shard) + record.words_offset)->word;
  }
};

// The two forms of the same calls.
struct Form {
  const char* name;
  std::function<void(Worker&, const Variable&, float)> push;
  std::function<float(Worker&, const Variable&)> pull;
};
const Form kForms[] = {
    {"of a float", [](Worker& worker, const Variable& variable, float g) { worker.push(variable, g); },
     [](Worker& worker, const Variable& variable) { return worker.pull(variable); }},
    {"of a span",
     [](Worker& worker, const Variable& variable, float g) { worker.push(variable, std::span<const float>(&g, 1)); },
     [](Worker& worker, const Variable& variable) {
       float out = -1;
       worker.pull(variable, {&out, 1});
       return out;
     }}};

}  // namespace

TEST_CASE("one element: both forms push, pull and count, in both layouts, and see each other's updates") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const std::vector<std::uint64_t>& shape : {std::vector<std::uint64_t>{}, {1}, {1, 1}}) {
      CAPTURE(to_string(layout));
      Job job({.workers = 2, .max_workers = 8});
      Worker worker = job.join();
      const Variable variable = worker.variable(spec_of(UpdateRule::kAdd, layout, shape), zero);
      float expected = 0;
      for (const Form& writer : kForms)
        for (const Form& reader : kForms) {
          writer.push(worker, variable, 1.5F);
          CHECK(reader.pull(worker, variable) == (expected += 1.5F));
        }
      const JobView view = job.view();
      CHECK(view.values("v") == std::vector<float>{6});
      CHECK(view.variables().front().updates == 4);
      CHECK(view.workers().front().pushes == 4);
      CHECK(view.workers().front().pulls == 4);
    }
}

TEST_CASE("one element: in sync mode the short forms belong to a step as well") {
  Job job({.workers = 2, .max_workers = 8, .mode = Mode::kSync});
  Worker first = job.join(), second = job.join();
  const VariableSpec spec = spec_of(UpdateRule::kAdd, Layout::kVersioned);
  const Variable a = first.variable(spec, zero), b = second.variable(spec, zero);
  first.push(a, 2);
  CHECK(first.pull(a) == 0);  // nothing is applied before the step
  std::thread stepping([&] {
    second.push(b, 3);
    second.step();
  });
  first.step();
  stepping.join();
  CHECK(first.pull(a) == 5);
}

TEST_CASE("one element: the short forms of a larger variable are refused, and change and count nothing") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    Job job({.workers = 2, .max_workers = 8});
    Worker worker = job.join();
    const Variable variable = worker.variable(spec_of(UpdateRule::kAdd, layout, {2}), zero);
    CHECK_THROWS_WITH_AS(worker.push(variable, 1.0F),
                         doctest::Contains("push of variable 'v': it has 2 elements, the span has 1"), Error);
    CHECK_THROWS_WITH_AS(static_cast<void>(worker.pull(variable)),
                         doctest::Contains("pull of variable 'v': it has 2 elements, the span has 1"), Error);
    const JobView view = job.view();
    CHECK(view.values("v") == std::vector<float>{0, 0});
    CHECK(view.workers().front().pushes == 0);
    CHECK(view.workers().front().pulls == 0);
  }
}

TEST_CASE("in-place scalar: a view shows pushes of both forms") {
  Job job({.workers = 2, .max_workers = 8});
  Worker worker = job.join();
  const Variable variable = worker.variable(spec_of(), zero);
  const std::span<const float> view = variable.view();
  REQUIRE(view.size() == 1);
  for (const Form& form : kForms) form.push(worker, variable, 2);
  CHECK(view[0] == 4);
}

TEST_CASE("in-place scalar: its bytes are those of the float") {
  Job job({.workers = 2, .max_workers = 8});
  Worker worker = job.join();
  const Variable variable = worker.variable(spec_of(), zero);
  const float given = 2.5F;
  worker.assign(variable, std::as_bytes(std::span(&given, 1)));
  float pulled = 0;
  worker.pull(variable, std::as_writable_bytes(std::span(&pulled, 1)));
  CHECK(pulled == given);
}

TEST_CASE("in-place scalar: staleness counts the others' pushes since the pull, even when the counter wraps around") {
  for (const Form& form : kForms)
    for (const std::uint32_t start : {0U, 0xfffffffdU, 0xffffffffU}) {
      CAPTURE(form.name);
      CAPTURE(start);
      Job job({.workers = 2, .max_workers = 8});
      Worker first = job.join(), second = job.join();
      const Variable a = first.variable(spec_of(), zero), b = second.variable(spec_of(), zero);
      WordOf(job.name.text()).word->store_release(make_scalar(start, 0));
      CHECK(form.pull(first, a) == 0);
      for (int i = 0; i < 5; ++i) form.push(second, b, 1);
      form.push(first, a, 1);
      CHECK(first.staleness().max == 5);
      CHECK(first.staleness().mean == 5);
      for (int i = 0; i < 10; ++i) form.push(first, a, 1);  // one's own pushes do not count
      CHECK(first.staleness().max == 5);
      CHECK(form.pull(first, a) == 16);
      form.push(second, b, 1);
      form.push(first, a, 1);
      CHECK(first.staleness().max == 5);
      CHECK(second.staleness().max == 0);  // it has pulled nothing
      CHECK(value_in(job) == 18);
      CHECK(scalar_pushes(WordOf(job.name.text()).word->load_acquire()) == start + 18);
    }
}

TEST_CASE("in-place scalar: staleness scaling divides the rate, even when the counter wraps around") {
  for (const Form& form : kForms)
    for (const std::uint32_t start : {0U, 0xfffffffeU}) {
      Job job({.workers = 2, .max_workers = 8, .optimizer = {.lr = 1.0F, .lr_staleness = true}});
      Worker first = job.join(), second = job.join();
      const Variable a = first.variable(spec_of(UpdateRule::kSgd), zero);
      const Variable b = second.variable(spec_of(UpdateRule::kSgd), zero);
      WordOf(job.name.text()).word->store_release(make_scalar(start, 0));
      form.push(first, a, 1);  // nothing pulled: the rate is unchanged
      CHECK(form.pull(first, a) == -1);
      for (int i = 0; i < 3; ++i) form.push(second, b, 0);
      form.push(first, a, 1);
      CHECK(value_in(job) == -1.25F);
    }
}

TEST_CASE("in-place scalar: clip_norm limits both forms, but not additions") {
  for (const Form& form : kForms)
    for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdd}) {
      Job job({.workers = 2, .max_workers = 8, .optimizer = {.lr = 1.0F, .clip_norm = 2.0F}});
      Worker worker = job.join();
      const Variable variable = worker.variable(spec_of(rule), zero);
      form.push(worker, variable, 8);
      CHECK(form.pull(worker, variable) == (rule == UpdateRule::kSgd ? -2.0F : 8.0F));
    }
}

TEST_CASE("in-place scalar: a changed clip_norm and rate apply to the short form from the next step on") {
  Job job({.workers = 2, .max_workers = 8, .optimizer = {.lr = 1.0F}});
  Worker worker = job.join();
  const Variable variable = worker.variable(spec_of(UpdateRule::kSgd), zero);
  worker.push(variable, 8);
  worker.step();
  CHECK(worker.pull(variable) == -8);
  JobControl(job.name.text()).change([](LiveSettings& settings) {
    settings.clip_norm = 2;
    settings.lr = 0.5F;
  });
  worker.step();
  worker.push(variable, 8);
  CHECK(worker.pull(variable) == -9);
}

TEST_CASE("in-place scalar: both forms compute the same bits as a span of several elements") {
  std::vector<std::vector<float>> courses;
  for (int which = 0; which < 3; ++which) {
    Job job({.workers = 2,
             .max_workers = 8,
             .optimizer = {.lr = 0.3F,
                           .schedule = Schedule::parse("exp:0.9:2"),
                           .lr_staleness = true,
                           .l2 = 0.01F,
                           .clip_value = 0.7F}});
    Worker worker = job.join();
    const std::uint64_t size = which == 2 ? 5 : 1;
    const Variable variable = worker.variable(spec_of(UpdateRule::kSgd, Layout::kInplace, {size}),
                                              [](std::span<float> out) { std::fill(out.begin(), out.end(), 1.0F); });
    std::vector<float>& course = courses.emplace_back();
    for (int step = 0; step < 50; ++step) {
      std::vector<float> values(size);
      if (which < 2)
        values[0] = kForms[which].pull(worker, variable);
      else
        worker.pull(variable, values);
      const float gradient = std::sin(float(step)) + values[0] / 3;
      if (which < 2)
        kForms[which].push(worker, variable, gradient);
      else
        worker.push(variable, std::vector<float>(size, gradient));
      worker.step();
      course.push_back(values[0]);
    }
  }
  CHECK(courses[0] == courses[1]);
  CHECK(courses[0] == courses[2]);
  CHECK(courses[0].back() != 1);
}

TEST_CASE("in-place scalar: parts of one row are scalars, the variable is pulled and pushed as usual") {
  Job job({.workers = 2, .max_workers = 8, .ps_tasks = 1, .placement = Placement::kPartition, .partitions = 3});
  Worker worker = job.join();
  const Variable variable = worker.variable(spec_of(UpdateRule::kAdd, Layout::kInplace, {3}), zero);
  REQUIRE(job.view().variables().front().parts.size() == 3);
  worker.push(variable, std::vector<float>{1, 2, 3});
  worker.push(variable, std::vector<float>{1, 2, 3});
  std::vector<float> out = pulled(worker, variable);
  CHECK(out == std::vector<float>{2, 4, 6});
  CHECK(job.view().values("v") == out);
  CHECK(job.view().variables().front().updates == 2);
  CHECK_THROWS_AS(static_cast<void>(variable.view()), Error);
  CHECK_THROWS_AS(worker.push(variable, 1.0F), Error);
}

TEST_CASE("in-place scalar: the bytes that a view counts are those of the files") {
  Job job({.workers = 2, .max_workers = 8});
  Worker worker = job.join();
  worker.variable(spec_of(), zero);
  const JobInfo info = job.view().info();
  std::uint64_t in_tasks = info.bytes.control + info.bytes.gradients;
  for (const TaskInfo& task : info.tasks) in_tasks += task.file_bytes;
  CHECK(info.bytes.total() == in_tasks);
  CHECK(info.bytes.values == 4);
}

TEST_CASE("in-place scalar: pushes of several processes in both forms: atomic ones are all applied, all are counted") {
  constexpr std::uint32_t kProcesses = 3, kPushes = 20'000;
  for (const Adds adds : {Adds::kExact, Adds::kRacy}) {
    Job job({.workers = 2, .max_workers = 8, .adds = adds});
    const Bell ready, go;
    std::vector<std::unique_ptr<Child>> children;
    for (std::uint32_t number = 0; number < kProcesses; ++number)
      children.push_back(std::make_unique<Child>([&] {
        Worker worker = job.join();
        const Variable variable = worker.variable(spec_of(), zero);
        ready.tell();
        if (!go.hear()) return 2;
        float last = 0;
        for (std::uint32_t push = 0; push < kPushes; ++push) {
          const Form& form = kForms[(push + number) % 2];
          form.push(worker, variable, 1);
          const float value = form.pull(worker, variable);
          if (adds == Adds::kExact && value <= last) return 3;  // sums increase
          last = value;
        }
        return 0;
      }));
    for (std::uint32_t number = 0; number < kProcesses; ++number) REQUIRE(ready.hear());
    for (std::uint32_t number = 0; number < kProcesses; ++number) go.tell();
    for (const auto& child : children) CHECK(child->join() == 0);
    const JobView view = job.view();
    CHECK(view.variables().front().updates == kProcesses * kPushes);
    if (adds == Adds::kExact)
      CHECK(value_in(job) == float(kProcesses * kPushes));
    else
      CHECK(value_in(job) <= float(kProcesses * kPushes));
  }
}
