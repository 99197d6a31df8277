// In-place slots: contiguous elements that every process updates where they lie.
//
// exact: each element is changed by compare-exchange of 16, 8 or 4 bytes, as alignment and length allow; atomicity is
//        per element, no update is lost. Lock-free: an exchange fails only because another one succeeded.
// racy:  plain loads and stores, the published Hogwild! (Niu, Recht, Re, Wright 2011): concurrent updates may be lost.
//
// Each block of elements has a counter of pushes, which gives the staleness (I5): a pull reads it before the block, a
// push adds one after the block. A variable of one element lies in the counter's own word, so that one exchange does both.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ps/job_config.hpp"
#include "shm/layout.hpp"
#include "shm/racing.hpp"

namespace ps::shm {

// 16 bytes in one compare-exchange. Requires: `target` 16-aligned. On failure `expected` holds what is there.
[[nodiscard]] inline bool try_exchange_16(void* target, std::uint64_t expected[2],
                                          const std::uint64_t desired[2]) noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  bool done;
  asm volatile("lock cmpxchg16b %1"  // every x86-64 processor since 2006 has it; a full barrier
               : "=@ccz"(done), "+m"(*static_cast<char(*)[16]>(target)), "+a"(expected[0]), "+d"(expected[1])
               : "b"(desired[0]), "c"(desired[1])
               : "memory");
  return done;
#else
  (void)target, (void)expected, (void)desired;
  return false;
#endif
}
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)  // TSan can't see into assembly, so it gets the 8-byte form
inline constexpr bool kHas16ByteExchange = true;
#else
inline constexpr bool kHas16ByteExchange = false;
#endif

// One exact update of 1 or 2 neighbouring floats through an unsigned integer of their size.
template <class Bits, class Update>
void update_bits(float* target, const float* gradient, Update&& update) noexcept {
  constexpr std::size_t kFloats = sizeof(Bits) / sizeof(float);
  auto* word = reinterpret_cast<Bits*>(target);
  Bits expected = __atomic_load_n(word, __ATOMIC_RELAXED);  // relaxed: the exchange checks it
  for (;;) {
    float values[kFloats];
    std::memcpy(values, &expected, sizeof values);
    for (std::size_t i = 0; i < kFloats; ++i) values[i] = update(values[i], gradient[i]);
    Bits desired;
    std::memcpy(&desired, values, sizeof desired);
    // relaxed: elements carry no order between them; the block's counter (acq_rel) comes after.
    if (__atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  }
}

// target[i] = update(target[i], gradient[i]), each exactly once. Requires: `target` 4-aligned. Lock-free.
template <class Update>
void update_exact(float* target, const float* gradient, std::size_t count, Update&& update) noexcept {
  const auto aligned_to = [&](std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(target) % bytes == 0; };
  const auto advance = [&](std::size_t floats) { target += floats, gradient += floats, count -= floats; };
  while (count != 0) {
    fault_point(FaultPoint::kInplaceElement);
    if (kHas16ByteExchange && count >= 4 && aligned_to(16)) {
      std::uint64_t expected[2], desired[2];
      std::memcpy(expected, target, 16);  // may be torn: the exchange compares all of it
      do {
        float values[4];
        std::memcpy(values, expected, 16);
        for (int i = 0; i < 4; ++i) values[i] = update(values[i], gradient[i]);
        std::memcpy(desired, values, 16);
      } while (!try_exchange_16(target, expected, desired));
      advance(4);
    } else if (count >= 2 && aligned_to(8)) {
      update_bits<std::uint64_t>(target, gradient, update);
      advance(2);
    } else {
      update_bits<std::uint32_t>(target, gradient, update);
      advance(1);
    }
  }
}

// The same, plainly: concurrent updates may be lost. Wait-free.
template <class Update>
void update_racy(float* target, const float* gradient, std::size_t count, Update&& update) noexcept {
  for (std::size_t i = 0; i < count; ++i) target[i] = update(target[i], gradient[i]);
}

// The word of a variable of one element; the counter goes round after 2^32 pushes.
static_assert(std::endian::native == std::endian::little, "the element is the word's first half");
constexpr std::uint64_t make_scalar(std::uint32_t pushes, float value) noexcept {
  return std::uint64_t{pushes} << 32 | std::bit_cast<std::uint32_t>(value);
}
constexpr float scalar_value(std::uint64_t word) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word));
}
constexpr std::uint32_t scalar_pushes(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32); }

