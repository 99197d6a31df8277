#include "worker/gradients.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "ps_shm/errors.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/placement.hpp"

namespace ps_shm {

using shm::Segment;

namespace {

// A tag: what a worker has pushed of a record, and for which step: {Change : 2, step + 1 : 62}; 0: nothing yet.
constexpr std::uint64_t make_tag(std::uint64_t step, update::Change how) noexcept {
  return static_cast<std::uint64_t>(how) << 62 | (step + 1);
}
constexpr std::uint64_t step_of(std::uint64_t tag) noexcept { return (tag & ~std::uint64_t{0} >> 2) - 1; }
constexpr update::Change change_of(std::uint64_t tag) noexcept { return static_cast<update::Change>(tag >> 62); }

}  // namespace

shm::AtomicShm<std::uint64_t>& GradientSegments::pushed(const Segment& segment, std::uint32_t position) noexcept {
  return reinterpret_cast<shm::AtomicShm<std::uint64_t>*>(segment.data() + shm::kPushedOffset)[position];
}

shm::AtomicShm<std::uint64_t>& GradientSegments::norm_of(const Segment& segment) noexcept {
  return *reinterpret_cast<shm::AtomicShm<std::uint64_t>*>(segment.data() + shm::kNormOffset);
}

void GradientSegments::create_own() {
  shm::BarrierEntryShm& entry = job_.worker(rank_).barriers[0];
  const std::uint64_t now = job_.worker(rank_).holders.load_acquire();  // (ranks.J4) this worker's own
  own_ = Segment::create(shm::SegmentKind::kGradient, rank_, job_.job(), job_.instance(), shm::kGradientsOffset,
                         shm::shm_capacity_bytes(), job_.control().sharing());
  shm::fault_point(shm::FaultPoint::kGradientMade);
  own_.publish();                          // before it has a name, so that nobody finds it incomplete
  constexpr std::uint64_t kAttempts = 64;  // jobs of one group, whose users may each have left a segment of that rank
  for (std::uint64_t attempt = 0;; ++attempt) {
    own_generation_ = attempt << 32 | now;
    const std::string name = shm::gradient_name(job_.job(), rank_, own_generation_);
    if (own_.link(name)) break;
    shm::unlink_segment(name);  // left by another job of that name, whose removal was interrupted
    if (own_.link(name)) break;
    if (attempt == kAttempts)  // all of them belong to other users
      throw Error("cannot create /dev/shm/" + name + ": a file of " + shm::owner_of(name) + " has that name",
                  ErrorCode::kAlreadyExists);
  }
  shm::fault_point(shm::FaultPoint::kGradientNamed);
  entry.generation.store_release(own_generation_);  // (barrier.G1) the name leads there by now
  shm::fault_point(shm::FaultPoint::kGradientNoted);
  // Removes the segments of earlier owners: the last one's, and any that an owner named but had not noted when it died.
  for (const std::string& former : shm::list_segments(shm::gradient_prefix(job_.job(), rank_)))
    if (former != own_.name()) shm::unlink_segment(former);
  shm::fault_point(shm::FaultPoint::kGradientCleared);
}

std::span<float> GradientSegments::place(const shm::VariableShm& record) {
  if (record.gradient_end > own_bytes_) {
    own_.grow(record.gradient_end);
    own_bytes_ = record.gradient_end;
  }
  shm::fault_point(shm::FaultPoint::kGradientGrown);
  return {reinterpret_cast<float*>(own_.data() + record.gradient_offset), shm::gradient_floats(record)};
}

namespace {

void put(DType dtype, float* out, const float* given, std::uint64_t count, bool adds) noexcept {
  if (adds)
    update::add_elements(dtype, out, out, given, count);
  else
    std::memcpy(out, given, count * sizeof(float));
}

}  // namespace

void GradientSegments::write(const VariablePart& part, std::uint64_t step, update::Change how,
                             const GradientInput& given, Threads& threads) {
  float* out = place(part.record).data();
  const std::uint64_t tag = make_tag(step, how);
  const bool is_gradient = how == update::Change::kStep;
  const bool adds = (is_gradient || how == update::Change::kAdd) && pushed(own_, part.position).load_relaxed() == tag;
  const auto dtype = is_gradient ? DType::kFloat32 : static_cast<DType>(part.record.dtype);
  const auto begin_of = [&](std::uint64_t piece) {
    return is_gradient ? part.gradient_begin(piece) : part.piece_begin(piece);
  };
  if (!given.is_arriving() && given.whole().data() + begin_of(0) == out) return publish(part, tag);
  const std::uint64_t grain = Threads::grain(part.record.piece_elements * sizeof(float));
  given.split(threads, part.record.pieces, grain, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    const std::uint64_t at_once = given.is_arriving() ? 1 : end - begin;  // pieces
    for (std::uint64_t piece = begin; piece < end; piece += at_once) {
      const std::uint64_t last = piece + at_once - 1, first = begin_of(piece);
      const std::uint64_t size = is_gradient ? part.gradient_size(last) : part.piece_size(last);
      const std::uint64_t count = begin_of(last) + size - first;
      float* target = out + (first - begin_of(0));
      const float* from = given.piece(part.first_piece + piece, first, count, thread);
      if (from != target) put(dtype, target, from, count, adds);
    }
  });
  publish(part, tag);
}

