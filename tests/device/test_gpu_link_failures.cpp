// GpuLink on the fake: no registration, a failure of each CUDA call, and calls that do not fit together.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "support/error_text.hpp"
#include "support/fake_gpu.hpp"

using namespace ps_shm;
using test::adding;
using test::FakeGpu;
using test::GpuMember;
using test::Job;

TEST_CASE("gpu link: without registration it copies through the host, reports it, and gives the same results") {
  for (const int which : {0, 1}) {
    FakeGpu fake({.host_register = which != 0});
    if (which == 1) fake.cuda.fail("host_register", 0, device::kOutOfMemory);
    for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
      JobConfig given = test::gpu_job(mode);
      given.optimizer.rule = UpdateRule::kAdd;
      Job job(given);
      GpuMember member(fake.box, job.config, {1, 5003, 2500007, 70001});  // more windows than there is memory for
      for (int round = 0; round < 3; ++round) {
        static_cast<void>(member.pull());
        member.set_gradients(1.0F);
        member.push();
        member.worker.step();
      }
      static_cast<void>(member.pull());
      for (std::size_t i = 0; i < 4; ++i) CHECK(member.parameters(i) == member.pulled_by_processor(i));
      CHECK(member.parameters(0)[0] == 3.0F);
      if (which == 1 && mode == Mode::kAsync) CHECK(member.warnings.size() == 1);
      const std::vector<Event> events = job.view().events();
      const auto told = std::count_if(events.begin(), events.end(), [](const Event& event) {
        return event.kind == "unregistered" && event.rank == 0U;
      });
      CHECK((told == 1) == !member.warnings.empty());
    }
  }
}

TEST_CASE("gpu link: where registering for reading only is refused, the GPU reaches the shards all the same") {
  FakeGpu fake;
  fake.cuda.fail("host_register", 0, device::kNotSupported);
  Job job(adding());
  GpuMember member(fake.box, job.config, {5003});
  static_cast<void>(member.pull());
  CHECK(member.parameters(0) == member.pulled_by_processor(0));
  CHECK(member.warnings.empty());
  CHECK(member.link->transfers().strategy == "pulls by a kernel, pushes staged");
}

TEST_CASE("gpu link: the inspector shows which GPU it uses, and how") {
  for (const bool can_register : {true, false}) {
    FakeGpu fake({.host_register = can_register});
    Job job(adding());
    const auto gpu = [&] { return job.view().workers().at(0).gpu; };
    {
      GpuMember member(fake.box, job.config, {5003});
      const std::optional<GpuUse> found = gpu();
      REQUIRE(found);
      CHECK(found->uuid == "01234567-89ab-cdef-fedc-ba9876543210");
      CHECK(found->pci_address == "0000:01:00.0");
      CHECK(found->node == -1);
      CHECK((found->registered_bytes != 0) == can_register);
      CHECK(found->pulls == (can_register ? "kernel" : "through host"));
      CHECK(found->pushes == (can_register ? "staged" : "through host"));
      CHECK_FALSE(found->native_adds);
    }
    WorkerOptions options = job.options({}, job.config.threads);
    options.rank = 0;
    const Worker successor(options);
    CHECK_FALSE(gpu());
  }
}

TEST_CASE("gpu link: a program's own way to wait for its GPU stays as it is") {
  FakeGpu fake;
  Job job(adding());
  const GpuMember member(fake.box, job.config, {5003});
  CHECK(fake.cuda.count("set_device") > 0);
  CHECK(fake.cuda.count("yield_in_waits") == 0);
}

TEST_CASE("gpu link: any failing call is a warning or an error that names it, without hangs or leaks") {
  struct Step {
    const char* call;
    device::CudaError error;
  };
  struct Kind {
    Layout layout;
    bool can_register;
  };
  for (const Step& one : std::vector<Step>{{"device_count", device::kNoDevice},
                                           {"set_device", device::kInvalidDevice},
                                           {"load", 209},
                                           {"create_stream", device::kOutOfMemory},
                                           {"create_event", device::kOutOfMemory},
                                           {"allocate", device::kOutOfMemory},
                                           {"allocate_pinned", device::kOutOfMemory},
                                           {"host_register", device::kOutOfMemory},
                                           {"device_address", device::kInvalidValue},
                                           {"copy", 999},
                                           {"copy_batch", 999},
                                           {"synchronize", 999},
                                           {"record", 999},
                                           {"wait", 999},
                                           {"wait_value", 999},
                                           {"pull_pieces", 98},
                                           {"send_pieces", 98},
                                           {"add_pieces", 98}})
    for (const Kind& kind :
         {Kind{Layout::kVersioned, true}, Kind{Layout::kVersioned, false}, Kind{Layout::kInplace, true}})
      for (int n = 0;; ++n) {
        REQUIRE(n < 200);
        INFO(std::string(one.call) << " " << n << " can register " << kind.can_register);
        FakeGpu fake({.native_atomics = true, .host_register = kind.can_register});
        JobConfig given = adding(kind.layout);
        given.chunk_bytes = test::kLargeChunk;  // for the copy engine
        Job job(given);
        bool was_error = false;
        std::size_t warnings = 0;
        std::size_t uses = 0;
        {
          std::optional<GpuMember> member;
          try {
            fake.cuda.fail(one.call, n, one.error);
            GpuOptions options;
            options.stream_waits = true;
            member.emplace(fake.box, job.config,
                           kind.layout == Layout::kInplace ? test::kSmallSizes : test::kLargeSizes, options);
            static_cast<void>(member->pull());
            member->set_gradients(1.0F);
            member->link->start_push();
            if (member->link->can_wait()) member->link->start_pull_when_opened();
            member->link->finish_push();
            member->worker.step();
            member->link->open();
            static_cast<void>(member->link->finish_pull());
          } catch (const Error& error) {
            was_error = true;
            const std::string text = error.what();
            CHECK(text.find('\n') == std::string::npos);
            CHECK(text.find("GPU") != std::string::npos);
          }
          if (member) warnings = member->warnings.size();
          uses = fake.cuda.count(one.call);
        }
        if (uses <= static_cast<std::size_t>(n)) {
          CHECK_FALSE(was_error);
          break;
        }
        CHECK((was_error || warnings != 0 || one.error == device::kNotSupported));
      }
}

