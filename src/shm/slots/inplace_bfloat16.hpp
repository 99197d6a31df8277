// Rows in place whose numbers are bfloat16: every element, and the state beside it, takes half of what it does in
// float32.
//
// As in inplace_elements.hpp an element is exchanged together with its state (inplace.P7): an update widens the numbers to
// float32, computes with them, and rounds the results. So the state is of bfloat16, too: a float32 beside a bfloat16
// would need the same 8 or 16 bytes as two or four float32. The state of a row lies behind its elements, in a float32.
//
// Updates round stochastically, assignments to nearest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "shm/slots/inplace_elements.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::shm {

using update::BFloat16Bits;

// Floats that so many numbers of bfloat16 occupy.
constexpr std::uint64_t floats_of_bfloat16(std::uint64_t numbers) noexcept { return (numbers + 1) / 2; }

// By the random bits of one push. Each number of a row has its own.
struct RoundStochastically {
  std::uint64_t key;        // rounding_key() of the row, or of the block, and its push
  std::uint64_t first = 0;  // number of the first one
  [[gnu::always_inline]] std::uint16_t operator()(float value, std::uint64_t number) const noexcept {
    return update::round_by(value, update::rounding_bits(key, static_cast<std::uint32_t>(first + number)));
  }
};

// What rounds a rank's push of a variable's row, or of its block whose first element has that number: those of blocks are
// other ones. `pushes`: a count that is another one at each push of that rank.
constexpr RoundStochastically rounding_of_row(std::uint64_t seed, std::uint64_t row, std::uint32_t rank,
                                              std::uint64_t pushes) noexcept {
  return {update::rounding_key(update::mixed(update::mixed(seed ^ row) + rank), pushes)};
}
constexpr RoundStochastically rounding_of_block(std::uint64_t seed, std::uint64_t first, std::uint32_t rank,
                                                std::uint64_t pushes) noexcept {
  return rounding_of_row(seed, ~first, rank, pushes);
}

struct RoundToNearest {
  [[gnu::always_inline]] std::uint16_t operator()(float value, std::uint64_t) const noexcept {
    return update::rounded_to_nearest(value);
  }
};

// A row of bfloat16, and how what is stored in it is rounded.
template <class Rounding>
struct BFloat16Row {
  BFloat16Row(void* row, const Rounding& how) noexcept : first(static_cast<BFloat16Bits*>(row)), rounding(how) {}

  BFloat16Bits* first;
  Rounding rounding;
};

template <class Rounding>
float* state_behind(const BFloat16Row<Rounding>& row, std::size_t count) noexcept {
  return reinterpret_cast<float*>(row.first) + floats_of_bfloat16(count);
}

// The numbers `expected` of neighbouring elements with their state after the update. `number`: the place of the first one
// in the row.
template <class Bits, class Update, class Rounding>
[[gnu::always_inline]] inline Bits updated_numbers(const Bits& expected, const float* gradient, const Update& update,
                                                   const Rounding& rounding, std::uint64_t number) noexcept {
  constexpr std::size_t kNumbers = sizeof(Bits) / sizeof(std::uint16_t), kRecord = floats_of<Update>();
  std::uint16_t bits[kNumbers];
  float values[kNumbers];
  std::memcpy(bits, &expected, sizeof bits);
  for (std::size_t i = 0; i < kNumbers; ++i) values[i] = update::BFloat16{bits[i]};
  for (std::size_t i = 0; i < kNumbers; i += kRecord) update_record(update, values + i, gradient[i / kRecord]);
  for (std::size_t i = 0; i < kNumbers; ++i) bits[i] = rounding(values[i], number + i);
  Bits desired;
  std::memcpy(&desired, bits, sizeof desired);
  return desired;
}

