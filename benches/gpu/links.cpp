// Pulls and pushes of GpuLink beside bare copies of as many bytes between page-locked memory and the GPU, in turns.
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <memory>
#include <string>
#include <thread>

#include "device/gpu_link.hpp"
#include "on_gpu.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"

namespace ps_shm::bench {
namespace {

struct Case {
  Mode mode;
  std::size_t bytes;
  std::uint64_t chunk_bytes;
  std::uint32_t threads;
  Wire wire = Wire::kFloat32;  // of pushes
};

// The limit: one copy each way, of memory that CUDA has page-locked itself.
class BareCopies {
 public:
  explicit BareCopies(std::size_t bytes) : host_(cuda(), bytes), on_gpu_(cuda(), bytes) {}
  void pull() { copy(on_gpu_.on_device(), host_.on_host()); }
  void push() { copy(host_.on_host(), on_gpu_.on_device()); }

 private:
  void copy(void* to, const void* from) {
    check(cuda().copy(to, from, host_.bytes(), stream_.get()), "copy");
    check(cuda().synchronize(stream_.get()), "copy");
  }
  device::OwnStream stream_{cuda()};
  device::PinnedMemory<std::byte> host_;
  device::DeviceMemory<std::byte> on_gpu_;
};

// A job with one variable and one worker.
class LinkedJob {
 public:
  LinkedJob(const Case& of, const std::string& job)
      : server_(config_of(of, job)),
        worker_(options_of(of, job)),
        variable_(declare(worker_, of)),
        parameters_(cuda(), of.bytes / sizeof(float)),
        gradient_(cuda(), of.bytes / sizeof(float)) {
    float* to = parameters_.on_device();
    const float* from = gradient_.on_device();
    link_ = device::make_gpu_link(
        worker_, std::span(&variable_, 1), std::span(&to, 1), std::span(&from, 1),
        {.wire = of.wire, .warn = [this](const std::string& line) { warnings_.push_back(line); }},
        cuda(), kernels());
    check(model_kernels().fill(gradient_.on_device(), 1e-3F, gradient_.count(), stream()), "fill memory");
    check(cuda().synchronize(stream()), "fill memory");
  }

  void pull() {
    link_->start_pull();
    static_cast<void>(link_->finish_pull());
    check(cuda().synchronize(stream()), "pull");
  }
  void push() {
    link_->start_push();
    link_->finish_push();
  }
  void step() { worker_.step(); }
  Json as_json() const {
    return {{"strategy", link_->transfers().strategy},
            {"registration_s", link_->transfers().registration_seconds},
            {"warnings", warnings_}};
  }

 private:
  static JobConfig config_of(const Case& of, const std::string& job) {
    JobConfig config;
    config.job = job;
    config.workers = 1;
    config.mode = of.mode;
    config.chunk_bytes = of.chunk_bytes;
    config.threads = of.threads;
    config.optimizer.lr = 0.1F;
    return config;
  }
  static WorkerOptions options_of(const Case& of, const std::string& job) {
    WorkerOptions options;
    options.job = job;
    options.threads = of.threads;
    options.log = [](const std::string&) {};
    return options;
  }
  static Variable declare(Worker& worker, const Case& of) {
    const VariableSpec spec{.name = "v", .shape = {of.bytes / sizeof(float)}};
    return worker.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 1.0F); });
  }
  device::Stream stream() const { return static_cast<device::Stream>(link_->stream()); }

  Server server_;
  Worker worker_;
  Variable variable_;
  device::DeviceMemory<float> parameters_, gradient_;
  std::vector<std::string> warnings_;
  std::unique_ptr<GpuLink> link_;
};

Json measure(const Case& of, const std::string& name, const SectionOptions& options) {
  BareCopies bare(of.bytes);
  LinkedJob linked(of, name);
  double push_seconds = 0;
  const std::vector<std::function<double()>> turns{
      [&] { return seconds_of([&] { bare.pull(); }); },
      [&] { return seconds_of([&] { linked.pull(); }); },
      [&] { return seconds_of([&] { bare.push(); }); },
      [&] { return push_seconds = seconds_of([&] { linked.push(); }); },
      [&] { return seconds_of([&] { linked.step(); }); },
  };
  // A step's parts come in their order; so the turns do not change places here.
  std::vector<std::vector<double>> taken(turns.size());
  const double until = now_seconds() + (options.quick ? 0.3 : 0.7);
  const int rounds = options.quick ? 5 : 200;
  for (int round = 0; round <= rounds && (round <= 3 || now_seconds() < until); ++round)
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const double took = turns[i]();
      if (round > 0) taken[i].push_back(took);
    }
  const auto with_limit = [&](std::size_t ours, std::size_t limit) {
    Json found = rate(times_of(taken[ours]), of.bytes);
    found["limit"] = rate(times_of(taken[limit]), of.bytes);
    found["of_limit"] = times_of(taken[limit]).median / times_of(taken[ours]).median;
    return found;
  };
  Json found = {{"mode", to_string(of.mode)},
                {"bytes", of.bytes},
                {"chunk_bytes", of.chunk_bytes},
                {"threads", of.threads},
                {"wire", to_string(of.wire)},
                {"rounds", taken[0].size()},
                {"pull", with_limit(1, 0)},
                {"push", with_limit(3, 2)},
                {"step_us", microseconds(times_of(taken[4]))}};
  found.update(linked.as_json());
  return found;
}

}  // namespace

Json links(const SectionOptions& options) {
  constexpr std::uint64_t kForGpu = 256 << 10;  // chunks by `--chunk-bytes gpu`
  struct statvfs tmpfs = {};
  const double free = statvfs("/dev/shm", &tmpfs) == 0 ? double(tmpfs.f_bavail) * double(tmpfs.f_frsize) : 0;
  const std::uint32_t many = std::clamp(std::thread::hardware_concurrency() / 2, 1U, 8U);
  begin_gpu();
  Json all = Json::array();
  int number = 0;
  for (const std::size_t mib : options.quick ? std::vector<std::size_t>{1, 16} : std::vector<std::size_t>{1, 16, 256})
    for (const Mode mode : {Mode::kAsync, Mode::kSync})
      for (const std::uint64_t chunk : {std::uint64_t{32} << 10, kForGpu, std::uint64_t{1} << 20})
        for (const std::uint32_t threads : {1U, many}) {
          Case one{mode, mib << 20, chunk, threads};
          if (threads == many && many == 1 && !all.empty() && all.back()["threads"] == 1 &&
              all.back()["bytes"] == one.bytes && all.back()["chunk_bytes"] == chunk)
            continue;  // it is the same case
          if ((options.quick || chunk == kForGpu) && threads != many) continue;
          if (chunk == kForGpu && mib != 256) continue;  // smaller variables do not have them
          if (free < 4 * double(one.bytes)) {
            all.push_back({{"bytes", one.bytes}, {"skipped", "/dev/shm has too little space"}});
            continue;
          }
          const auto add = [&] {
            all.push_back(measure(one, fmt::format("{}-{}", options.job_prefix, number++), options));
            options.so_far({{"cases", all}});
          };
          add();
          if (mib == 1 || mode != Mode::kAsync || chunk != 32 << 10 || threads != many) continue;
          one.wire = Wire::kBFloat16;  // rates are of float32, so that they stand beside the others
          add();
        }
  return {{"cases", all}};
}

}  // namespace ps_shm::bench
