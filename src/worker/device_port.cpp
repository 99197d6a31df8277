#include "worker/device_port.hpp"

#include <algorithm>

#include "config/modes.hpp"
#include "worker/gradients.hpp"
#include "worker/impl.hpp"
#include "worker/table_state.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

using shm::Counter;

shm::JobSegments& DevicePort::job() const noexcept { return worker_.job; }
const JobConfig& DevicePort::config() const noexcept { return worker_.config; }
std::uint32_t DevicePort::rank() const noexcept { return worker_.rank; }
Threads& DevicePort::threads() const noexcept { return worker_.threads; }
void DevicePort::log(const std::string& line) const { Wait::log(worker_.options, line); }
bool DevicePort::is_stop_requested() const {
  return worker_.options.stop_requested && worker_.options.stop_requested();
}
void DevicePort::mark_gpu_wait(bool is_waiting) const noexcept {
  const auto what = is_waiting ? shm::WaitingFor::kGpu : shm::WaitingFor::kNothing;
  worker_.entry.waiting_for.store_release(static_cast<std::uint32_t>(what));  // (waiting.W3)
}
const LiveSettings& DevicePort::live() const noexcept { return worker_.live.settings; }
void DevicePort::refresh_optimizer() const noexcept {
  if (traits_of(worker_.config.mode).steps_together()) return;
  const LiveSettings now = shm::read_live(worker_.job).settings;
  LiveSettings& live = worker_.live.settings;
  live.lr = now.lr;
  live.clip_norm = now.clip_norm;
  live.momentum = now.momentum;
  live.beta1 = now.beta1;
  worker_.note_limits();
}
float DevicePort::lr() const noexcept { return worker_.rate_at(worker_.job.steps_done()); }
std::weak_ptr<device::ShardMemory>& DevicePort::shards() const noexcept { return worker_.gpu_shards; }

TableState& DevicePort::table(const std::string& name) const noexcept {
  return **std::find_if(worker_.tables.begin(), worker_.tables.end(),
                        [&](const auto& known) { return known->spec.name == name; });
}

void DevicePort::refuse_recorded() const { worker_.refuse_recorded("a GPU link"); }

bool DevicePort::has_link() const noexcept { return worker_.has_gpu_link; }
void DevicePort::set_link(bool has_link) const noexcept { worker_.has_gpu_link = has_link; }
bool DevicePort::has_closed_gate() const noexcept { return worker_.has_closed_gate; }
void DevicePort::set_closed_gate(bool is_closed) const noexcept { worker_.has_closed_gate = is_closed; }

void DevicePort::note_pull() const noexcept { worker_.note_pull(); }
void DevicePort::count_pulls(std::uint64_t variables) const noexcept {
  worker_.count(Counter::kPulls).bump_relaxed(variables);
}
void DevicePort::count_pull_retries(std::uint64_t retries) const noexcept {
  if (retries != 0) worker_.count(Counter::kPullRetries).bump_relaxed(retries);
}

void DevicePort::check_push() const { worker_.mode->check_push(); }
void DevicePort::push(std::span<const Variable> variables, std::span<const GradientInput> gradients) const {
  worker_.push(variables, gradients);
}

const shm::Segment* DevicePort::landing() const noexcept {
  const GradientSegments* const landing = worker_.mode->landing();
  return landing == nullptr ? nullptr : &landing->own();
}
std::span<float> DevicePort::landing_place(const shm::VariableShm& record) const {
  return worker_.mode->landing()->place(record);
}

}  // namespace ps_shm
