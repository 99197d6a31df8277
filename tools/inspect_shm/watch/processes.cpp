#include "inspect_shm/watch/processes.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/process_state.hpp"

namespace ps_shm::watch {
namespace {

namespace fs = std::filesystem;

// Determined from its open device files.
std::string device_of(std::uint32_t pid) {
  std::set<std::string> gpus;
  std::error_code hidden;
  const fs::directory_iterator end;
  for (fs::directory_iterator file(fmt::format("/proc/{}/fd", pid), hidden); file != end; file.increment(hidden)) {
    constexpr std::string_view kGpu = "/dev/nvidia";
    const std::string target = fs::read_symlink(*file, hidden).string();
    if (target.starts_with(kGpu) && target.find_first_not_of("0123456789", kGpu.size()) == std::string::npos)
      gpus.insert(target.substr(kGpu.size()));
  }
  return gpus.empty() ? "cpu" : fmt::format("gpu {}", fmt::join(gpus, ","));
}

std::string pid_namespace_of(const std::string& process) {
  std::error_code hidden;
  return fs::read_symlink("/proc/" + process + "/ns/pid", hidden).string();
}

}  // namespace

ProcessFacts Processes::facts_of(const Probe& probe, const RankLook& worker) {
  Holder& holder = holders_[worker.rank];
  if (holder.holders != worker.holders) {
    holder = {.holders = worker.holders, .is_known = probe.holder(worker.rank) == worker.pid, .device = {}};
  }
  if (holder.is_known && holder.until_device-- == 0) {
    constexpr int kLooks = 20;
    holder.until_device = kLooks;
    holder.device = device_of(worker.pid);
  }
  ProcessFacts facts;
  if (!holder.is_known) return facts;
  facts.is_known = shm::process_state(worker.pid) != '\0';
  facts.is_stopped = shm::is_stopped(worker.pid);
  facts.device = holder.device;
  return facts;
}

WorkerProcess::WorkerProcess(const Probe& probe, std::uint32_t rank) : probe_(probe), rank_(rank) {
  const std::vector<RankLook> ranks = probe.ranks();
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankLook& look) { return look.rank == rank; });
  if (found == ranks.end() || found->state != WorkerState::kAlive) throw Error(fmt::format("worker {} is gone", rank));
  pid_ = found->pid, holders_ = found->holders;
  descriptor_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (descriptor_ < 0)
    throw Error(fmt::format("worker {}: there is no process {} here ({}); end it where it runs, perhaps in a container",
                            rank, pid_, std::strerror(errno)),
                config::code_of(errno));
  try {
    check();
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

WorkerProcess::~WorkerProcess() { close(descriptor_); }

void WorkerProcess::check() const {
  const std::vector<RankLook> ranks = probe_.ranks();
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankLook& look) { return look.rank == rank_; });
  if (found == ranks.end() || found->state != WorkerState::kAlive || found->holders != holders_ || found->pid != pid_)
    throw Error(fmt::format("worker {} (process {}) is gone", rank_, pid_));
  const std::optional<std::uint32_t> holder = probe_.holder(rank_);
  if (!holder)
    throw Error(fmt::format(
        "worker {}: /proc shows no process here that holds its lock: it belongs to another user or another PID "
        "namespace; end it there",
        rank_));
  if (*holder != pid_ || pid_namespace_of("self") != pid_namespace_of(fmt::to_string(pid_)))
    throw Error(fmt::format("worker {} is process {} of another PID namespace; end it in its container", rank_, pid_));
}

void WorkerProcess::send(int signal) const {
  check();
  if (syscall(SYS_pidfd_send_signal, descriptor_, signal, nullptr, 0) != 0)
    throw Error(fmt::format("worker {} (process {}): {}", rank_, pid_, std::strerror(errno)), config::code_of(errno));
}

}  // namespace ps_shm::watch
