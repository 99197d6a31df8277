// GpuLink on the tables of tables.hpp: the cases of gpu_cases.hpp, and what holds while several push at once.
#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/probe.hpp"
#include "gpu/pushed_ones.hpp"
#include "gpu/tables.hpp"
#include "shm/segment/layout.hpp"
#include "support/gpu_cases.hpp"
#include "support/stress.hpp"

namespace {

using namespace ps_shm;
using test::GpuMember;
using test::Job;
using test::on_tables;

// Selects a GPU for this thread, a different one for each number if there are several: its allocations go there.
GpuOptions take_gpu(int number) {
  GpuOptions options;
  options.device = number % static_cast<int>(device::probe_gpus(test::cuda()).gpus.size());
  device::check(test::cuda(), test::cuda().set_device(options.device), "be used");
  return options;
}

// Two workers with a GPU each (or both with the same one) and one without push ones at the same time.
void push_at_once(const JobConfig& config, const std::vector<std::uint64_t>& sizes, int pushes, Wire wire) {
  Server server(config);
  const auto push_all = [&](int number) {
    GpuOptions options = take_gpu(number);
    options.wire = wire;
    GpuMember member(on_tables(), config, sizes, options);
    member.set_gradients(1.0F);
    for (int k = 0; k < pushes; ++k) {
      if (k % 8 == 0) static_cast<void>(member.pull());
      member.push();
    }
    CHECK(member.warnings.empty());
  };
  auto first = std::async(std::launch::async, push_all, 0), second = std::async(std::launch::async, push_all, 1);
  Worker processor(test::options(config, {}, config.threads));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Variable variable = processor.variable(fmt::format("v{}", i + 1));
    const std::vector<float> ones(variable.element_count(), 1.0F);
    for (int k = 0; k < pushes; ++k) processor.push(variable, ones);
  }
  first.get();
  second.get();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Variable variable = processor.variable(fmt::format("v{}", i + 1));
    std::vector<float> values(variable.element_count());
    processor.pull(variable, values);
    CHECK(test::count_unlike(values, i, float(3 * pushes)) == 0);
  }
}

}  // namespace

TEST_CASE("gpu link: it pulls the CPU's values, whatever the layout, size and placement") {
  test::pulls_what_the_processor_pulls(on_tables());
}

TEST_CASE("gpu link: its pushes give the same bits as the CPU's, in every mode") {
  test::pushes_as_the_processor_does(on_tables());
}

TEST_CASE("gpu link: gradients can be transferred as bfloat16, rounded to nearest") {
  test::rounds_gradients_to_bfloat16(on_tables());
}

TEST_CASE("gpu link: a pull can wait on the stream for the step") {
  if (!test::cuda().can_wait_value()) {
    MESSAGE("skipped: this driver's streams cannot wait for a word");
    return;
  }
  test::waits_on_the_stream(on_tables());
}

TEST_CASE("gpu link: no update of two GPU workers and a processor is lost") {
  const int pushes = static_cast<int>(test::stress_rounds(200));
  REQUIRE(3 * pushes < 1 << 24);  // floats represent them exactly
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const Wire wire : {Wire::kFloat32, Wire::kBFloat16}) {
      INFO("layout " << std::string(to_string(layout)) << " wire " << int(wire));
      push_at_once(test::adding_job(layout, 3), {1, 10007, 150001}, pushes, wire);
    }
}

TEST_CASE("gpu link: no update is lost on a single chunk that all of them push to") {
  const int pushes = static_cast<int>(test::stress_rounds(500));
  REQUIRE(3 * pushes < 1 << 24);
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    push_at_once(test::adding_job(layout, 3), {1001}, pushes, Wire::kFloat32);
}