class InplaceVariable {
 public:
  InplaceVariable(std::byte* shard, const VariableShm& variable) noexcept
      : counters_(reinterpret_cast<PieceWordShm*>(shard + variable.words_offset)),
        elements_(reinterpret_cast<float*>(shard + variable.data_offset)),
        variable_(variable) {}

  float* elements() const noexcept { return elements_; }
  std::uint64_t blocks() const noexcept { return variable_.pieces; }
  std::uint64_t block_begin(std::uint64_t block) const noexcept { return block * variable_.piece_elements; }
  std::uint64_t block_size(std::uint64_t block) const noexcept {
    return std::min(variable_.piece_elements, variable_.elements - block_begin(block));
  }
  bool is_scalar() const noexcept { return variable_.elements == 1; }
  std::uint64_t pushes(std::uint64_t block) const noexcept {
    const std::uint64_t word = counters_[block].word.load_acquire();
    return is_scalar() ? scalar_pushes(word) : word;
  }
  // Of how many pushes the counter goes round, less one: differences of counts are taken modulo this.
  std::uint64_t pushes_mask() const noexcept { return is_scalar() ? 0xffffffff : ~std::uint64_t{0}; }

  // Copies a block; returns how many pushes it had when the copy began. Wait-free. Elements are whole.
  std::uint64_t pull_block(std::uint64_t block, float* out) const noexcept {
    if (is_scalar()) return pull_scalar(*out);
    const std::uint64_t pushed = pushes(block);
    racing_copy(out, elements_ + block_begin(block), block_size(block));
    return pushed;
  }

  // Of a variable of one element: its value, and the pushes so far. Wait-free.
  std::uint64_t pull_scalar(float& out) const noexcept {
    const std::uint64_t word = counters_->word.load_acquire();
    out = scalar_value(word);
    return scalar_pushes(word);
  }

  // Of a variable of one element: value = update(value, gradient). Returns the pushes before. Exact is lock-free.
  template <class Update>
  std::uint64_t push_scalar(float gradient, Adds adds, Update&& update) noexcept {
    auto& shared = counters_->word;
    if (adds == Adds::kRacy) {
      update_racy(elements_, &gradient, 1, update);
      fault_point(FaultPoint::kInplaceBlock);
      return scalar_pushes(shared.fetch_add_acq_rel(std::uint64_t{1} << 32));
    }
    std::uint64_t old = shared.load_relaxed();  // relaxed: the exchange checks it
    fault_point(FaultPoint::kInplaceElement);
    while (
        !shared.try_exchange_acq_rel(old, make_scalar(scalar_pushes(old) + 1, update(scalar_value(old), gradient)))) {
    }
    fault_point(FaultPoint::kInplaceCounted);
    return scalar_pushes(old);
  }

  // Returns how many pushes the block had before this one.
  template <class Update>
  std::uint64_t push_block(std::uint64_t block, const float* gradient, Adds adds, Update&& update) noexcept {
    if (is_scalar()) return push_scalar(*gradient, adds, update);
    float* target = elements_ + block_begin(block);
    if (adds == Adds::kExact)
      update_exact(target, gradient, block_size(block), update);
    else
      update_racy(target, gradient, block_size(block), update);
    fault_point(FaultPoint::kInplaceBlock);
    return count_push(block);
  }

  // Counts a push whose updates have been made. Returns how many the block had before. Requires: not a scalar.
  std::uint64_t count_push(std::uint64_t block) noexcept {
    const std::uint64_t before = counters_[block].word.fetch_add_acq_rel(1);
    fault_point(FaultPoint::kInplaceCounted);
    return before;
  }

  // For who reads it by other means than the processor's: where the block's counter lies.
  const std::byte* counter_place(std::uint64_t block) const noexcept {
    return reinterpret_cast<const std::byte*>(&counters_[block].word);
  }

 private:
  PieceWordShm* counters_;
  float* elements_;
  const VariableShm& variable_;
};

}  // namespace ps::shm
