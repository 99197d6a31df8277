#include "device/gpu_push.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "device/polling.hpp"
#include "shm/segment/memory_policy.hpp"
#include "update/bfloat16.hpp"

namespace ps_shm {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr const char* kArriving = "send a gradient";

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// The gradient of one variable, while it arrives.
class GpuLink::Push::Source final : public ArrivingGradient {
 public:
  // `sent`: recorded when all chunks have been sent.
  Source(GpuLink::Impl& link, VariableState& state, bool is_native, device::Event sent)
      : link_(link), state_(state), is_native_(is_native), sent_(sent), scratch_(link.worker.threads().count()) {}

  const float* piece(std::uint64_t index, std::uint64_t begin, std::uint64_t count, std::uint32_t thread) override {
    wait(index);
    if (!rounded_.empty()) {
      std::vector<float>& buffer = scratch_[thread];
      if (buffer.size() < count) buffer.resize(count);
      update::widen(buffer.data(), rounded_.data() + begin, count);
      return buffer.data();
    }
    return landed_.empty() ? part_of(begin) : landed_.data() + begin;
  }

  std::span<const float> whole() override {
    for (std::uint64_t index = 0; index < state_.pieces; ++index) wait(index);
    if (!landed_.empty()) return landed_;
    whole_.resize(state_.elements);
    if (!rounded_.empty())
      update::widen(whole_.data(), rounded_.data(), whole_.size());
    else
      for (std::size_t k = 0; k < state_.parts.size(); ++k)
        std::copy(parts_[k].begin(), parts_[k].end(), whole_.begin() + std::ptrdiff_t(state_.parts[k].begin));
    return whole_;
  }

  bool is_added_by_device() const noexcept override { return is_native_ && adds_now_; }

  bool is_native() const noexcept { return is_native_; }
  void lands_in(std::span<float> place) { landed_ = place; }
  void lands_in(std::span<std::uint16_t> place) { rounded_ = place; }
  void lands_in_part(std::span<float> place) { parts_.push_back(place); }
  // The flags of its chunks, in the order in which they are sent; none: it arrives as a whole, with the stream.
  void arrives_at(shm::AtomicShm<std::uint32_t>* flags) { flags_ = flags; }
  void begin(bool adds_now) noexcept { adds_now_ = adds_now; }

  // The host address for the elements from `begin` on; contiguous within one chunk.
  std::byte* place_of(std::uint64_t begin) const noexcept {
    if (!rounded_.empty()) return reinterpret_cast<std::byte*>(rounded_.data() + begin);
    return reinterpret_cast<std::byte*>(landed_.empty() ? part_of(begin) : landed_.data() + begin);
  }

 private:
  float* part_of(std::uint64_t begin) const noexcept {
    std::size_t k = state_.parts.size() - 1;
    while (state_.parts[k].begin > begin) --k;
    return parts_[k].data() + (begin - state_.parts[k].begin);
  }

  void wait(std::uint64_t index) {
    const auto status = [&] {
      const device::CudaError error = link_.cuda.set_device(link_.options.device);  // for the calling thread
      return error != device::kSuccess ? error : link_.cuda.query(sent_);
    };
    const std::uint64_t place = (index + state_.pieces - state_.first_pushed()) % state_.pieces;
    const auto what = [&] {
      return fmt::format("push, chunk {} of {} of variable '{}'", place + 1, state_.pieces, state_.name);
    };
    if (flags_ == nullptr || is_added_by_device())
      return device::wait_for_device(link_.watch, kArriving, what, status,
                                     [&] { return link_.cuda.query(sent_) == device::kSuccess; });
    const auto has_arrived = [&] { return flags_[place].load_acquire() != 0; };  // (gpu.G3) pairs with gpu.G2
    device::wait_for_device(link_.watch, kArriving, what, status, has_arrived);
  }

