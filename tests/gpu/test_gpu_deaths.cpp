// What a GPU worker leaves behind when it is killed, and shards that are registered in several regions.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "device/registration.hpp"
#include "gpu/pushed_ones.hpp"
#include "support/processes.hpp"
#include "support/stress.hpp"

extern char** environ;

namespace {

using namespace ps_shm;
using test::GpuMember;
using test::on_tables;

constexpr std::uint64_t kSize = 2'000'003;  // so large that a push takes most of a round
constexpr std::size_t kSentBytes = 1 << 16, kSent = kSentBytes / sizeof(float);
constexpr int kBell = 3;  // the descriptor on which a helper signals that it has got so far
constexpr char kGivenToHelper[] = "PS_SHM_TEST_GPU_GIVEN";
constexpr char kPushes[] = "helper: pushes ones until it is killed";
constexpr char kWaitsAtGate[] = "helper: waits at a gate before it sends twos until it is killed";

// This program run again, for one of the cases above, which gets a job's name or a file's path. After CUDA has been
// initialized a fork cannot use it; a new program can.
class HelperProcess {
 public:
  HelperProcess(const char* test_case, const std::string& given) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kBell);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const std::string chosen = fmt::format("--test-case={}", test_case);
    const char* arguments[] = {"helper", chosen.c_str(), "--no-skip=true", nullptr};
    setenv(kGivenToHelper, given.c_str(), 1);
    const int failed =
        posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, const_cast<char* const*>(arguments), environ);
    unsetenv(kGivenToHelper);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    bell_ = ends[0];
    REQUIRE(failed == 0);
  }
  ~HelperProcess() {
    kill();
    close(bell_);
  }
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  [[nodiscard]] bool rings() const {
    pollfd end{bell_, POLLIN, 0};
    char byte;
    return poll(&end, 1, test::kPatienceMs) == 1 && read(bell_, &byte, 1) == 1;
  }
  // False: it had ended by itself.
  bool kill() {
    if (pid_ <= 0) return false;
    ::kill(pid_, SIGKILL);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = -1;
  int bell_ = -1;
};

}  // namespace

TEST_CASE(kPushes* doctest::skip()) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* job = std::getenv(kGivenToHelper);
  if (job == nullptr) return;  // called by hand
  JobConfig config;
  config.job = job;
  GpuMember member(on_tables(), config, {kSize});
  member.set_gradients(1.0F);
  for (bool is_first = true;; is_first = false) {
    member.link->start_push();
    if (is_first) REQUIRE(write(kBell, "", 1) == 1);
    member.link->finish_push();
    member.worker.step();
  }
}

TEST_CASE("gpu deaths: a worker that is killed while its gradient is transferred tears nothing and blocks nobody") {
  std::mt19937_64 random(test::stress_seed());
  const std::uint64_t rounds = test::stress_rounds(3);
  struct Kind {
    Mode mode;
    Layout layout;
  };
  for (const Kind& kind : std::vector<Kind>{
           {Mode::kAsync, Layout::kVersioned}, {Mode::kAsync, Layout::kInplace}, {Mode::kSync, Layout::kVersioned}}) {
    INFO("mode " << std::string(to_string(kind.mode)) << " layout " << std::string(to_string(kind.layout)));
    const JobConfig config = test::adding_job(kind.layout, 1, kind.mode);
    Server server(config);
    GpuMember member(on_tables(), config, {kSize});
    member.set_gradients(1.0F);
    test::Whole whole(config, kSize);
    int pushed = 0;
    const auto take_steps = [&](int steps) {
      for (int k = 0; k < steps; ++k) {
        static_cast<void>(member.pull());
        whole.look(member.parameters(0));
        member.push();
        member.worker.step();
        ++pushed;
      }
    };
    for (std::uint64_t round = 0; round < rounds; ++round) {
      HelperProcess helper(kPushes, config.job);
      // In sync mode it takes part in the steps once it has arrived: others wait for it from then on.
      std::atomic<bool> is_over{false};
      std::thread killer([&] {
        const bool has_begun = helper.rings();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));  // no result depends on the moment
        CHECK(helper.kill());
        CHECK(has_begun);
        is_over = true;
      });
      while (!is_over) take_steps(1);
      killer.join();
      take_steps(5);
    }
    static_cast<void>(member.pull());
    whole.look(member.parameters(0));
    CHECK(whole.faults() == 0);
    const std::vector<float> values = member.parameters(0);
    CHECK(values == member.pulled_by_processor(0));
    std::size_t lost = 0;
    for (std::size_t k = 0; k < values.size(); ++k) lost += test::growth(values, k, 0) < float(pushed);
    CHECK(lost == 0);
    CHECK(member.warnings.empty());
    // A process that takes the dead one's rank recovers what it had in flight, and works.
    WorkerOptions options = test::options(config, {}, config.threads);
    options.rank = 1;
    Worker successor(options);
    const Variable variable = successor.variable("v1");
    if (kind.mode != Mode::kSync) successor.push(variable, std::vector<float>(kSize, 1.0F));
    successor.leave();
    take_steps(1);
    static_cast<void>(member.pull());
    whole.look(member.parameters(0));
    CHECK(whole.faults() == 0);
  }
}

