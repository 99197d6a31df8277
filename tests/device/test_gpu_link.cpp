// GpuLink on the fake: the cases of gpu_cases.hpp, and what happens when chunks move during a pull.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "support/fake_gpu.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using test::adding;
using test::FakeGpu;
using test::GpuMember;
using test::Job;

namespace {

// Another worker of the job, which adds to all elements of a variable on the CPU.
struct Other {
  Worker worker;
  Variable variable;

  explicit Other(const JobConfig& config)
      : worker(test::options(config, {}, config.threads)), variable(worker.variable("v1")) {}
  void add(float value) { worker.push(variable, std::vector<float>(variable.element_count(), value)); }
};

// How much the elements of a chunk differ from their initial values: the same for all of them, or the chunk is torn.
bool is_whole(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  for (std::size_t k = begin; k < end; ++k)
    if (values[k] - float(k * 7 % 1000) != values[begin] - float(begin * 7 % 1000)) return false;
  return true;
}

}  // namespace

TEST_CASE("gpu link: it pulls the CPU's values, whatever the layout, size and placement") {
  FakeGpu fake;
  test::pulls_what_the_processor_pulls(fake.box);
  CHECK(fake.cuda.count("pull_pieces") > 0);
  CHECK(fake.cuda.count("copy_batch") > 0);
}

TEST_CASE("gpu link: drivers without batched copies, native atomics or read-only registration work as well") {
  for (int lacks = 0; lacks < 3; ++lacks) {
    FakeGpu fake({.read_only_registration = lacks != 1, .copy_batches = lacks != 0, .stream_waits = lacks != 2});
    test::pulls_what_the_processor_pulls(fake.box);
  }
}

TEST_CASE("gpu link: its pushes give the same bits as the CPU's, in every mode") {
  FakeGpu fake;
  test::pushes_as_the_processor_does(fake.box);
}

TEST_CASE("gpu link: gradients can be transferred as bfloat16, half the bytes") {
  FakeGpu fake;
  test::rounds_gradients_to_bfloat16(fake.box);
  FakeGpu counting;
  for (const Wire wire : {Wire::kFloat32, Wire::kBFloat16}) {
    Job job(adding());
    GpuOptions options;
    options.wire = wire;
    GpuMember member(counting.box, job.config, {100000}, options);
    member.set_gradients(1.0F);
    const std::size_t before = counting.cuda.bytes_to_host();
    member.push();
    CHECK(counting.cuda.bytes_to_host() - before == (wire == Wire::kFloat32 ? 400000 : 200000));
  }
}

TEST_CASE("gpu link: without registration, a pull comes after what was enqueued before, and before what comes after") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    FakeGpu fake({.host_register = false});
    JobConfig given = adding(layout);
    given.threads = 3;
    Job job(given);
    GpuOptions options;
    options.stream_waits = true;
    const std::vector<std::uint64_t> sizes = {900001, 1, 7};
    GpuMember member(fake.box, job.config, sizes, options);
    CHECK(member.link->transfers().strategy == "pulls through the host, pushes through the host");
    CHECK(member.link->transfers().registered_bytes == 0);
    CHECK(job.view().workers().at(member.worker.rank()).gpu->pulls == "through host");
    CHECK_FALSE(member.link->can_wait());
    const auto assign_all = [&](float value) {
      for (std::size_t i = 0; i < sizes.size(); ++i)
        member.worker.assign(member.variables[i], std::vector<float>(sizes[i], value));
    };
    assign_all(1.0F);
    CHECK_FALSE(member.pull());
    assign_all(2.0F);
    std::vector<std::vector<float>> before, after;
    for (const std::uint64_t size : sizes) before.emplace_back(size), after.emplace_back(size);
    const auto stream = static_cast<device::Stream>(member.link->stream());
    const auto read = [&](std::vector<std::vector<float>>& to) {
      for (std::size_t i = 0; i < to.size(); ++i)
        static_cast<void>(
            fake.cuda.copy(to[i].data(), member.device_parameters(i), to[i].size() * sizeof(float), stream));
    };
    const std::size_t enqueued = fake.cuda.count("copy") + 2 * sizes.size();
    std::size_t copies = 0;
    fake.cuda.before_copy = [&](std::size_t) {  // the first one waits until all of the pull is enqueued
      if (copies++ == 0) CHECK(test::eventually([&] { return fake.cuda.count("copy") >= enqueued; }));
    };
    read(before);
    member.link->start_pull();
    read(after);
    CHECK_FALSE(member.link->finish_pull());
    static_cast<void>(fake.cuda.synchronize(stream));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CHECK(std::count(before[i].begin(), before[i].end(), 1.0F) == std::ptrdiff_t(sizes[i]));
      CHECK(std::count(after[i].begin(), after[i].end(), 2.0F) == std::ptrdiff_t(sizes[i]));
    }
    fake.cuda.before_copy = nullptr;
  }
}

