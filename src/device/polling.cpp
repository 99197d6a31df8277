#include "device/polling.hpp"

#include <fmt/format.h>

#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"

namespace ps_shm::device {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000, kReportNs = 10 * kSecond;

}  // namespace

GpuWatch::Turn::Turn(GpuWatch& watch) noexcept : watch_(watch), began_ns_(shm::now_ns()) {}

GpuWatch::Turn::~Turn() {
  if (has_mark_) watch_.worker_.mark_gpu_wait(false);
}

void GpuWatch::Turn::look(const std::function<std::string()>& what) {
  GpuWatch& watch = watch_;
  if (watch.cuda_.is_given_up()) throw Interrupted();
  const std::uint64_t now = shm::now_ns();
  if (now < began_ns_ + kReportNs) return;
  const std::unique_lock lock(watch.mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const DevicePort& worker = watch.worker_;
  if (now >= watch.next_line_ns_) {
    watch.next_line_ns_ = now + kReportNs;
    has_mark_ = true;
    worker.mark_gpu_wait(true);
    worker.log(fmt::format("worker {}: waiting for the GPU for {} s: {}{}{}", worker.rank(),
                           (now - began_ns_) / kSecond, what(), watch.context_ != nullptr ? ", in " : "",
                           watch.context_ != nullptr ? watch.context_ : ""));
  }
  if (now < watch.next_poll_ns_) return;
  watch.next_poll_ns_ = now + shm::kWaitSliceNs;
  if (!worker.is_stop_requested()) return;
  worker.log(
      fmt::format("worker {}: the GPU has not answered for {} s; what it has of this process is released when "
                  "the process ends",
                  worker.rank(), (now - began_ns_) / kSecond));
  watch.cuda_.give_up();
  throw Interrupted();
}

}  // namespace ps_shm::device
