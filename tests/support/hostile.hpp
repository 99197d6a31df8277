// Jobs with damaged segments: modifies files in /dev/shm and attaches to them in every possible way, with a bound on
// all waits.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/worker.hpp"
#include "shm/publication/publication.hpp"
#include "support/manual_clock.hpp"

namespace ps_shm::test {

using Bytes = std::vector<unsigned char>;

// A file of /dev/shm, by the segment's name.
class SegmentFile {
 public:
  explicit SegmentFile(const std::string& name, int flags = O_RDWR)
      : descriptor_(::open(("/dev/shm/" + name).c_str(), flags | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0) throw std::runtime_error("cannot open /dev/shm/" + name);
  }
  ~SegmentFile() { ::close(descriptor_); }
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  Bytes read() const {
    struct stat status;
    if (fstat(descriptor_, &status) != 0) throw std::runtime_error("fstat");
    Bytes bytes(static_cast<std::size_t>(status.st_size));
    if (pread(descriptor_, bytes.data(), bytes.size(), 0) != status.st_size) throw std::runtime_error("pread");
    return bytes;
  }
  void write(std::size_t offset, const void* data, std::size_t count) const {
    if (pwrite(descriptor_, data, count, static_cast<off_t>(offset)) != static_cast<ssize_t>(count))
      throw std::runtime_error("pwrite");
  }
  void cut(std::size_t bytes) const {
    if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("ftruncate");
  }
  void replace(const Bytes& bytes) const {
    cut(bytes.size());
    write(0, bytes.data(), bytes.size());
  }

 private:
  int descriptor_;
};

// Everything that the inspector reads of a job.
inline void inspect_all(const std::string& job) {
  const JobView view(job);
  static_cast<void>(view.info());
  static_cast<void>(view.workers());
  static_cast<void>(view.events());
  static_cast<void>(view.staleness());
  for (const VariableInfo& variable : view.variables())
    if (variable.initialised) static_cast<void>(view.values(variable.name));
  for (const TableInfo& table : view.tables())
    for (const std::uint64_t most : {0U, 10U}) {
      static_cast<void>(view.count_rows(table.spec.name, most));
      static_cast<void>(view.table_rows(table.spec.name, most));
    }
  static_cast<void>(view.digest());
}

// Everything that a worker does with a table, which evicts rows.
inline void use_table(Worker& worker, const TableSpec& spec) {
  Table table = worker.table(spec);
  std::vector<std::uint64_t> keys(2 * spec.max_rows);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<float> rows(keys.size() * spec.row_size);
  table.pull(keys, rows);
  table.push(keys, rows);
  table.evict(std::span(keys).first(keys.size() / 4));
  table.expire();
  static_cast<void>(table.dump(0, [](const TableRow&) {}));
}

// The life of one worker: joins, declares, pulls, pushes, steps, leaves. Its waits end after ten seconds, which a
// manual clock skips.
inline void train_once(const std::string& job, const std::vector<VariableSpec>& specs,
                       const std::vector<TableSpec>& tables = {}) {
  const ManualClock clock(ManualClock::Sleeps::kPass);
  WorkerOptions options;
  options.job = job;
  options.wait_job = Seconds(1);
  options.stop_requested = [&clock] { return clock.passed_ns() >= 10 * kSecond; };
  options.log = [](const std::string&) {};
  Worker worker(options);
  const std::vector<Variable> variables =
      worker.variables(specs, [](std::size_t, std::span<float> out) { std::fill(out.begin(), out.end(), 1.0F); });
  for (const Variable& variable : variables) {
    std::vector<float> values(variable.element_count());
    worker.pull(variable, values);
    worker.push(variable, values);
  }
  for (const TableSpec& table : tables) use_table(worker, table);
  worker.step();
}

// Every operation on a publication without users: the inspector reads it, a subscriber reads, a publisher takes it
// over.
inline void use_publication(const BundleSpec& spec) {
  std::string refusal;
  const auto attempt = [&](auto&& body) {
    try {
      body();
    } catch (const Error& error) {
      refusal = error.what();
    }
  };
  std::size_t sum = 0;
  attempt([&] {
    shm::Segment segment;
    if (segment.open(shm::bundle_name(spec.name), shm::Access::kReadOnly, shm::kTrustAnybody) !=
        shm::AttachOutcome::kReady)
      throw Error("not ready");
    const shm::Bundle bundle(std::move(segment));
    for (std::uint32_t record = 0; record < bundle.records(); ++record) sum += look_at(bundle, record).has_value();
  });
  attempt([&] {
    Subscriber subscriber(spec.name, {.wait = Seconds(0.001)});
    const Generation generation = subscriber.read(0, Seconds(0));
    for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor)
      for (const std::byte byte : generation.tensor(tensor)) sum += std::size_t(byte);
    static_cast<void>(subscriber.try_read(generation.number()));
  });
  asm volatile("" : : "r"(sum));
  attempt([&] {
    Publisher publisher(spec, {.wait = Seconds(0.001)});
    const auto write = [](std::uint32_t, std::span<std::byte> out) { std::fill(out.begin(), out.end(), std::byte{1}); };
    const std::uint32_t first[] = {0};
    for (int i = 0; i < 4; ++i) static_cast<void>(i == 2 ? publisher.publish(first, write) : publisher.publish(write));
  });
  if (!refusal.empty()) throw Error(refusal);
}

// Runs cases 0 to count - 1 in forked children, `seconds` for each; returns the failures. A case fails by a signal, its
// own alarm, or an exception that is not an Error.
class Cases {
 public:
  template <class Run>
  Cases(std::size_t count, unsigned seconds, Run&& run) {
    void* shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::bad_alloc();
    auto& progress = *new (shared) Progress{};
    while (progress.next < count && wrong.size() < kMaxWrong) {
      const pid_t child = fork();
      if (child == 0) _exit(run_from(progress, count, seconds, run));
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
      wrong.push_back({progress.next, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : progress.reason});
      ++progress.next;
    }
    worked = progress.worked;
    refused = progress.refused;
    munmap(shared, sizeof(Progress));
  }

  struct Wrong {
    std::size_t number;
    std::string reason;
  };
  std::vector<Wrong> wrong;
  std::size_t worked = 0, refused = 0;

 private:
  static constexpr std::size_t kMaxWrong = 20;
  struct Progress {
    std::atomic<std::size_t> next{0}, worked{0}, refused{0};
    char reason[256] = {};
  };

  template <class Run>
  static int run_from(Progress& progress, std::size_t count, unsigned seconds, Run& run) {
    for (; progress.next < count; ++progress.next) {
      alarm(seconds);
      try {
        run(progress.next);
        ++progress.worked;
      } catch (const Error&) {
        ++progress.refused;
      } catch (const std::exception& error) {
        std::snprintf(progress.reason, sizeof progress.reason, "%s", error.what());
        return 1;
      }
    }
    return 0;
  }
};

}  // namespace ps_shm::test
