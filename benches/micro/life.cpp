// life/...: microseconds that workers and jobs take to come and go, and to use a variable for the first time. The limits
// are the bare system calls and first touches that each cannot do without.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "../triad.hpp"
#include "cases.hpp"
#include "job.hpp"

namespace ps_shm::bench {
namespace {

double once_us(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// In a process of its own, over and over; the time of one. body() returns the microseconds that count.
double repeat_us(const std::function<std::function<double()>()>& make) {
  constexpr std::size_t kMax = 4096;
  const SharedBytes memory(kMax * sizeof(double));
  Span span;
  span.seconds = options().seconds;
  span.least = options().smoke ? 1 : 3;
  span.most = kMax - 1;
  const auto ran = run_processes(1, span, [&](int) {
    auto at = std::make_shared<std::size_t>(0);
    const auto rounds = [&, at, body = make()](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) memory.as<double>()[(*at)++] = body();
      return 0;
    };
    return Work{.prepare = [=] { rounds(1); }, .rounds = rounds};
  });
  const double* times = memory.as<double>();
  return median({times + 1, times + 1 + ran.front().rounds});
}

// A file of /dev/shm without a protocol.
class BareFile {
 public:
  explicit BareFile(std::size_t bytes) : bytes_(bytes) {
    descriptor_ = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor_ < 0 || posix_fallocate(descriptor_, 0, off_t(bytes)) != 0)
      throw std::runtime_error("no room in /dev/shm");
  }
  ~BareFile() { close(descriptor_); }
  BareFile(const BareFile&) = delete;
  BareFile& operator=(const BareFile&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  int descriptor_;
  std::size_t bytes_;
};

// The file opened, locked and mapped anew.
class BareMapping {
 public:
  explicit BareMapping(const BareFile& file)
      : bytes_(file.bytes()), descriptor_(open(file.path().c_str(), O_RDWR | O_CLOEXEC)) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_len = 1;
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (data_ == MAP_FAILED || fcntl(descriptor_, F_OFD_SETLK, &lock) != 0)
      throw std::runtime_error("cannot map and lock a file of /dev/shm");
    floats()[0] += 1;
  }
  ~BareMapping() {
    munmap(data_, bytes_);
    close(descriptor_);
  }
  BareMapping(const BareMapping&) = delete;
  BareMapping& operator=(const BareMapping&) = delete;

  float* floats() const noexcept { return static_cast<float*>(data_); }