TEST_CASE("gpu link: a pull through the host is finished when all of its copies are") {
  FakeGpu fake({.host_register = false});
  Job job(adding());
  const std::vector<std::uint64_t> sizes = {900001, 1, 7};
  GpuMember member(fake.box, job.config, sizes);
  std::atomic<std::size_t> copies = 0;
  fake.cuda.before_copy = [&](std::size_t) {
    for (int turn = 0; turn < 1000; ++turn) std::this_thread::yield();
    ++copies;
  };
  CHECK_FALSE(member.pull());
  CHECK(copies == sizes.size());
  fake.cuda.before_copy = nullptr;
}

TEST_CASE("gpu link: a pull through the host notes the versions from which staleness is measured") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    FakeGpu fake({.host_register = false});
    Job job(adding(layout));
    GpuMember member(fake.box, job.config, {900001});
    Other other(job.config);
    other.add(1.0F);
    CHECK_FALSE(member.pull());
    for (int k = 0; k < 3; ++k) other.add(1.0F);
    member.set_gradients(1.0F);
    member.push();
    CHECK(member.worker.staleness().max == 3);
    CHECK(member.worker.staleness().mean == 3.0);
  }
}

TEST_CASE("gpu link: copies and kernel of a pull work side by side, and come after what was enqueued before") {
  FakeGpu fake;
  JobConfig given = adding();
  given.chunk_bytes = test::kLargeChunk;
  Job job(given);
  GpuMember member(fake.box, job.config, test::kLargeSizes);
  REQUIRE(member.link->transfers().strategy.find("pulls by the copy engine and a kernel") == 0);
  const auto assign_all = [&](float value) {
    for (std::size_t i = 0; i < test::kLargeSizes.size(); ++i)
      member.worker.assign(member.variables[i], std::vector<float>(test::kLargeSizes[i], value));
  };
  assign_all(1.0F);
  CHECK_FALSE(member.pull());
  assign_all(2.0F);
  const auto stream = static_cast<device::Stream>(member.link->stream());
  std::vector<std::vector<float>> before, after;
  for (const std::uint64_t size : test::kLargeSizes) before.emplace_back(size), after.emplace_back(size);
  const auto read = [&](std::vector<std::vector<float>>& to) {
    for (std::size_t i = 0; i < to.size(); ++i)
      static_cast<void>(
          fake.cuda.copy(to[i].data(), member.device_parameters(i), to[i].size() * sizeof(float), stream));
  };
  const std::size_t kernels = fake.cuda.count("pull_pieces");
  std::atomic<std::size_t> copies = 0;
  // The first copy of what was before waits until the kernel is enqueued, and the kernel until a chunk is copied.
  fake.cuda.before_copy = [&](std::size_t) {
    if (copies++ == 0) CHECK(test::eventually([&] { return fake.cuda.count("pull_pieces") > kernels; }));
  };
  fake.cuda.during_pull = [&](unsigned) { CHECK(test::eventually([&] { return copies > before.size(); })); };
  read(before);
  member.link->start_pull();
  read(after);
  CHECK_FALSE(member.link->finish_pull());
  static_cast<void>(fake.cuda.synchronize(stream));
  fake.cuda.before_copy = nullptr;
  fake.cuda.during_pull = nullptr;
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(std::count(before[i].begin(), before[i].end(), 1.0F) == std::ptrdiff_t(before[i].size()));
    CHECK(std::count(after[i].begin(), after[i].end(), 2.0F) == std::ptrdiff_t(after[i].size()));
  }
}