  GpuLink::Impl& link_;
  VariableState& state_;
  const bool is_native_;
  const device::Event sent_;
  bool adds_now_ = false;
  std::span<float> landed_;
  std::span<std::uint16_t> rounded_;
  std::vector<std::span<float>> parts_;  // in the gradient segment
  shm::AtomicShm<std::uint32_t>* flags_ = nullptr;
  std::vector<std::vector<float>> scratch_;  // one per thread
  std::vector<float> whole_;
};

GpuLink::Push::Push(GpuLink::Impl& link)
    : link_(link),
      all_sent_(link.cuda),
      staging_(nullptr, Unmap{0}),
      staging_registration_(link.cuda),
      segment_registration_(link.cuda) {}

GpuLink::Push::~Push() {
  if (link_.cuda.is_given_up()) static_cast<void>(staging_.release());  // the GPU may still write there
}

void GpuLink::Push::Unmap::operator()(std::byte* staging) const noexcept { munmap(staging, bytes); }

bool GpuLink::Push::is_native(const VariableState& state) const noexcept {
  return link_.strategy.native_adds && state.adds_in_place() && link_.worker.config().adds == Adds::kExact &&
         !link_.worker.config().optimizer.lr_staleness;
}

bool GpuLink::Push::lands_in_segment() const noexcept {
  return link_.worker.landing() != nullptr && link_.options.wire == Wire::kFloat32;
}

// Places new pages on the GPU's memory node, if the system allows it.
void GpuLink::Push::prefer_gpu_node(void* place, std::size_t bytes) const noexcept {
  if (link_.gpu.numa_node >= 0)
    static_cast<void>(shm::prefer_node(place, bytes, static_cast<std::uint32_t>(link_.gpu.numa_node)));
}

// Large enough for floats, whatever is chosen in the end.
void GpuLink::Push::make_staging() {
  const bool rounds = link_.options.wire == Wire::kBFloat16 && link_.strategy.push == device::PushPath::kStaged;
  const std::size_t width = rounds ? sizeof(std::uint16_t) : sizeof(float);
  std::size_t bytes = 0;
  for (const VariableState* state : link_.states) bytes += aligned(state->elements * sizeof(float));
  if (!staging_) {
    void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) throw Error(fmt::format("no memory for gradients: {} bytes", bytes), ErrorCode::kNoSpace);
    staging_ = {static_cast<std::byte*>(place), Unmap{bytes}};
    // Else the pages would be shared with a child, and a store of this process would go to a copy, not to the GPU's pages.
    static_cast<void>(madvise(place, bytes, MADV_DONTFORK));
    prefer_gpu_node(place, bytes);
    std::fill_n(staging_.get(), bytes, std::byte{0});  // allocates the pages
  }
  std::byte* next = staging_.get();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::uint64_t count = link_.states[i]->elements;
    if (rounds)
      sources_[i]->lands_in(std::span(reinterpret_cast<std::uint16_t*>(next), count));
    else
      sources_[i]->lands_in(std::span(reinterpret_cast<float*>(next), count));
    next += aligned(count * width);
  }
}

bool GpuLink::Push::register_landing(std::string& why) {
  const bool in_segment = lands_in_segment();
  const shm::Segment* const segment = in_segment ? link_.worker.landing() : nullptr;
  device::Registration& registration = in_segment ? segment_registration_ : staging_registration_;
  std::byte* base = in_segment ? segment->data() : staging_.get();
  const std::size_t bytes = in_segment ? segment->usable_bytes() : staging_.get_deleter().bytes;
  if (!registration.try_register(base, bytes, false, link_.registered, why)) return false;
  if (registration.contiguous_at(0) == registration.bytes()) return true;
  why = "its regions are not contiguous on the device";  // a chunk may begin in one and end in the next
  registration.unregister();
  return false;
}

void GpuLink::Push::plan() {
  sources_.clear();
  inputs_.clear();
  sent_.clear();
  added_.clear();
  native_.clear();
  for (VariableState* state : link_.states)
    inputs_.push_back(
        *sources_.emplace_back(std::make_unique<Source>(link_, *state, is_native(*state), all_sent_.get())));
  if (lands_in_segment()) {
    const shm::Segment& segment = *link_.worker.landing();
    prefer_gpu_node(segment.data(), segment.mapped_bytes());  // also the pages by which it grows
    for (std::size_t i = 0; i < sources_.size(); ++i)
      for (const VariablePart& part : link_.states[i]->parts)
        sources_[i]->lands_in_part(link_.worker.landing_place(part.record));
  } else {
    make_staging();
  }
  if (link_.strategy.push == device::PushPath::kThroughHost) return;
  if (std::string why; !register_landing(why)) {
    link_.warn(fmt::format("gradients go through the driver's buffers, slower: {}", why));
    link_.strategy.push = device::PushPath::kThroughHost;
    link_.strategy.push_reason = why;
    return plan();
  }
  for (const bool native : {false, true}) {
    for (std::size_t i = 0; i < sources_.size(); ++i)
      if (sources_[i]->is_native() == native) list_variable(i);
    if (!native) sent_without_native_ = sent_.size();
  }
  arrived_ = device::PinnedMemory<shm::AtomicShm<std::uint32_t>>(link_.cuda, sent_.size());
  forget_arrivals();
  std::size_t at = 0;
  for (const bool native : {false, true})
    for (std::size_t i = 0; i < sources_.size(); ++i)
      if (sources_[i]->is_native() == native) {
        sources_[i]->arrives_at(arrived_.on_host() + at);
        at += link_.states[i]->pieces;
      }
  const device::Stream stream = link_.stream->get();
  const auto upload = [&](auto& on_device, const auto& list) {
    using List = std::remove_reference_t<decltype(on_device)>;
    on_device = List(link_.cuda, list.size());
    if (list.empty()) return;
    link_.check(link_.cuda.copy(on_device.on_device(), list.data(), on_device.bytes(), stream), "copy to its memory");
  };
  upload(sent_on_device_, sent_);
  upload(added_on_device_, added_);
  device::wait_until_done(link_.watch, stream, "copy to its memory");
}