TEST_CASE("gpu link: pulled chunks are whole while others push, by kernel and by copy engine") {
  const std::uint64_t pulls = test::stress_rounds(300), least = std::max<std::uint64_t>(pulls / 8, 15);
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const std::uint64_t size :
         {5003, 300007, 900001}) {  // chunks of the last one are transferred by the copy engine
      INFO("layout " << std::string(to_string(layout)) << " size " << size);
      JobConfig config = test::adding_job(layout, 4);
      if (size == 900001) config.chunk_bytes = test::kLargeChunk;
      Server server(config);
      GpuMember reader(on_tables(), config, {size});
      std::atomic<bool> is_over{false};
      const auto by_processor = [&] {
        Worker worker(test::options(config, {}, config.threads));
        const Variable variable = worker.variable("v1");
        const std::vector<float> ones(size, 1.0F);
        int pushed = 0;
        for (; !is_over; ++pushed) worker.push(variable, ones);
        return pushed;
      };
      const auto by_gpu = [&] {
        GpuMember member(on_tables(), config, {size}, take_gpu(1));
        member.set_gradients(1.0F);
        int pushed = 0;
        for (; !is_over; ++pushed) member.push();
        return pushed;
      };
      std::vector<std::future<int>> pushers;
      pushers.push_back(std::async(std::launch::async, by_processor));
      pushers.push_back(std::async(std::launch::async, by_processor));
      pushers.push_back(std::async(std::launch::async, by_gpu));
      test::Whole whole(config, size);
      for (std::uint64_t k = 0; k < least || (k < pulls && !whole.has_moved()); ++k) {
        static_cast<void>(reader.pull());
        whole.look(reader.parameters(0));
      }
      is_over = true;
      int pushed = 0;
      for (std::future<int>& pusher : pushers) pushed += pusher.get();
      CHECK(whole.faults() == 0);
      CHECK(whole.has_moved());  // otherwise nothing was tested
      CHECK(test::count_unlike(reader.pulled_by_processor(0), 0, float(pushed)) == 0);
    }
}

TEST_CASE("gpu link: the GPU adds by itself exactly if the driver reports atomic adds and the rule only adds") {
  const device::GpuProbe probe = device::probe_gpus(test::cuda());
  const bool is_native = device::has_native_float_adds(probe.gpus.at(0));
  MESSAGE("float adds to host memory are " << std::string(is_native ? "native" : "not native") << " here");
  struct Kind {
    UpdateRule rule;
    Layout layout;
    bool only_adds;
  };
  for (const Kind& kind : std::vector<Kind>{{UpdateRule::kAdd, Layout::kInplace, true},
                                            {UpdateRule::kSgd, Layout::kInplace, true},
                                            {UpdateRule::kAdd, Layout::kVersioned, false},
                                            {UpdateRule::kAdam, Layout::kVersioned, false}}) {
    JobConfig given = test::gpu_job(Mode::kAsync, kind.layout);
    given.optimizer.rule = kind.rule;
    Job job(given);
    GpuMember member(on_tables(), job.config, {5003});
    const bool adds = member.link->transfers().strategy.find("adds to in-place variables itself") != std::string::npos;
    CHECK(adds == (is_native && kind.only_adds));
  }
}

TEST_CASE("gpu link: in sync mode the same gradients give the same bits in each run, wherever they were computed") {
  constexpr int kSteps = 12;
  const std::vector<std::uint64_t> sizes{1, 5003, 70001};
  std::vector<std::vector<float>> expected;
  for (int run = 0; run < 4; ++run) {
    JobConfig given = test::gpu_job(Mode::kSync, Layout::kVersioned, 3);
    given.optimizer.rule = UpdateRule::kAdam;
    Job job(given);
    const auto gradient_of = [&](std::uint32_t rank, int step, std::size_t i) {
      std::mt19937 generator(rank * 1000 + static_cast<unsigned>(step) * 10 + static_cast<unsigned>(i));
      std::normal_distribution<float> normal;
      std::vector<float> gradient(sizes[i]);
      std::generate(gradient.begin(), gradient.end(), [&] { return normal(generator); });
      return gradient;
    };
    const auto take_steps = [&](int number, bool is_on_gpu) {
      GpuMember member(on_tables(), job.config, sizes, take_gpu(number));
      for (int step = 0; step < kSteps; ++step) {
        std::vector<std::vector<float>> gradients;
        for (std::size_t i = 0; i < sizes.size(); ++i) gradients.push_back(gradient_of(member.worker.rank(), step, i));
        if (is_on_gpu) {
          static_cast<void>(member.pull());
          for (std::size_t i = 0; i < sizes.size(); ++i) member.set_gradient(i, gradients[i]);
          member.push();
        } else {
          for (std::size_t i = 0; i < sizes.size(); ++i) static_cast<void>(member.pulled_by_processor(i));
          member.worker.push(member.variables, std::vector<std::span<const float>>(gradients.begin(), gradients.end()));
        }
        member.worker.step();
      }
      std::vector<std::vector<float>> values;
      for (std::size_t i = 0; i < sizes.size(); ++i) values.push_back(member.pulled_by_processor(i));
      return values;
    };
    // In the last run nobody uses a GPU.
    auto first = std::async(std::launch::async, take_steps, 0, run < 3);
    auto second = std::async(std::launch::async, take_steps, 1, run < 3);
    const std::vector<std::vector<float>> values = take_steps(0, false);
    CHECK(first.get() == values);
    CHECK(second.get() == values);
    if (run == 0) expected = values;
    CHECK(values == expected);
  }
}