TEST_CASE("gpu link: a GPU that fails at work ends pull and push with an error") {
  for (const bool in_push : {false, true}) {
    FakeGpu fake;
    Job job(adding());
    GpuMember member(fake.box, job.config, {5003});
    if (in_push) static_cast<void>(member.pull());
    fake.cuda.break_device(719);
    CHECK_THROWS_WITH_AS((in_push ? member.push() : static_cast<void>(member.pull())),
                         doctest::Contains("fake error 719"), Error);
  }
}

TEST_CASE("gpu link: a pull whose copies have failed does not end as if it had not") {
  for (const auto& sizes : {std::vector<std::uint64_t>{900001}, test::kLargeSizes})
    for (const bool can_register : {true, false}) {
      FakeGpu fake({.host_register = can_register, .copy_batches = false});
      JobConfig given = adding();
      given.chunk_bytes = test::kLargeChunk;
      Job job(given);
      GpuMember member(fake.box, job.config, sizes);
      fake.cuda.fail("copy", can_register ? 3 : 0, device::kInvalidValue);
      CHECK_THROWS_WITH_AS(member.link->start_pull(), doctest::Contains("copy parameters"), Error);
      CHECK(test::error_of([&] { static_cast<void>(member.link->finish_pull()); }) ==
            "a pull to the GPU has failed when it was started");
      CHECK(member.link->transfers().pulls == 0);
    }
}

TEST_CASE("gpu link: pushes and pulls take turns, and a worker has one link") {
  FakeGpu fake;
  Job job(adding());
  GpuMember member(fake.box, job.config, {5003});
  member.set_gradients(1.0F);
  member.link->start_push();
  CHECK_THROWS_WITH_AS(member.link->start_push(), doctest::Contains("previous one is still in progress"), Error);
  member.link->finish_push();
  member.link->start_pull();
  CHECK_THROWS_WITH_AS(member.link->start_pull(), doctest::Contains("previous one is still in progress"), Error);
  CHECK_FALSE(member.link->finish_pull());
  float* nowhere = nullptr;
  const float* nothing = nullptr;
  const auto again = [&] {
    return device::make_gpu_link(member.worker, member.variables, std::span(&nowhere, 1), std::span(&nothing, 1), {},
                                 fake.cuda, fake.kernels);
  };
  CHECK_THROWS_WITH_AS(again(), doctest::Contains("already has a link to a GPU"), Error);
  member.link.reset();
  CHECK(again() != nullptr);
}

TEST_CASE("gpu link: after step() has thrown nothing is sent to where the others read the gradient") {
  FakeGpu fake;
  JobConfig given = test::gpu_job(Mode::kSync, Layout::kVersioned, 2);
  given.step_timeout = Seconds(0.05);  // the second worker never joins
  Job job(given);
  GpuMember member(fake.box, job.config, {5003});
  const auto start_push = [&](float gradient) {
    member.set_gradients(gradient);
    member.link->start_push();
  };
  start_push(1.0F);
  member.link->finish_push();
  CHECK_THROWS_AS(member.worker.step(), Error);
  CHECK_THROWS_WITH_AS(start_push(2.0F), doctest::Contains("call step() again"), Error);
  static_cast<void>(fake.cuda.synchronize(static_cast<device::Stream>(member.link->stream())));
  const std::span<float> buffer = member.worker.gradient(member.variables[0]);
  CHECK(std::count(buffer.begin(), buffer.end(), 1.0F) == 5003);
}

TEST_CASE("gpu link: arguments that do not fit together are an error") {
  FakeGpu fake;
  Job job(adding());
  GpuMember member(fake.box, job.config, {10});
  float* nowhere = nullptr;
  const float* nothing = nullptr;
  CHECK_THROWS_AS(device::make_gpu_link(member.worker, member.variables, std::span<float* const>(),
                                        std::span(&nothing, 1), {}, fake.cuda, fake.kernels),
                  Error);
  GpuOptions options;
  options.device = 3;
  CHECK_THROWS_WITH_AS(device::make_gpu_link(member.worker, member.variables, std::span(&nowhere, 1),
                                             std::span(&nothing, 1), options, fake.cuda, fake.kernels),
                       doctest::Contains("no GPU 3"), Error);
}
