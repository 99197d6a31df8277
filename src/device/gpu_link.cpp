#include "device/gpu_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "device/gpu_pull.hpp"
#include "device/gpu_push.hpp"
#include "device/probe.hpp"
#include "shm/segment/events.hpp"

namespace ps_shm {

const char* to_string(Wire wire) noexcept {
  switch (wire) {
    case Wire::kFloat32:
      return "float32";
    case Wire::kBFloat16:
      return "bfloat16";
  }
  return "unknown";
}

GpuLink::Impl::Impl(Worker& given_worker, std::span<const Variable> given, std::span<float* const> given_parameters,
                    std::span<const float* const> given_gradients, const GpuOptions& given_options,
                    device::CudaCalls& given_cuda, device::TransferKernels& given_kernels)
    : worker(given_worker),
      cuda(given_cuda),
      watch(given_cuda, worker),
      kernels(given_kernels),
      options(given_options),
      variables(given.begin(), given.end()),
      parameters(given_parameters.begin(), given_parameters.end()),
      gradients(given_gradients.begin(), given_gradients.end()),
      gpu(device::require_gpu(given_cuda, given_options.device)),
      shared_shards(device::ShardMemory::of_worker(worker.shards(), given_cuda, worker.job(), given_options.device)),
      shards(*shared_shards) {
  worker.refuse_recorded();
  if (parameters.size() != variables.size() || gradients.size() != variables.size())
    throw Error(
        fmt::format("a GPU link of {} variables with {} buffers for parameters and {} for gradients: give one "
                    "for each variable",
                    variables.size(), parameters.size(), gradients.size()));
  for (const Variable& variable : variables) {
    VariableState* const state = states.emplace_back(&state_of(variable));
    state->require_floats("a GPU link");
    if (state->layout == Layout::kInplace && (state->is_hashed || !state->parts.front().inplace->is_plain()))
      throw Error(
          fmt::format("variable '{}' is in-place, and its elements are not contiguous ({}): a GPU pulls its "
                      "rows (GpuRows); or use layout versioned",
                      state->name,
                      state->is_hashed                  ? "partition-by hash"
                      : state->dtype != DType::kFloat32 ? to_string(state->dtype)
                                                        : to_string(state->settings.rule)));
  }
  if (worker.has_link())
    throw Error(fmt::format("worker {} already has a link to a GPU: one link serves all variables", worker.rank()),
                ErrorCode::kInvalidState);
  check(cuda.set_device(options.device), "be used");
  check(kernels.load(), "load its kernels");
  stream = std::make_unique<device::OwnStream>(cuda);
  gate = device::PinnedMemory<shm::AtomicShm<std::uint32_t>>(cuda, 1);
  gate.on_host()->store_relaxed(kernels::kGateOpen);
  pull = std::make_unique<Pull>(*this);
  push = std::make_unique<Push>(*this);
  plan();
  try_stream_wait();
  worker.set_link(true);
}

GpuLink::Impl::~Impl() {
  worker.set_link(false);
  static_cast<void>(cuda.set_device(options.device));
  open_gate(kernels::kGateCancelled);
  watch.settle(stream->get());  // so that nothing uses what is released next
}

bool GpuLink::Impl::is_for_copy_engine(const VariablePart& part) {
  const std::uint64_t floats = std::min(part.record.piece_elements, part.record.elements);
  return part.versioned && device::is_for_copy_engine(floats * sizeof(float) + sizeof(shm::BufferHeaderShm));
}

void GpuLink::Impl::warn(const std::string& line) const {
  if (options.warn) return options.warn(line);
  std::fprintf(stderr, "worker %u: %s\n", worker.rank(), line.c_str());
}

// The strategy follows from the machine's abilities. If registration fails, it is chosen again without it.
void GpuLink::Impl::plan() {
  ++plans;
  device::StrategyInput input;
  std::uint64_t elements = 0;
  for (const VariableState* state : states) {
    elements += state->elements;
    for (const VariablePart& part : state->parts)
      if (is_for_copy_engine(part)) input.large_chunk_bytes += part.record.elements * sizeof(float);
    input.has_additive_inplace |= state->adds_in_place();
  }
  input.pull_bytes = elements * sizeof(float);
  strategy = device::choose_strategy(gpu, input);
  if (strategy.push != device::PushPath::kThroughHost) {
    const auto say = [&](const std::string& line) { worker.log(fmt::format("worker {}: {}", worker.rank(), line)); };
    std::set<std::uint32_t> used;
    for (const VariableState* state : states)
      for (const VariablePart& part : state->parts) used.insert(part.record.shard);
    if (std::string why; !shards.try_register(used, strategy.read_only, is_sharing(), registered, why, say)) {
      input.is_registered = false;
      strategy = device::choose_strategy(gpu, input);
      warn(fmt::format("{}: {}", strategy.registration_reason, why));
      shm::record_event(
          worker.job(),
          {.kind = shm::EventKind::kUnregistered, .rank = worker.rank(), .step = worker.job().steps_done()});
    }
    device::note_refusal(registered.read_only_refusal, strategy);
  }
  pull->plan();
  push->plan();
  totals.registered_bytes = registered.bytes;
  totals.registrations = registered.calls;
  totals.registration_seconds = registered.seconds;
  totals.strategy = describe(strategy);
  totals.reasons = device::reasons_for_variables(strategy);
  totals.threads = worker.threads().count();
  shm::note_gpu(worker.job().worker(worker.rank()), device::note_of(gpu, strategy, shards.registered_bytes()));
}

// A driver may have the call and still refuse it. A wait that is already satisfied shows whether it does.
void GpuLink::Impl::try_stream_wait() {
  if (!options.stream_waits || !strategy.stream_waits) return;
  const device::CudaError error = cuda.wait_value(stream->get(), gate.on_device(), kernels::kGateOpen);
  may_wait_on_stream = error == device::kSuccess;
  if (may_wait_on_stream) return;
  warn(fmt::format("steps are not enqueued ahead, slower: cuStreamWaitValue32: {}", cuda.error_text(error)));
  static_cast<void>(cuda.last_error());
}

// To be called before anything is enqueued: selects the device for the calling thread.
void GpuLink::Impl::begin() {
  check(cuda.set_device(options.device), "be used");
  if (!pull->has_bounced() || push->is_under_way()) return;
  pull->forget_bounces();
  // New variables exist, whose buffers may by now hold chunks of ours. If others use the registration, it stays
  // unchanged, and such chunks are pulled by the CPU.
  if (!shards.has_grown() || is_sharing()) return;
  device::wait_until_done(watch, stream->get(), "finish its work");
  plan();
}

void GpuLink::Impl::close_gate() noexcept {
  gate.on_host()->store_relaxed(kernels::kGateClosed);  // (gpu.G1) before a launch
  worker.set_closed_gate(true);
}

void GpuLink::Impl::open_gate(std::uint32_t how) noexcept {
  gate.on_host()->store_release(how);  // (gpu.G4)
  worker.set_closed_gate(false);
}

std::unique_ptr<GpuLink> GpuLinkAccess::make(Worker& worker, std::span<const Variable> variables,
                                             std::span<float* const> parameters,
                                             std::span<const float* const> gradients, const GpuOptions& options,
                                             device::CudaCalls& cuda, device::TransferKernels& kernels) {
  return std::unique_ptr<GpuLink>(
      new GpuLink(std::make_unique<GpuLink::Impl>(worker, variables, parameters, gradients, options, cuda, kernels)));
}

GpuLink::GpuLink(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

GpuLink::GpuLink(Worker& worker, std::span<const Variable> variables, std::span<float* const> parameters,
                 std::span<const float* const> gradients, const GpuOptions& options)
    : impl_(std::make_unique<Impl>(worker, variables, parameters, gradients, options, device::cuda_calls(),
                                   device::transfer_kernels())) {}

GpuLink::~GpuLink() = default;

void* GpuLink::stream() const noexcept { return impl_->stream->get(); }

void GpuLink::start_pull() {
  impl_->begin();
  impl_->worker.note_pull();
  impl_->pull->start();
}

bool GpuLink::can_wait() const noexcept {
  return impl_->may_wait_on_stream && impl_->strategy.stream_waits && impl_->pull->is_all_on_stream() &&
         impl_->strategy.push == device::PushPath::kStaged;
}

void GpuLink::start_pull_when_opened(void* opened) {
  impl_->begin();
  impl_->pull->begin();
  impl_->close_gate();
  impl_->wait_at_gate();
  if (opened != nullptr)
    impl_->check(impl_->cuda.record(static_cast<device::Event>(opened), impl_->stream->get()), "record an event");
  impl_->pull->enqueue();
}

void GpuLink::open() {
  impl_->worker.note_pull();
  impl_->open_gate(kernels::kGateOpen);
}

bool GpuLink::finish_pull() { return impl_->pull->finish(); }
void GpuLink::start_push() {
  impl_->begin();
  impl_->push->start();
}
void GpuLink::finish_push() { impl_->push->finish(); }
const GpuTransfers& GpuLink::transfers() const noexcept { return impl_->totals; }

bool GpuLinkAccess::can_record(const GpuLink& link) noexcept {
  return link.impl_->pull->is_all_on_stream() && link.impl_->push->is_only_sent();
}

std::uint64_t GpuLinkAccess::recording_number(const GpuLink& link) noexcept { return link.impl_->plans; }

void GpuLinkAccess::record_step(GpuLink& link, const std::function<void()>& opened,
                                const std::function<void()>& enqueue_compute) {
  if (link.can_wait()) link.impl_->wait_at_gate();
  opened();
  link.impl_->pull->enqueue();
  enqueue_compute();
  link.impl_->push->enqueue_recorded();
}

void GpuLinkAccess::refuse_waits(GpuLink& link) noexcept { link.impl_->may_wait_on_stream = false; }

void GpuLinkAccess::start_recorded(GpuLink& link) {
  GpuLink::Impl& impl = *link.impl_;
  impl.worker.check_push();
  start_recorded_when_opened(link);
  impl.worker.note_pull();
  impl.open_gate(kernels::kGateOpen);
}

// Unlike begin(), it never registers memory again, since what was recorded has to stay valid. A pull with bounces is
// followed by a push that was not recorded, which does it.
void GpuLinkAccess::start_recorded_when_opened(GpuLink& link) {
  GpuLink::Impl& impl = *link.impl_;
  impl.check(impl.cuda.set_device(impl.options.device), "be used");
  impl.pull->begin();
  impl.close_gate();
}

void GpuLinkAccess::start_recorded_push(GpuLink& link) { link.impl_->push->start_recorded(); }

void GpuLinkAccess::discard_recorded_push(GpuLink& link) {
  device::wait_until_done(link.impl_->watch, link.impl_->stream->get(), "finish its work");
  link.impl_->push->forget_arrivals();
}

device::GpuWatch& GpuLinkAccess::watch(GpuLink& link) noexcept { return link.impl_->watch; }

void GpuLinkAccess::cancel(GpuLink& link) noexcept { link.impl_->open_gate(kernels::kGateCancelled); }

}  // namespace ps_shm
