// Rows of a table in shared memory, pulled to the GPU and pushed from there by GpuRows; beside them what a program
// without it does (the processor gathers, the copy engine copies) and the limit, a bare copy of as many bytes. In
// turns.
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "device/gpu_rows.hpp"
#include "on_gpu.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"

namespace ps_shm::bench {
namespace {

constexpr double kExponent = 0.99;   // of Zipf's law, as in YCSB
constexpr std::size_t kBatches = 4;  // that take turns, so that no cache holds a batch's rows

struct RowsCase {
  std::uint64_t elements, rows;
  bool is_skewed;
  std::size_t batch;
};

// Zipf's law by the inverse of its continuous form; frequent rows are spread over the table.
std::vector<std::uint64_t> draw_ids(const RowsCase& of, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<std::uint64_t> ids(of.batch);
  const double reach = std::pow(double(of.rows), 1 - kExponent) - 1;
  for (std::uint64_t& id : ids) {
    const double u = uniform(generator);
    const double rank = of.is_skewed ? std::pow(reach * u + 1, 1 / (1 - kExponent)) - 1 : u * double(of.rows);
    id = static_cast<std::uint64_t>(rank) * 2654435761 % of.rows;
  }
  return ids;
}

// A job with one table, and a worker.
class TableJob {
 public:
  TableJob(std::uint64_t rows, std::uint64_t elements, const std::string& job, std::uint32_t threads)
      : server_(config_of(job, threads)), worker(options_of(job, threads)), variable(declare(worker, rows, elements)) {
    rows_on_gpu = device::make_gpu_rows(
        worker, variable, {.warn = [this](const std::string& line) { warnings.push_back(line); }}, cuda(), kernels());
  }

 private:
  static JobConfig config_of(const std::string& job, std::uint32_t threads) {
    JobConfig config;
    config.job = job;
    config.layout = Layout::kInplace;
    config.threads = threads;
    config.optimizer.lr = 1e-6F;
    return config;
  }
  static WorkerOptions options_of(const std::string& job, std::uint32_t threads) {
    WorkerOptions options;
    options.job = job;
    options.threads = threads;
    options.log = [](const std::string&) {};
    return options;
  }
  static Variable declare(Worker& worker, std::uint64_t rows, std::uint64_t elements) {
    return worker.variable({.name = "table", .shape = {rows, elements}}, [](std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i % 1009);
    });
  }

  Server server_;

 public:
  Worker worker;
  Variable variable;
  std::vector<std::string> warnings;
  std::unique_ptr<GpuRows> rows_on_gpu;
};

// One batch size of one kind of ids.
class Batches {
 public:
  Batches(TableJob& job, const RowsCase& of)
      : job_(job), of_(of), host_(cuda(), of.batch * of.elements), on_gpu_(cuda(), host_.count()) {
    std::fill(host_.host().begin(), host_.host().end(), 1e-3F);
    for (std::size_t k = 0; k < kBatches; ++k) {
      ids_.push_back(draw_ids(of, k + 1));
      ids_on_gpu_.emplace_back(cuda(), of.batch);
      copy(ids_on_gpu_[k].on_device(), ids_[k].data(), ids_on_gpu_[k].bytes());
    }
  }

  void pull() { job_.rows_on_gpu->pull(next_on_gpu(), std::span(on_gpu_.on_device(), on_gpu_.count())); }
  void pull_by_processor() {
    job_.worker.pull_rows(job_.variable, next(), host_.host());
    to_gpu();
  }
  void to_gpu() { copy(on_gpu_.on_device(), host_.on_host(), host_.bytes()); }
  void push() { job_.rows_on_gpu->push(next_on_gpu(), std::span<const float>(on_gpu_.on_device(), on_gpu_.count())); }
  void push_by_processor() {
    copy(host_.on_host(), on_gpu_.on_device(), host_.bytes());
    job_.worker.push_rows(job_.variable, next(), host_.host());
  }

  // Whether a pull brings the processor's bits.
  bool is_right() {
    std::vector<float> expected(host_.count());
    job_.worker.pull_rows(job_.variable, std::span<const std::uint64_t>(ids_[turn_ % kBatches]), expected);
    pull();
    copy(host_.on_host(), on_gpu_.on_device(), host_.bytes());
    return std::equal(expected.begin(), expected.end(), host_.on_host());
  }
  double distinct_share() const {
    return double(std::set<std::uint64_t>(ids_[0].begin(), ids_[0].end()).size()) / double(of_.batch);
  }