template <class Bits, class Update, class Rounding>
void update_number_bits(BFloat16Bits* target, const float* gradient, const Update& update, const Rounding& rounding,
                        std::uint64_t number) noexcept {
  auto* const word = reinterpret_cast<Bits*>(target);
  Bits expected = __atomic_load_n(word, __ATOMIC_RELAXED);  // relaxed: the exchange checks it
  // inplace.P1, relaxed: as for float32.
  while (!__atomic_compare_exchange_n(word, &expected, updated_numbers(expected, gradient, update, rounding, number),
                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// As update_exact() of float32, by exchanges of 16, 8, 4 or 2 bytes. Requires: `target` is aligned to an element with its
// state, of 2, 4 or 8 bytes.
template <class Update, class Rounding>
void update_exact(const BFloat16Row<Rounding>& row, const float* gradient, std::size_t count,
                  const Update& update) noexcept {
  constexpr std::size_t kRecord = floats_of<Update>();
  static_assert(kRecord == 1 || kRecord == 2 || kRecord == 4, "an exchange has 2, 4 or 8 bytes");
  BFloat16Bits* const target = row.first;
  std::uint64_t number = 0;
  const std::uint64_t end = count * kRecord;
  const auto fits = [&](std::uint64_t numbers) {
    return end - number >= numbers &&
           reinterpret_cast<std::uintptr_t>(target + number) % (numbers * sizeof(BFloat16Bits)) == 0;
  };
  const auto exchange = [&]<class Bits>(Bits) {
    update_number_bits<Bits>(target + number, gradient + number / kRecord, update, row.rounding, number);
    number += sizeof(Bits) / sizeof(BFloat16Bits);
  };
  while (number != end) {
    fault_point(FaultPoint::kInplaceElement);
    if (kHas16ByteExchange && fits(8)) {
      struct Words {
        std::uint64_t words[2];
      };
      update_some_of_16_bytes(reinterpret_cast<float*>(target + number), [&](float* floats) {
        Words words;
        std::memcpy(&words, floats, sizeof words);
        words = updated_numbers(words, gradient + number / kRecord, update, row.rounding, number);
        std::memcpy(floats, &words, sizeof words);
      });
      number += 8;
    } else if (kRecord == 4 || fits(4)) {
      exchange(std::uint64_t());
    } else if constexpr (kRecord < 4) {
      if (kRecord == 2 || fits(2))
        exchange(std::uint32_t());
      else if constexpr (kRecord == 1)
        exchange(std::uint16_t());
    }
  }
}

// The same with plain loads and stores: concurrent updates may be lost. Wait-free.
template <class Update, class Rounding>
void update_racy(const BFloat16Row<Rounding>& row, const float* gradient, std::size_t count,
                 const Update& update) noexcept {
  constexpr std::size_t kRecord = floats_of<Update>();
  struct Numbers {
    std::uint16_t bits[kRecord];
  };
  BFloat16Bits* const target = row.first;
  for (std::size_t i = 0; i < count; ++i) {
    Numbers numbers;
    std::memcpy(&numbers, target + i * kRecord, sizeof numbers);
    numbers = updated_numbers(numbers, gradient + i, update, row.rounding, i * kRecord);
    std::memcpy(target + i * kRecord, &numbers, sizeof numbers);
  }
}

// As read_elements() of float32; `record`: numbers of an element. Requires: `from` is aligned to an element with its
// state.
template <class ValueOf>
[[gnu::always_inline]] inline void read_bfloat16(float* out, const void* from, std::size_t record, std::size_t count,
                                                 const ValueOf& value_of) noexcept {
  const auto* const numbers = static_cast<const BFloat16Bits*>(from);
  std::size_t i = 0;
  const auto read_one = [&] {
    using Bits = std::conditional_t<ValueOf::kFloats == 2, std::uint32_t, std::uint16_t>;
    const Bits bits = __atomic_load_n(reinterpret_cast<const Bits*>(numbers + i * record), __ATOMIC_RELAXED);
    float floats[ValueOf::kFloats];
    for (std::size_t k = 0; k < ValueOf::kFloats; ++k)
      floats[k] = update::BFloat16{static_cast<std::uint16_t>(bits >> 16 * k)};
    out[i++] = value_of(floats);
  };
  if (ValueOf::kFloats == 1 && record == 1) {
    using Four [[gnu::vector_size(8)]] = std::uint16_t;
    using Wide [[gnu::vector_size(16)]] = std::uint32_t;
    while (i < count && reinterpret_cast<std::uintptr_t>(numbers + i) % sizeof(Four) != 0) read_one();
    for (; i + 4 <= count; i += 4) {
      const std::uint64_t word = __atomic_load_n(reinterpret_cast<const std::uint64_t*>(numbers + i), __ATOMIC_RELAXED);
      Four four;
      std::memcpy(&four, &word, sizeof four);
      const Wide wide = __builtin_convertvector(four, Wide) << 16;
      std::memcpy(out + i, &wide, sizeof wide);
    }
  }
  while (i < count) read_one();
}

}  // namespace ps_shm::shm
