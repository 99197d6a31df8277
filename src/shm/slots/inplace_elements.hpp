// Updates and reads of elements that lie in place, beside their state.
//
// exact: each element is changed, together with the state beside it, by a compare-exchange of 16, 8 or 4 bytes, as
//        alignment and length allow (inplace.P1). Each element is updated atomically and no update is lost. Lock-free:
//        an exchange fails only because another one succeeded.
// racy:  plain loads and stores, as in Hogwild! (Niu, Recht, Re, Wright 2011): concurrent updates may be lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ps_shm/types.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

// Compare-exchange of 16 bytes. Requires: `target` is 16-aligned. On failure `expected` receives the current contents.
[[nodiscard]] inline bool try_exchange_16(void* target, std::uint64_t expected[2],
                                          const std::uint64_t desired[2]) noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  bool done;
  asm volatile("lock cmpxchg16b %1"  // on every x86-64 processor since 2006; a full barrier
               : "=@ccz"(done), "+m"(*static_cast<char(*)[16]>(target)), "+a"(expected[0]), "+d"(expected[1])
               : "b"(desired[0]), "c"(desired[1])
               : "memory");
  return done;
#elif defined(__aarch64__) && !defined(__SANITIZE_THREAD__)
  // casp, if the build targets a processor that has it, or if the processor turns out to have it at run time;
  // otherwise a loop of ldaxp and stlxp. std::atomic would call libatomic, whose exchanges may take a lock.
  __extension__ typedef unsigned __int128 Both;
  const auto both = [](const std::uint64_t words[2]) { return Both{words[1]} << 64 | words[0]; };  // little-endian
  const Both given = both(expected);
  const Both found = __sync_val_compare_and_swap(static_cast<Both*>(target), given, both(desired));
  expected[0] = static_cast<std::uint64_t>(found), expected[1] = static_cast<std::uint64_t>(found >> 64);
  return found == given;
#else
  (void)target, (void)expected, (void)desired;
  return false;
#endif
}

// The form of an update. Either update(float* record, float gradient) changes the kFloats floats of an element,
// including the state beside it, or update(float value, float gradient) returns the new value of an element without
// state.
template <class Update>
constexpr std::size_t floats_of() noexcept {
  if constexpr (requires { Update::kFloats; })
    return Update::kFloats;
  else
    return 1;
}
template <class Update>
[[gnu::always_inline]] inline void update_record(const Update& update, float* record, float gradient) noexcept {
  if constexpr (requires { update(*record, gradient) + 1.0F; })
    *record = update(*record, gradient);
  else
    update(record, gradient);
}

// One exact update of as many neighbouring elements as fit into an unsigned integer. Returns the first float.
template <class Bits, class Update>
float update_bits(float* target, const float* gradient, const Update& update) noexcept {
  constexpr std::size_t kFloats = sizeof(Bits) / sizeof(float), kRecord = floats_of<Update>();
  auto* word = reinterpret_cast<Bits*>(target);
  Bits expected = __atomic_load_n(word, __ATOMIC_RELAXED);  // relaxed: the exchange checks it
  for (;;) {
    float values[kFloats];
    std::memcpy(values, &expected, sizeof values);
    for (std::size_t i = 0; i < kFloats; i += kRecord) update_record(update, values + i, gradient[i / kRecord]);
    Bits desired;
    std::memcpy(&desired, values, sizeof desired);
    // inplace.P1, relaxed: elements carry no order between them; the block's counter (inplace.P2) comes after.
    if (__atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return values[0];
  }
}

// change(float* floats) changes some of the four floats at `target`. Requires: kHas16ByteExchange; `target` is
// 16-aligned.
template <class Change>
[[gnu::always_inline]] inline void update_some_of_16_bytes(float* target, Change&& change) noexcept {
  using Words [[gnu::vector_size(16)]] = std::uint64_t;
  auto* words = reinterpret_cast<std::uint64_t*>(target);
  // Atomic, so that the compiler loads once: the update computes from the values that the exchange compares. Relaxed,
  // and possibly torn between the two words: the exchange compares all 16 bytes.
  std::uint64_t expected[2] = {__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED)};
  std::uint64_t desired[2];
  do {
    const Words both = {expected[0], expected[1]};  // in a register: a load of 16 bytes would wait for two stores of 8
    float values[4];
    std::memcpy(values, &both, 16);
    change(values);
    std::memcpy(desired, values, 16);
  } while (!try_exchange_16(target, expected, desired));  // (inplace.P1)
}