 private:
  std::span<const std::uint64_t> next() { return ids_[turn_++ % kBatches]; }
  std::span<const std::uint64_t> next_on_gpu() { return {ids_on_gpu_[turn_++ % kBatches].on_device(), of_.batch}; }
  void copy(void* to, const void* from, std::size_t bytes) {
    check(cuda().copy(to, from, bytes, stream_.get()), "copy");
    check(cuda().synchronize(stream_.get()), "copy");
  }

  TableJob& job_;
  const RowsCase of_;
  device::OwnStream stream_{cuda()};
  device::PinnedMemory<float> host_;
  device::DeviceMemory<float> on_gpu_;
  std::vector<std::vector<std::uint64_t>> ids_;
  std::vector<device::DeviceMemory<std::uint64_t>> ids_on_gpu_;
  std::size_t turn_ = 0;
};

struct RowsWay {
  const char* name;
  void (Batches::*run)();
};
constexpr RowsWay kRowsWays[] = {{"pull", &Batches::pull},
                                 {"processor_gathers_then_copy", &Batches::pull_by_processor},
                                 {"bare_copy", &Batches::to_gpu},
                                 {"push", &Batches::push},
                                 {"copy_then_processor_pushes", &Batches::push_by_processor}};

Json measure(TableJob& job, const RowsCase& of, const SectionOptions& options) {
  Batches batches(job, of);
  Json found = {{"elements", of.elements},
                {"rows", of.rows},
                {"ids", of.is_skewed ? "zipf" : "uniform"},
                {"batch", of.batch},
                {"distinct_share", batches.distinct_share()},
                {"is_right", batches.is_right()}};
  std::vector<std::function<double()>> turns;
  for (const RowsWay& way : kRowsWays)
    turns.emplace_back([&batches, &way] { return seconds_of([&] { (batches.*way.run)(); }); });
  const std::vector<Times> times = take_turns(options.quick ? 3 : 50, options.quick ? 0.2 : 0.6, turns);
  for (std::size_t i = 0; i < times.size(); ++i) {
    found[kRowsWays[i].name] = rate(times[i], of.batch * of.elements * sizeof(float));
    found[kRowsWays[i].name]["rows/s"] = double(of.batch) / times[i].median;
  }
  return found;
}

}  // namespace

Json rows(const SectionOptions& options) {
  struct statvfs tmpfs = {};
  const double free = statvfs("/dev/shm", &tmpfs) == 0 ? double(tmpfs.f_bavail) * double(tmpfs.f_frsize) : 0;
  const double wanted =
      options.table_mib != 0 ? double(options.table_mib) * 0x1p20 : std::min(free / 4, options.quick ? 0x1p24 : 0x1p31);
  if (wanted > 0.9 * free || wanted < 0x1p20)
    throw std::runtime_error(fmt::format("/dev/shm has {:.0f} MiB left, a table of {:.0f} MiB does not fit",
                                         free * 0x1p-20, wanted * 0x1p-20));
  const std::uint32_t threads = std::clamp(std::thread::hardware_concurrency() / 2, 1U, 8U);
  begin_gpu();
  std::size_t of_gpu = 0, free_of_gpu = 0;
  check(cuda().memory_info(free_of_gpu, of_gpu), "say how much memory it has");
  Json found = {{"table_bytes", static_cast<std::uint64_t>(wanted)},
                {"gpu_memory_bytes", of_gpu},
                {"zipf_exponent", kExponent},
                {"threads", threads},
                {"strategy", ""},
                {"warnings", Json::array()},
                {"cases", Json::array()}};
  for (const std::uint64_t elements : {16, 64, 128}) {
    const auto count = static_cast<std::uint64_t>(wanted) / (elements * sizeof(float));
    TableJob job(count, elements, fmt::format("{}-rows-{}", options.job_prefix, elements), threads);
    for (const std::string& line : job.warnings) found["warnings"].push_back(line);
    found["strategy"] = job.rows_on_gpu->transfers().strategy;
    for (const bool is_skewed : {false, true})
      for (const std::size_t batch :
           options.quick ? std::vector<std::size_t>{4096} : std::vector<std::size_t>{4096, 32768, 262144}) {
        found["cases"].push_back(measure(job, {elements, count, is_skewed, batch}, options));
        options.so_far(found);
      }
  }
  return found;
}

}  // namespace ps_shm::bench
