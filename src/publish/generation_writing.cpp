#include "ps_shm/generation_writing.hpp"

#include <utility>

#include "ps_shm/errors.hpp"
#include "publish/copy.hpp"
#include "publish/generation_target.hpp"
#include "shm/base/fault_points.hpp"
#include "update/bfloat16.hpp"

namespace ps_shm {

// Not inlined: GCC would take the pointer to an object that is moved for a dangling one.
[[gnu::noinline]] void GenerationWriting::Target::follow(GenerationWriting& object) noexcept { writing = &object; }

GenerationWriting::GenerationWriting(Target& target) noexcept : target_(&target) { target.follow(*this); }
GenerationWriting::GenerationWriting(GenerationWriting&& other) noexcept
    : target_(std::exchange(other.target_, nullptr)) {
  if (target_ != nullptr) target_->follow(*this);
}
GenerationWriting::~GenerationWriting() { let_go(); }

void GenerationWriting::let_go() noexcept {
  if (target_ != nullptr) target_->writing = nullptr;
  target_ = nullptr;
}

GenerationWriting::Target& GenerationWriting::own() const {
  if (target_ == nullptr)
    throw Error("the generation has been committed, or its publisher has ended", ErrorCode::kInvalidState);
  target_->require_own();
  return *target_;
}

std::span<std::byte> GenerationWriting::out(std::uint32_t tensor) {
  Target& target = own();
  target.require_tensor(tensor);
  const std::span<std::byte> memory(target.place(tensor), target.tensors[tensor].byte_count());
  target.written.add_all(tensor);
  return memory;
}

void GenerationWriting::write(std::uint32_t tensor, std::span<const std::byte> bytes, std::size_t begin) {
  Target& target = own();
  target.require_tensor(tensor);
  require_bytes(target.tensors[tensor], bytes.size(), begin);
  if (!bytes.empty()) {
    std::byte* const place = target.place(tensor) + begin;
    target.written.add(tensor, begin, bytes.size());
    copy_tensor(place, bytes.data(), bytes.size(), target.generation_bytes());
  }
  shm::fault_point(shm::FaultPoint::kPublishTensor);
}

void GenerationWriting::write_floats(std::uint32_t tensor, std::span<const float> values, std::size_t begin) {
  Target& target = own();
  target.require_tensor(tensor);
  const TensorSpec& spec = target.tensors[tensor];
  require_floats(spec, values.size(), begin);
  if (spec.dtype == DType::kFloat32) return write(tensor, std::as_bytes(values), begin * sizeof(float));
  if (!values.empty()) {
    const std::size_t element = bytes_of(DType::kBFloat16);
    std::byte* const place = target.place(tensor) + begin * element;
    target.written.add(tensor, begin * element, values.size() * element);
    update::round_to_nearest(reinterpret_cast<update::BFloat16Bits*>(place), values.data(), values.size());
  }
  shm::fault_point(shm::FaultPoint::kPublishTensor);
}

}  // namespace ps_shm