TEST_CASE("gpu link: a pull can wait on the stream for the step") {
  FakeGpu fake;
  test::waits_on_the_stream(fake.box);
  FakeGpu without({.stream_waits = false});
  Job job(adding());
  GpuOptions options;
  options.stream_waits = true;
  GpuMember member(without.box, job.config, {1000}, options);
  CHECK_FALSE(member.link->can_wait());
  FakeGpu with;
  CHECK_FALSE(GpuMember(with.box, job.config, {1000}).link->can_wait());  // not requested
  for (const std::uint64_t chunk_bytes : {job.config.chunk_bytes, test::kLargeChunk}) {
    JobConfig given = adding();
    given.chunk_bytes = chunk_bytes;
    Job other(given);
    const bool is_kernel = chunk_bytes != test::kLargeChunk;  // the copy engine's pull needs the CPU
    CHECK(GpuMember(with.box, other.config, {900001}, options).link->can_wait() == is_kernel);
  }
}

TEST_CASE(
    "gpu link: in a job for GPUs the copy engine pulls large variables, also beside small ones, and a kernel others") {
  constexpr std::uint64_t kLarge = std::uint64_t{64} << 18;  // floats of 64 MiB
  const std::vector<std::uint64_t> large{kLarge, 5003, 1}, small{kLarge - 1, 5003, 1};
  GpuOptions options;
  options.stream_waits = true;
  const auto pulls = [&](std::uint64_t chunk_bytes, UpdateRule rule, const std::vector<std::uint64_t>& sizes) {
    FakeGpu fake;
    JobConfig given = test::gpu_job();
    given.max_workers = 2;
    given.chunk_bytes = chunk_bytes;
    given.optimizer.rule = rule;
    Job job(given);
    GpuMember member(fake.box, job.config, sizes, options);
    CHECK_FALSE(member.pull());
    for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(member.parameters(i) == member.pulled_by_processor(i));
    const std::string strategy = member.link->transfers().strategy;
    const bool is_engine = strategy.find("pulls by the copy engine") == 0;
    CHECK((fake.cuda.count("copy_batch") > 0) == is_engine);
    CHECK((fake.cuda.count("pull_pieces") > 0) == (strategy.find("kernel") < strategy.find(',')));
    CHECK(member.link->can_wait() == !is_engine);
    CHECK(member.warnings.empty());
    return strategy.substr(0, strategy.find(','));
  };
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    CAPTURE(to_string(rule));
    CHECK(pulls(kChunkBytesForGpu, rule, large) == "pulls by the copy engine and a kernel");
    CHECK(pulls(kChunkBytesForGpu, rule, {kLarge}) == "pulls by the copy engine");
    CHECK(pulls(0, rule, large) == "pulls by a kernel");
  }
  CHECK(pulls(kChunkBytesForGpu, UpdateRule::kSgd, small) == "pulls by a kernel");
  CHECK(pulls(test::kLargeChunk, UpdateRule::kSgd, {900001}) == "pulls by the copy engine");
  CHECK(pulls(test::kLargeChunk, UpdateRule::kSgd, {900001, 17}) == "pulls by the copy engine and a kernel");
}

TEST_CASE("gpu link: a driver that refuses stream waits gives a warning, and steps are not enqueued ahead") {
  FakeGpu fake({.refuses_waits = true});
  Job job(adding());
  GpuOptions options;
  options.stream_waits = true;
  GpuMember member(fake.box, job.config, {1000}, options);
  CHECK_FALSE(member.link->can_wait());
  REQUIRE(member.warnings.size() == 1);
  CHECK(member.warnings[0].find("cuStreamWaitValue32") != std::string::npos);
  CHECK_FALSE(member.pull());
  GpuMember other(fake.box, job.config, {1000});  // not requested
  CHECK(other.warnings.empty());
}

TEST_CASE("gpu link: the second link on a GPU does not query the driver again") {
  FakeGpu fake({.devices = 4});
  Job job(adding());
  const GpuMember first(fake.box, job.config, {1000});
  const std::size_t asked = fake.cuda.count("properties");
  CHECK(asked == 1);  // one of the four GPUs
  const GpuMember second(fake.box, job.config, {1000});
  CHECK(fake.cuda.count("properties") == asked);
}