void GradientSegments::publish(const VariablePart& part, std::uint64_t tag) noexcept {
  shm::fault_point(shm::FaultPoint::kGradientCopied);
  // relaxed: barrier.A1 publishes tag and numbers together
  pushed(own_, part.position).store_relaxed(tag);
  shm::fault_point(shm::FaultPoint::kGradientTagged);
}

std::span<const float> GradientSegments::written(const shm::VariableShm& record) const noexcept {
  return {reinterpret_cast<const float*>(own_.data() + record.gradient_offset), shm::gradient_floats(record)};
}

void GradientSegments::write_norm(std::optional<double> squared_norm) noexcept {
  norm_of(own_).store_relaxed(squared_norm ? std::bit_cast<std::uint64_t>(*squared_norm)
                                           : shm::kNoNorm);  // relaxed: as the tag
  shm::fault_point(shm::FaultPoint::kNormWritten);
}

bool GradientSegments::is_own(std::uint32_t rank, std::uint64_t generation) const noexcept {
  return rank == rank_ && own_.is_mapped() && generation == own_generation_;
}

std::uint64_t GradientSegments::generation_of(std::uint32_t rank) const noexcept {
  return job_.worker(rank).barriers[0].generation.load_acquire();  // (barrier.G1)
}

const Segment& GradientSegments::of(std::uint32_t rank) {
  const std::uint64_t generation = generation_of(rank);
  return is_own(rank, generation) ? own_ : map(rank, generation).segment;
}

GradientSegments::Pushed GradientSegments::find(std::uint32_t rank, const shm::VariableShm& record,
                                                std::uint32_t position, std::uint64_t step) {
  const std::uint64_t generation = generation_of(rank);
  Other* other = is_own(rank, generation) ? nullptr : &map(rank, generation);
  const Segment& segment = other == nullptr ? own_ : other->segment;
  if (!segment.is_mapped()) {
    if (job_.steps_done() != step) return {};  // the step is over: what a late helper computes is discarded
    throw Error("the gradient segment of rank " + std::to_string(rank) +
                    " disappeared during a step; was it removed by hand? restart the job",
                ErrorCode::kInvalidState);
  }
  const std::uint64_t tag = pushed(segment, position).load_relaxed();  // relaxed: ordered by barrier.A5
  if (step_of(tag) != step) return {};
  if (other != nullptr && record.gradient_end > other->usable_bytes) {  // it grows; a system call only if it has grown
    other->usable_bytes = segment.usable_bytes();
    if (record.gradient_end > other->usable_bytes) shm::fail_damaged(segment.name(), "it has been truncated");
  }
  return {reinterpret_cast<const float*>(segment.data() + record.gradient_offset), change_of(tag)};
}

std::optional<double> GradientSegments::norm(std::uint32_t rank) {
  const Segment& segment = of(rank);
  if (!segment.is_mapped()) return std::nullopt;               // find() reports why
  const std::uint64_t bits = norm_of(segment).load_relaxed();  // relaxed: as the tag
  return bits == shm::kNoNorm ? std::nullopt : std::optional(std::bit_cast<double>(bits));
}

GradientSegments::Other& GradientSegments::map(std::uint32_t rank, std::uint64_t generation) {
  Other& other = others_[rank];
  if (other.generation == generation && other.segment.is_mapped()) return other;
  other.generation = generation;
  const std::string name = shm::gradient_name(job_.job(), rank, generation);
  const shm::AttachOutcome outcome = other.segment.open(name, shm::Access::kReadOnly, job_.trust());
  if (outcome != shm::AttachOutcome::kReady ||
      !other.segment.is_of(shm::SegmentKind::kGradient, rank, job_.job(), job_.instance()))
    other.segment = {};  // names.N4
  other.usable_bytes = other.segment.is_mapped() ? other.segment.usable_bytes() : 0;
  if (other.segment.is_mapped() && other.usable_bytes < shm::kGradientsOffset)
    shm::fail_damaged(name, "it has been truncated");
  return other;
}

void GradientSegments::remove_own() noexcept {
  if (!own_.is_mapped()) return;
  const std::uint64_t published = job_.worker(rank_).barriers[0].published.load_acquire();  // (barrier.A1) its own
  if (published <= job_.steps_done()) shm::unlink_segment(own_.name());
}

}  // namespace ps_shm