// Updates all elements in 16 bytes.
template <class Update>
[[gnu::always_inline]] inline void update_16_bytes(float* target, const float* gradient,
                                                   const Update& update) noexcept {
  constexpr std::size_t kRecord = floats_of<Update>();
  update_some_of_16_bytes(target, [&](float* values) {
    for (std::size_t i = 0; i < 4; i += kRecord) update_record(update, values + i, gradient[i / kRecord]);
  });
}

// Updates `count` consecutive elements from `target` on, each together with its state exactly once. Lock-free.
// Requires: `target` is aligned to an element with its state, of 4, 8 or (kHas16ByteExchange) 16 bytes.
template <class Update>
void update_exact(float* target, const float* gradient, std::size_t count, const Update& update) noexcept {
  constexpr std::size_t kRecord = floats_of<Update>();
  static_assert(kRecord == 1 || kRecord == 2 || kRecord == 4, "an exchange has 4, 8 or 16 bytes");
  const auto aligned_to = [&](std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(target) % bytes == 0; };
  const auto advance = [&](std::size_t records) { target += records * kRecord, gradient += records, count -= records; };
  while (count != 0) {
    fault_point(FaultPoint::kInplaceElement);
    if constexpr (kRecord == 4) {
      update_16_bytes(target, gradient, update);
      advance(1);
    } else if (kHas16ByteExchange && count * kRecord >= 4 && aligned_to(16)) {
      update_16_bytes(target, gradient, update);
      advance(4 / kRecord);
    } else if constexpr (kRecord == 2) {
      update_bits<std::uint64_t>(target, gradient, update);
      advance(1);
    } else if (count >= 2 && aligned_to(8)) {
      update_bits<std::uint64_t>(target, gradient, update);
      advance(2);
    } else {
      update_bits<std::uint32_t>(target, gradient, update);
      advance(1);
    }
  }
}

// The same with plain loads and stores: concurrent updates may be lost. Wait-free.
template <class Update>
void update_racy(float* target, const float* gradient, std::size_t count, const Update& update) noexcept {
  for (std::size_t i = 0; i < count; ++i) update_record(update, target + i * floats_of<Update>(), gradient[i]);
}

template <class Target, class Update>
[[gnu::always_inline]] inline void update_elements(const Target& target, const float* gradient, std::size_t count,
                                                   Adds adds, const Update& update) noexcept {
  if (adds == Adds::kExact)
    update_exact(target, gradient, count, update);
  else
    update_racy(target, gradient, count, update);
}

// Where the state of a row of `count` elements lies.
inline float* state_behind(float* row, std::size_t count) noexcept { return row + count; }

// Updates a row of `count` elements, a float* or a BFloat16Row. If the rule keeps state for each row (update.with_state),
// that state follows the elements and is changed first. Elements may be computed from a state that other pushes have
// changed in the meantime; none of the changes is lost. update.row_state() is the value that an assignment gives to such
// a state.
template <class Row, class Update>
[[gnu::always_inline]] inline void update_row(const Row& row, const float* gradient, std::size_t count, Adds adds,
                                              const Update& update) noexcept {
  if constexpr (requires { update.with_state(0.0F); }) {
    const float added = update.add_to_state(gradient, count);
    float* state = state_behind(row, count);
    float now;
    if (adds == Adds::kExact)
      now = update_bits<std::uint32_t>(state, &added, [](float n, float more) { return n + more; });
    else
      now = *state += added;
    update_elements(row, gradient, count, adds, update.with_state(now));
  } else if constexpr (requires { update.row_state(); }) {
    const float state = update.row_state();  // inplace.P6: before the elements
    update_bits<std::uint32_t>(state_behind(row, count), &state, [](float, float given) { return given; });
    update_elements(row, gradient, count, adds, update);
  } else {
    update_elements(row, gradient, count, adds, update);
  }
}

// Reads the values of `count` elements, each element's floats in one load. value_of(const float* record).
template <class ValueOf>
[[gnu::always_inline]] inline void read_elements(float* out, const float* from, std::size_t record, std::size_t count,
                                                 const ValueOf& value_of) noexcept {
  if (ValueOf::kFloats == 1 && record == 1) return racing_copy(out, from, count);
  for (std::size_t i = 0; i < count; ++i) {
    using Bits = std::conditional_t<ValueOf::kFloats == 2, std::uint64_t, std::uint32_t>;
    const Bits bits = __atomic_load_n(reinterpret_cast<const Bits*>(from + i * record), __ATOMIC_RELAXED);
    float floats[sizeof(Bits) / sizeof(float)];
    std::memcpy(floats, &bits, sizeof bits);
    out[i] = value_of(floats);
  }
}

}  // namespace ps_shm::shm