TEST_CASE("gpu link: a forked child does not get the memory into which the GPU writes gradients") {
  constexpr std::uint64_t kSize = 1'000'003;
  const auto left_out = [] {  // sizes in KiB of the mappings that a child does not get
    std::vector<std::size_t> sizes;
    std::ifstream smaps("/proc/self/smaps");
    std::size_t size = 0;
    for (std::string line; std::getline(smaps, line);) {
      if (line.starts_with("Size:")) size = std::stoul(line.substr(5));
      if (line.starts_with("VmFlags:") && line.find(" dc") != std::string::npos) sizes.push_back(size);
    }
    return sizes;
  };
  FakeGpu fake;
  Job job(adding());
  GpuMember member(fake.box, job.config, {kSize});
  const std::vector<std::size_t> sizes = left_out();
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  CHECK(std::count(sizes.begin(), sizes.end(), (kSize * sizeof(float) + page - 1) / page * (page >> 10)) == 1);
}

TEST_CASE("gpu link: in sync mode gradients are written where the other workers read them") {
  FakeGpu fake;
  Job job(test::gpu_job(Mode::kSync));
  GpuMember member(fake.box, job.config, {5003});
  const std::vector<float> gradient(5003, 2.5F);
  member.set_gradient(0, gradient);
  static_cast<void>(member.pull());
  member.link->start_push();
  static_cast<void>(fake.cuda.synchronize(static_cast<device::Stream>(member.link->stream())));
  const std::span<float> buffer = member.worker.gradient(member.variables[0]);
  CHECK(std::equal(buffer.begin(), buffer.end(), gradient.begin()));
  member.link->finish_push();
  member.worker.step();
  CHECK(member.pulled_by_processor(0)[1] == 7.0F - 0.5F * 2.5F);
}

TEST_CASE("gpu link: pieces are applied while later ones are still being transferred") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    FakeGpu fake;
    Job job(adding(layout));
    GpuMember member(fake.box, job.config, {70001});
    Other other(job.config);
    member.set_gradients(1.0F);
    bool was_applied = false;
    fake.cuda.before_report = [&](std::size_t piece) {
      if (piece != 1) return;  // the first one is there; the second is not reported until it has been applied
      std::vector<float> now(70001);
      was_applied = was_applied || test::eventually([&] {
                      other.worker.pull(other.variable, now);
                      return now[0] == 1.0F;
                    });
    };
    member.push();
    CHECK(was_applied);
    CHECK(member.pulled_by_processor(0)[70000] == float(70000 * 7 % 1000) + 1.0F);
  }
}

TEST_CASE("gpu link: a chunk that moves while a kernel copies it is copied again") {
  for (const int times : {1, 2, 3, 5}) {
    FakeGpu fake;
    Job job(adding());
    GpuMember member(fake.box, job.config, {5003});
    Other other(job.config);
    int pushed = 0;
    fake.cuda.during_pull = [&](std::size_t piece) {
      if (piece != 1 || pushed == times) return;
      ++pushed;
      for (int round = 0; round < 6; ++round) other.add(1.0F);  // cycles through its free buffers
    };
    const bool has_moved = member.pull();
    CHECK(has_moved == (times >= 3));
    CHECK(member.link->transfers().bounced_chunks == (times >= 3 ? 1 : 0));
    const std::vector<float> got = member.parameters(0);
    const std::size_t chunk = 2032;  // a chunk of 8 KiB with its header
    for (std::size_t begin = 0; begin < got.size(); begin += chunk)
      CHECK(is_whole(got, begin, std::min(begin + chunk, got.size())));
    member.set_gradients(1.0F);
    member.push();
    CHECK(member.worker.staleness().max >= 6);  // of the chunks that were copied before
  }
}

TEST_CASE("gpu link: a chunk that moves while the copy engine copies it is copied again, and only this one") {
  for (const int times : {1, 2, 3, 5}) {
    FakeGpu fake;
    JobConfig given = adding();
    given.chunk_bytes = test::kLargeChunk;
    Job job(given);
    GpuMember member(fake.box, job.config, {900001});
    Other other(job.config);
    int pushed = 0;
    fake.cuda.before_copy = [&](std::size_t) {
      if (pushed == times) return;
      ++pushed;
      for (int round = 0; round < 6; ++round) other.add(1.0F);
    };
    static_cast<void>(member.pull());
    const GpuTransfers& transfers = member.link->transfers();
    CHECK(transfers.redone_chunks + transfers.bounced_chunks > 0);
    const std::vector<float> got = member.parameters(0);
    constexpr std::size_t kChunk = (test::kLargeChunk - 64) / sizeof(float);  // without its header
    for (std::size_t begin = 0; begin < got.size(); begin += kChunk)
      CHECK(is_whole(got, begin, std::min(begin + kChunk, got.size())));
    fake.cuda.before_copy = nullptr;
  }
}