// A graph that is launched again behind a closed gate, as that of a step is, with the destination in shared memory.
TEST_CASE(kWaitsAtGate* doctest::skip()) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* path = std::getenv(kGivenToHelper);
  if (path == nullptr) return;  // called by hand
  device::CudaCalls& cuda = test::cuda();
  const int file = open(path, O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  void* const shared = mmap(nullptr, kSentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(shared != MAP_FAILED);
  void* to = nullptr;
  REQUIRE(cuda.host_register(shared, kSentBytes, device::kRegisterPortable | device::kRegisterMapped) ==
          device::kSuccess);
  REQUIRE(cuda.device_address(shared, to) == device::kSuccess);
  test::Bench bench;
  const device::DeviceMemory<float> gradient(cuda, kSent);
  const auto fill = [&](float value) {
    bench.run(test::model_kernels().fill(gradient.on_device(), value, kSent, bench.stream()));
  };
  fill(1.0F);
  const auto pieces = test::pinned(std::vector<kernels::SentPiece>{
      {.from = gradient.on_device(), .to = to, .count = std::uint32_t(kSent), .pad = 0}});
  const auto arrived = test::pinned(std::vector<std::uint32_t>(1, 0));
  device::PinnedMemory<shm::AtomicShm<std::uint32_t>> gate(cuda, 1);
  gate.on_host()->store_release(kernels::kGateOpen);
  REQUIRE(test::kernels().load() == device::kSuccess);
  REQUIRE(cuda.begin_capture(bench.stream()) == device::kSuccess);
  CHECK(cuda.wait_value(bench.stream(), gate.on_device(), kernels::kGateOpen) == device::kSuccess);
  CHECK(test::kernels().send_pieces(pieces.on_device(), 1, arrived.on_device(), false,
                                    reinterpret_cast<const std::uint32_t*>(gate.on_device()), kernels::kSenders,
                                    bench.stream()) == device::kSuccess);
  device::Graph graph{};
  std::size_t operations = 0;
  REQUIRE(cuda.end_capture(bench.stream(), graph, operations) == device::kSuccess);
  bench.run(cuda.launch(graph, bench.stream()));
  fill(2.0F);
  gate.on_host()->store_release(kernels::kGateClosed);
  REQUIRE(cuda.launch(graph, bench.stream()) == device::kSuccess);
  REQUIRE(write(kBell, "", 1) == 1);
  for (;;) pause();
}

TEST_CASE("gpu deaths: what waits at the gate of a worker that is killed is not sent") {
  if (!test::cuda().can_wait_value()) {
    MESSAGE("this driver has no waits");
    return;
  }
  const int file = memfd_create("sent", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, kSentBytes) == 0);
  for (std::uint64_t round = 0; round < test::stress_rounds(3); ++round) {
    HelperProcess helper(kWaitsAtGate, fmt::format("/proc/{}/fd/{}", getpid(), file));
    CHECK(helper.rings());
    CHECK(helper.kill());  // its context is gone when it has been waited for
    std::vector<float> sent(kSent);
    REQUIRE(pread(file, sent.data(), kSentBytes, 0) == ssize_t(kSentBytes));
    CHECK(std::count(sent.begin(), sent.end(), 1.0F) == std::ptrdiff_t(kSent));
  }
  close(file);
}

TEST_CASE("gpu deaths: shards larger than a region are registered in several, and variables lie in each") {
  constexpr std::uint64_t kFiller = device::kRegionBytes / sizeof(float);
  struct statvfs tmpfs = {};
  REQUIRE(statvfs("/dev/shm", &tmpfs) == 0);
  const double gib = double(tmpfs.f_bavail) * double(tmpfs.f_frsize) / double(1 << 30);
  if (gib < 3) {
    MESSAGE("skipped: 3 GiB of /dev/shm are needed, " << gib << " are free");
    return;
  }
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    INFO("layout " << std::string(to_string(layout)));
    const JobConfig config = test::adding_job(layout, 2);
    Server server(config);
    Worker other(test::options(config, {}, config.threads));
    const std::vector<std::uint64_t> sizes{5003, 70001, 700001};
    GpuMember before(on_tables(), config, sizes);  // in the first region
    const VariableSpec filler{.name = "filler", .shape = {kFiller}};
    static_cast<void>(other.variable(filler, [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); }));
    const VariableSpec behind{.name = "behind", .shape = {70001}};
    const Variable last = other.variable(behind, [](std::span<float> out) { std::fill(out.begin(), out.end(), 2.0F); });
    GpuMember member(on_tables(), config, sizes);
    device::DeviceMemory<float> parameters(test::cuda(), 70001), gradient(test::cuda(), 70001);
    test::Bench bench;
    bench.run(test::model_kernels().fill(gradient.on_device(), 3.0F, 70001, bench.stream()));
    float* to = parameters.on_device();
    const float* from = gradient.on_device();
    const auto link = device::make_gpu_link(other, std::span(&last, 1), std::span(&to, 1), std::span(&from, 1), {},
                                            test::cuda(), test::kernels());
    CHECK(link->transfers().registered_bytes > device::kRegionBytes);
    CHECK(link->transfers().registrations >= 2);
    for (int round = 0; round < 3; ++round) {
      link->start_pull();
      static_cast<void>(link->finish_pull());
      const std::vector<float> got = bench.get(parameters);
      CHECK(std::count(got.begin(), got.end(), 2.0F + 3.0F * float(round)) == 70001);
      link->start_push();
      link->finish_push();
      for (GpuMember* one : {&before, &member}) {
        one->set_gradients(1.0F);
        one->push();
        static_cast<void>(one->pull());  // also for one that was registered before the shard grew
        for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(one->parameters(i) == one->pulled_by_processor(i));
      }
    }
  }
}
