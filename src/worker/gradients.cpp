#include "worker/gradients.hpp"

#include <cstring>

#include "ps/errors.hpp"

namespace ps {

using shm::Segment;

shm::AtomicShm<std::uint64_t>& GradientSegments::pushed(const Segment& segment, std::uint32_t position) noexcept {
  return reinterpret_cast<shm::AtomicShm<std::uint64_t>*>(segment.data() + shm::kPushedOffset)[position];
}

void GradientSegments::create_own() {
  shm::BarrierEntryShm& entry = job_.worker(rank_).barriers[0];
  const std::uint64_t before = entry.generation.load_acquire(), now = job_.worker(rank_).holders.load_acquire();
  own_ = Segment::create(shm::SegmentKind::kGradient, rank_, job_.job(), job_.instance(), shm::kGradientsOffset,
                         shm::shm_capacity_bytes());
  const std::string name = shm::gradient_name(job_.job(), rank_, now);
  if (!own_.link(name)) {  // of another job of that name whose removal was cut short
    shm::unlink_segment(name);
    if (!own_.link(name)) throw Error("cannot name /dev/shm/" + name + ": something else takes the name; remove it");
  }
  own_.publish();
  own_generation_ = now;
  entry.generation.store_release(now);
  if (before != 0) shm::unlink_segment(shm::gradient_name(job_.job(), rank_, before));
}

void GradientSegments::write(const shm::VariableShm& variable, std::uint32_t position, std::uint64_t step,
                             std::span<const float> gradient) {
  own_.grow(variable.gradient_end);
  auto* out = reinterpret_cast<float*>(own_.data() + variable.gradient_offset);
  auto& tag = pushed(own_, position);
  if (tag.load_relaxed() == step + 1) {
    for (std::size_t i = 0; i < gradient.size(); ++i) out[i] += gradient[i];
  } else {
    std::memcpy(out, gradient.data(), gradient.size_bytes());
    tag.store_relaxed(step + 1);  // relaxed: the arrival's release publishes tag and gradient together
  }
}

const float* GradientSegments::find(std::uint32_t rank, const shm::VariableShm& variable, std::uint32_t position,
                                    std::uint64_t step) {
  const std::uint64_t generation = job_.worker(rank).barriers[0].generation.load_acquire();
  const bool is_own = rank == rank_ && own_.is_mapped() && generation == own_generation_;
  const Segment& segment = is_own ? own_ : map(rank, generation);
  if (!segment.is_mapped()) {
    if (job_.global_step().load_acquire() != step) return nullptr;  // over: whatever a late helper computes is refused
    throw Error("gradient segment /dev/shm/" + shm::gradient_name(job_.job(), rank, generation) +
                " is gone while its step is under way; was it removed by hand? start the job again");
  }
  if (pushed(segment, position).load_relaxed() != step + 1) return nullptr;
  return reinterpret_cast<const float*>(segment.data() + variable.gradient_offset);
}

Segment& GradientSegments::map(std::uint32_t rank, std::uint64_t generation) {
  auto& [mapped, segment] = others_[rank];
  if (mapped == generation && segment.is_mapped()) return segment;
  mapped = generation;
  const std::string name = shm::gradient_name(job_.job(), rank, generation);
  const shm::AttachOutcome outcome = segment.open(name, shm::Access::kReadOnly);
  if (outcome != shm::AttachOutcome::kReady || segment.header().instance != job_.instance()) segment = {};  // N4
  return segment;
}

void GradientSegments::remove_own() noexcept {
  if (!own_.is_mapped()) return;
  const std::uint64_t published = job_.worker(rank_).barriers[0].published.load_acquire();
  if (published <= job_.global_step().load_acquire()) shm::unlink_segment(own_.name());
}

}  // namespace ps