void GpuLink::Push::list_variable(std::size_t i) {
  VariableState& state = *link_.states[i];
  const bool in_segment = lands_in_segment(), is_native = sources_[i]->is_native();
  const std::size_t first_added = added_.size();
  const std::byte* base = in_segment ? link_.worker.landing()->data() : staging_.get();
  const device::Registration& registration = in_segment ? segment_registration_ : staging_registration_;
  state.for_each_pushed([&](const VariablePart& part, std::uint64_t piece) {
    const std::uint64_t begin = part.piece_begin(piece), count = part.piece_size(piece);
    sent_.push_back({.from = link_.gradients[i] + begin,
                     .to = registration.at(static_cast<std::size_t>(sources_[i]->place_of(begin) - base)),
                     .count = static_cast<std::uint32_t>(count),
                     .pad = 0});
    if (!is_native) return;
    const device::Registration& shard = link_.shards.of(part.record.shard);
    std::size_t at = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(part.inplace->elements()) -
                                              link_.shards.base(part.record.shard)) +
                     part.inplace->block_begin(piece) * sizeof(float);
    for (std::uint64_t done = 0; done < count;) {
      const std::uint64_t some = std::min<std::uint64_t>(count - done, shard.contiguous_at(at) / sizeof(float));
      added_.push_back({.from = link_.gradients[i] + begin + done,
                        .to = static_cast<float*>(shard.at(at)),
                        .count = static_cast<std::uint32_t>(some),
                        .pad = 0});
      done += some;
      at += some * sizeof(float);
    }
  });
  if (is_native) native_.push_back({&state, first_added, static_cast<std::uint32_t>(added_.size() - first_added)});
}

void GpuLink::Push::begin() {
  if (is_under_way_)
    throw Error("a push from the GPU begins while the previous one is still in progress", ErrorCode::kInvalidState);
  link_.worker.check_push();
  is_under_way_ = true;
}

void GpuLink::Push::start() {
  begin();
  const device::Stream stream = link_.stream->get();
  if (link_.strategy.push == device::PushPath::kThroughHost) {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const VariableState& state = *link_.states[i];
      for (const VariablePart& part : state.parts)
        link_.check(link_.cuda.copy(sources_[i]->place_of(part.begin), link_.gradients[i] + part.begin,
                                    part.record.elements * sizeof(float), stream),
                    kArriving);
    }
    return link_.check(link_.cuda.record(all_sent_.get(), stream), "record an event");
  }
  // A limit on the norm needs the complete gradients before the first one is added, and a limit on the age the decision.
  const LiveSettings& live = link_.worker.live();
  for (const Native& one : native_) one.state->follow(live);  // a decay that has been switched on is no sum
  adds_natively_ =
      !added_.empty() && live.clip_norm == 0 && live.stale_limit == 0 &&
      std::all_of(native_.begin(), native_.end(), [](const Native& one) { return one.state->adds_in_place(); });
  for (const auto& source : sources_) source->begin(adds_natively_);
  if (adds_natively_) start_native();
  send(adds_natively_ ? sent_without_native_ : sent_.size(), nullptr);
  link_.check(link_.cuda.record(all_sent_.get(), stream), "record an event");
}

void GpuLink::Push::send(std::size_t pieces, const std::uint32_t* gate) {
  link_.check(
      link_.kernels.send_pieces(sent_on_device_.on_device(), static_cast<std::uint32_t>(pieces),
                                reinterpret_cast<std::uint32_t*>(arrived_.on_device()),
                                link_.options.wire == Wire::kBFloat16, gate, kernels::kSenders, link_.stream->get()),
      kArriving);
}

bool GpuLink::Push::is_only_sent() const noexcept {
  return link_.strategy.push == device::PushPath::kStaged && added_.empty();
}

// A gate is cancelled while no push is being applied. A buffer of the worker's own may be overwritten then, so that no
// kernel need look at the gate.
void GpuLink::Push::enqueue_recorded() { send(sent_.size(), lands_in_segment() ? link_.gate_on_device() : nullptr); }

// Between pushes all are zero: a graph that sets them may have been launched before the last push is over. The launch, or
// the gate before it, orders the stores.
void GpuLink::Push::forget_arrivals() noexcept {
  for (auto& flag : arrived_.host()) flag.store_relaxed(0);  // (gpu.G1)
}

// The event tells whether the GPU has failed. The graph itself cannot record it: its moment would be the recording.
void GpuLink::Push::start_recorded() {
  begin();
  adds_natively_ = false;
  for (const auto& source : sources_) source->begin(false);
  link_.check(link_.cuda.record(all_sent_.get(), link_.stream->get()), "record an event");
}

void GpuLink::Push::start_native() {
  const float rate = link_.worker.lr();
  for (const Native& one : native_) {
    link_.check(link_.kernels.add_pieces(added_on_device_.on_device() + one.first, one.count,
                                         one.state->is_sum ? 1.0F : -rate * one.state->settings.lr_scale,
                                         one.state->settings.clip_value, link_.strategy.wide_adds, link_.stream->get()),
                "add a gradient");
  }
}

void GpuLink::Push::finish() {
  if (!is_under_way_) return;
  link_.worker.push(link_.variables, inputs_);
  forget_arrivals();
  is_under_way_ = false;  // stays true after an error: it is unknown what has arrived by then
  ++link_.totals.pushes;
}

}  // namespace ps_shm