TEST_CASE("gpu link: variables declared later may provide buffers beyond what was registered") {
  FakeGpu fake;
  Job job(adding());
  GpuMember member(fake.box, job.config, {5003});
  Other other(job.config);
  for (int k = 0; k < 4; ++k) {
    const VariableSpec spec{.name = fmt::format("later{}", k), .shape = {20011}};
    const Variable later =
        other.worker.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
    other.worker.push(later, std::vector<float>(20011, 1.0F));
    other.add(1.0F);
    static_cast<void>(member.pull());
    CHECK(member.parameters(0) == member.pulled_by_processor(0));
  }
  CHECK(member.link->transfers().bounced_chunks > 0);
  const std::uint64_t bounced = member.link->transfers().bounced_chunks;
  for (int k = 0; k < 10; ++k) {  // registered by now
    other.add(1.0F);
    static_cast<void>(member.pull());
  }
  CHECK(member.link->transfers().bounced_chunks == bounced);
}

TEST_CASE("gpu link: a GPU with native atomics adds by itself if the rule only adds") {
  for (const UpdateRule rule : {UpdateRule::kAdd, UpdateRule::kSgd, UpdateRule::kAdam}) {
    const bool is_native = rule != UpdateRule::kAdam;
    FakeGpu fake({.native_atomics = true});
    JobConfig given = test::gpu_job(Mode::kAsync, is_native ? Layout::kInplace : Layout::kVersioned, 2);
    given.optimizer.rule = rule;
    Job job(given);
    GpuMember member(fake.box, job.config, {1, 5003});
    Other other(job.config);
    member.set_gradients(2.0F);
    static_cast<void>(member.pull());
    for (int k = 0; k < 3; ++k) other.worker.push(other.worker.variable("v2"), std::vector<float>(5003, 1.0F));
    member.push();
    CHECK(fake.cuda.count("add_pieces") == (is_native ? 1 : 0));
    CHECK(member.worker.staleness().max == 3);
    if (is_native) {
      CHECK(member.pulled_by_processor(1)[1] == (rule == UpdateRule::kAdd ? 8.0F + 5.0F : 8.0F - 0.5F * 5.0F));
      CHECK(member.pulled_by_processor(0)[0] == (rule == UpdateRule::kAdd ? 2.0F : -1.0F));
    }
  }
}

TEST_CASE("gpu link: with an age limit a GPU does not add by itself, and a gradient that is too old is not applied") {
  FakeGpu fake({.native_atomics = true});
  JobConfig given = test::gpu_job(Mode::kAsync, Layout::kInplace, 2);
  given.optimizer.rule = UpdateRule::kAdd;
  given.stale_limit = 2;
  Job job(given);
  GpuMember member(fake.box, job.config, {1, 5003});
  Other other(job.config);
  member.set_gradients(2.0F);
  const auto push_behind = [&](int steps) {
    static_cast<void>(member.pull());
    for (int i = 0; i < steps; ++i) {
      other.worker.push(other.worker.variable("v2"), std::vector<float>(5003, 1.0F));
      other.worker.step();
    }
    member.push();
    member.worker.step();
    return member.pulled_by_processor(1)[1];
  };
  const float first = push_behind(1);
  CHECK(push_behind(2) == first + 2);
  CHECK(push_behind(1) == first + 5);
  CHECK(fake.cuda.count("add_pieces") == 0);
}

TEST_CASE("gpu link: no update of two GPU workers and a processor is lost") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    FakeGpu fake;
    JobConfig given = adding(layout);
    given.workers = 3;
    Job job(given);
    constexpr int kPushes = 200;
    const auto push_all = [&] {
      GpuMember member(fake.box, job.config, {10007});
      member.set_gradients(1.0F);
      for (int k = 0; k < kPushes; ++k) {
        member.push();
        if (k % 10 == 0) static_cast<void>(member.pull());
      }
    };
    std::thread first(push_all), second(push_all);
    GpuMember member(fake.box, job.config, {10007});
    for (int k = 0; k < kPushes; ++k) member.worker.push(member.variables[0], std::vector<float>(10007, 1.0F));
    first.join();
    second.join();
    const std::vector<float> got = member.pulled_by_processor(0);
    CHECK(is_whole(got, 0, got.size()));
    CHECK(got[0] == 3.0F * kPushes);
  }
}