 private:
  std::size_t bytes_;
  int descriptor_;
  void* data_;
};

// Bytes of a job's files as long as it has no variables.
struct FileSizes {
  std::size_t control, shard;
};
FileSizes sizes_of(const Job& job) {
  const JobInfo info = job.view().info();
  return {info.bytes.control, info.tasks.at(0).file_bytes};
}

Figures join_leave() {
  const Job job(counting_config(1));
  const double limit = repeat_us([sizes = sizes_of(job)] {
    auto control = std::make_shared<BareFile>(sizes.control), shard = std::make_shared<BareFile>(sizes.shard);
    return [=] { return once_us([&] { const BareMapping first(*control), second(*shard); }); };
  });
  const double us = repeat_us([&] {
    return [&] {
      return once_us([&] {
        Worker worker = job.join(0);
        worker.leave();
      });
    };
  });
  return time_with_limit("us", us, limit);
}

// Joins, declares a variable that is there, and pulls it for the first time; of that, declaring and pulling alone (joining
// has touched some of the pages). Limit: the bare files of join_leave, and memcpy out of a fresh mapping.
Figures attach(std::uint64_t floats) {
  const Job job(counting_config(1));
  job.join(1, floats);  // initialises it
  const double limit = repeat_us([&, sizes = sizes_of(job)] {
    auto control = std::make_shared<BareFile>(sizes.control), shard = std::make_shared<BareFile>(sizes.shard);
    auto out = std::make_shared<PrivateFloats>(floats);
    return [=] {
      std::optional<BareMapping> first, second;  // unmapped outside the time
      return once_us([&] {
        first.emplace(*control);
        second.emplace(*shard);
        std::memcpy(out->data(), second->floats(), floats * sizeof(float));
      });
    };
  });
  const SharedBytes pulling(sizeof(double));
  const double us = repeat_us([&] {
    auto out = std::make_shared<PrivateFloats>(floats);
    auto own = std::make_shared<std::vector<double>>();
    return [&, out, own] {
      std::optional<Worker> worker;  // leaves outside the time
      double declare_and_pull = 0;
      const double all = once_us([&] {
        worker.emplace(job.join(0));
        declare_and_pull = once_us([&] {
          const Variable variable = worker->variable(Job::spec(floats), [](std::span<float>) {});
          worker->pull(variable, {out->data(), out->size()});
        });
      });
      own->push_back(declare_and_pull);
      *pulling.as<double>() = median(*own);
      return all;
    };
  });
  Figures figures = time_with_limit("us", us, limit);
  figures.push_back({"declare_pull_us", *pulling.as<double>()});
  return figures;
}

// A job that a killed process has left is reclaimed by the next one of its name.
template <class Measure>
double without_leftovers(const JobConfig& config, Measure&& measure) {
  try {
    return measure();
  } catch (...) {
    const Server reclaims(config);
    throw;
  }
}

// From nothing to the first push. Limit: a new file, filled, and one addition to all of it.
Figures first_touch(std::uint64_t floats) {
  const double limit = repeat_us([=] {
    auto values = std::make_shared<PrivateFloats>(floats), gradient = std::make_shared<PrivateFloats>(floats, -1.0F);
    return [=] {
      std::optional<BareFile> file;  // ends outside the time
      std::optional<BareMapping> mapping;
      return once_us([&] {
        float* const data = mapping.emplace(file.emplace(floats * sizeof(float))).floats();
        std::memcpy(data, values->data(), floats * sizeof(float));
        triad(1, data, data, floats, gradient->data(), floats, -1.0F);
      });
    };
  });
  const JobConfig config = counting_config(1);
  const double us = without_leftovers(config, [&] {
    return repeat_us([&] {
      auto gradient = std::make_shared<PrivateFloats>(floats, -1.0F);
      return [&, gradient] {
        std::unique_ptr<Server> server;  // ends outside the time
        std::unique_ptr<Worker> worker;
        return once_us([&] {
          server = std::make_unique<Server>(config);
          WorkerOptions options;
          options.job = config.job;
          worker = std::make_unique<Worker>(std::move(options));
          const Variable variable = worker->variable(
              Job::spec(floats), [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
          worker->push(variable, {gradient->data(), gradient->size()});
        });
      };
    });
  });
  return time_with_limit("us", us, limit);
}

// Created and removed. Limit: two files of that size, mapped and touched.
Figures whole_job() {
  const FileSizes sizes = sizes_of(Job(counting_config(1)));
  const double limit = repeat_us([=] {
    return [=] {
      return once_us([=] {
        const BareFile control(sizes.control), shard(sizes.shard);
        const BareMapping first(control), second(shard);
      });
    };
  });
  const JobConfig config = counting_config(1);
  const double us = without_leftovers(
      config, [&] { return repeat_us([&] { return [&] { return once_us([&] { const Server server(config); }); }; }); });
  return time_with_limit("us", us, limit);
}

}  // namespace

void add_life_cases() {
  add_case("life/join_leave", join_leave);
  add_case("life/job", whole_job);
  for (const std::uint64_t said : {1'000, 1'000'000, 16'000'000}) {
    add_case(fmt::format("life/attach/floats:{}", said), [=] { return attach(floats_of(said)); });
    add_case(fmt::format("life/first_touch/floats:{}", said), [=] { return first_touch(floats_of(said)); });
  }
}

}  // namespace ps_shm::bench
