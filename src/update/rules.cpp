#include "update/rules.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "shm/base/undo_log.hpp"
#include "update/bfloat16.hpp"
#include "update/rule_table.hpp"
#include "update/simd.hpp"

namespace ps_shm::update {
namespace {

// The same call with everything that depends on the number t of the update, after `updates` earlier ones.
Call at_update(Call call, std::uint64_t updates) noexcept {
  const double t = double(updates) + 1;
  if (call.settings.dtype == DType::kBFloat16) call.rounding = rounding_key(call.settings.rounding, updates);
  with_rule(
      call.settings.rule, [&](auto rule) __attribute__((always_inline)) {
        if constexpr (requires { rule.set_update(call, t); }) rule.set_update(call, t);
      });
  if (call.settings.ema > 0) {
    const double d = std::min(double(call.settings.ema), (1 + t) / (10 + t));
    call.kept = static_cast<float>(d);
    call.taken = static_cast<float>(1 - d);
  }
  call.has_t = false;
  return call;
}

// x[0] is the average, g the new value.
struct Average {
  [[gnu::always_inline]] static void step(const Call& call, float* x, float, float g) noexcept {
    x[0] = call.kept * x[0] + call.taken * g;
  }
};

// What is done to a gradient and a value before the rule's step: nothing, all but clipping, or all.
enum class Before { kNothing, kNoClip, kAll };

template <class Rule, std::size_t kSlots, Before kBefore>
[[gnu::always_inline]] inline void element(const Call& call, float* out, const float* in, std::size_t stride,
                                           float gradient) noexcept {
  float x[1 + kSlots];
  for (std::size_t k = 0; k <= kSlots; ++k) x[k] = in[k * stride];
  float w = x[0], g = gradient;
  if constexpr (kBefore != Before::kNothing) {
    g = (kBefore == Before::kAll ? clip(call.scale * g, call.limit) : call.scale * g) + call.l2 * w;
    w -= call.decay * w;
  }
  Rule::step(call, x, w, g);
  for (std::size_t k = 0; k <= kSlots; ++k) out[k * stride] = x[k];
}

// A source of gradients: [i] is the gradient of element i. from(at): the source for the elements from `at` on. kIsFar:
// the gradient was written by another process, so it is always prefetched.
struct Given {
  static constexpr bool kIsFar = false;
  const float* values;

  Given from(std::size_t at) const noexcept { return {values + at}; }
  [[gnu::always_inline]] float operator[](std::size_t i) const noexcept { return values[i]; }
  [[gnu::always_inline]] void prefetch(std::size_t i) const noexcept { __builtin_prefetch(values + i); }
};

// The sum of two contributions.
struct Sum {
  static constexpr bool kIsFar = true;
  const float *first, *second;

  Sum from(std::size_t at) const noexcept { return {first + at, second + at}; }
  [[gnu::always_inline]] float operator[](std::size_t i) const noexcept { return first[i] + second[i]; }
  [[gnu::always_inline]] void prefetch(std::size_t i) const noexcept {
    __builtin_prefetch(first + i);
    __builtin_prefetch(second + i);
  }
};

// The same, with each contribution scaled and clipped individually.
struct ClippedSum {
  static constexpr bool kIsFar = true;
  Sum sum;
  float first_scale, first_limit, second_scale, second_limit;

  ClippedSum from(std::size_t at) const noexcept {
    return {sum.from(at), first_scale, first_limit, second_scale, second_limit};
  }
  [[gnu::always_inline]] float operator[](std::size_t i) const noexcept {
    return clip(first_scale * sum.first[i], first_limit) + clip(second_scale * sum.second[i], second_limit);
  }
  [[gnu::always_inline]] void prefetch(std::size_t i) const noexcept { sum.prefetch(i); }
};

// In place of an UndoLog, where `out` is not `in`.
struct NoLog {
  [[gnu::always_inline]] static void keep(const float*, std::size_t, std::size_t, std::size_t, std::size_t) noexcept {}
};

// Prefetches all inputs half a page ahead: the processor's own prefetching stops at the ends of pages, and the buffers
// of neighbouring chunks may lie anywhere (pushes of 4 MiB by two writers: 0.92 to 0.96 of the rate of Hogwild!
// updates). `following`: the input that is read after `in`. In place, one stream reads and writes each array, which the
// processor's prefetching does better, except from one chunk to the next (30 million floats, adam: 1.1 to 1.2 of the
// rate).
template <class Rule, std::size_t kSlots, Before kBefore, class Gradient, class Log>
[[gnu::always_inline]] inline void for_each(const Call& shared, float* out, const float* in, std::size_t stride,
                                            const Gradient& given, std::size_t count, const float* following,
                                            const Log& log) noexcept {
  constexpr bool kIsInPlace = !std::is_same_v<Log, NoLog>;
  // Floats.
  constexpr std::size_t kBlock = kIsInPlace ? shm::UndoLog::kBlock : 64, kLine = 16, kAhead = 512, kShort = 2048;
  const Call call = shared;  // a copy, so that the compiler knows that no store to `out` changes it
  const Gradient gradient = given;
  const bool is_long = count > kShort || following != nullptr;
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    if ((is_long || Gradient::kIsFar) && (!kIsInPlace || i + kAhead >= count)) {
      const std::size_t at = i + kAhead;
      const float* next = !is_long               ? nullptr
                          : at < count           ? in + at
                          : following != nullptr ? following + (at - count)
                                                 : nullptr;
      for (std::size_t k = 0; k < kBlock; k += kLine) {
        if (next != nullptr)
          for (std::size_t slot = 0; slot <= kSlots; ++slot) prefetch_to_own(next + slot * stride + k);
        if (next != nullptr || Gradient::kIsFar) gradient.prefetch(at + k);
      }
    }
    log.keep(in + i, stride, 1 + kSlots, i, kBlock);
    PS_SHM_SIMD_LOOP
    for (std::size_t k = 0; k < kBlock; ++k)
      element<Rule, kSlots, kBefore>(call, out + i + k, in + i + k, stride, gradient[i + k]);
  }
  if (i < count) log.keep(in + i, stride, 1 + kSlots, i, count - i);
  PS_SHM_SIMD_LOOP
  for (std::size_t k = i; k < count; ++k) element<Rule, kSlots, kBefore>(call, out + k, in + k, stride, gradient[k]);
}

template <Before kBefore, class Gradient, class Log = NoLog>
[[gnu::always_inline]] inline void run_rule(const Call& call, float* out, const float* in, std::size_t stride,
                                            const Gradient& gradient, std::size_t count, const float* following,
                                            const Log& log = {}) noexcept {
  with_rule(
      call.settings.rule, [&](auto rule) __attribute__((always_inline)) {
        using Rule = decltype(rule);
        constexpr Traits kTraits = Rule::kTraits;
        if constexpr (kTraits.works_versioned)
          for_each<Rule, kTraits.slots_of(false).size(), kTraits.is_sum ? Before::kNothing : kBefore>(
              call, out, in, stride, gradient, count, following, log);
      });
}

#define PS_SHM_RUN(name, before, Gradient)                                                                     \
  PS_SHM_SIMD_CLONES void name(const Call& call, float* out, const float* in, std::size_t stride,              \
                               const Gradient& gradient, std::size_t count, const float* following) noexcept { \
    run_rule<before>(call, out, in, stride, gradient, count, following);                                       \
  }
PS_SHM_RUN(run_plain, Before::kNothing, Given)
PS_SHM_RUN(run_full, Before::kAll, Given)
PS_SHM_RUN(run_sum, Before::kNoClip, Sum)
PS_SHM_RUN(run_clipped_sum, Before::kNoClip, ClippedSum)
#undef PS_SHM_RUN

PS_SHM_SIMD_CLONES void run_plain_in_place(const Call& call, float* values, std::size_t stride, const Given& gradient,
                                           std::size_t count, const float* following,
                                           const shm::UndoLog& log) noexcept {
  run_rule<Before::kNothing>(call, values, values, stride, gradient, count, following, log);
}
PS_SHM_SIMD_CLONES void run_full_in_place(const Call& call, float* values, std::size_t stride, const Given& gradient,
                                          std::size_t count, const float* following, const shm::UndoLog& log) noexcept {
  run_rule<Before::kAll>(call, values, values, stride, gradient, count, following, log);
}

auto* runner_of(const Call& call, const Given&) noexcept { return call.is_plain() ? run_plain : run_full; }
auto* runner_of(const Call&, const Sum&) noexcept { return run_sum; }
auto* runner_of(const Call&, const ClippedSum&) noexcept { return run_clipped_sum; }

PS_SHM_SIMD_CLONES void average(const Call& call, float* out, const float* in, const float* values,
                                std::size_t count) noexcept {
  for_each<Average, 0, Before::kNothing>(call, out, in, 0, Given{values}, count, nullptr, NoLog{});
}

template <class Gradient>
void run(const Call& call, float* out, const float* in, std::size_t stride, const Gradient& gradient, std::size_t count,
         const float* following) noexcept {
  // For rules that divide by the rate: if a schedule has ended at 0, nothing may change.
  if (!std::isfinite(call.inverse_rate)) {
    for (std::size_t k = 0; k <= slots_per_element(call.settings); ++k)
      std::copy_n(in + k * stride, count, out + k * stride);
    return;
  }
  auto* const rule = runner_of(call, gradient);
  if (call.kept == 0.0F) return rule(call, out, in, stride, gradient, count, following);
  const std::size_t slots = slots_per_element(call.settings);
  constexpr std::size_t kBlock = 1024;  // new values are averaged while they are in the first-level cache
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    rule(call, out + at, in + at, stride, gradient.from(at), n, at + n < count ? in + at + n : following);
    average(call, out + slots * stride + at, in + slots * stride + at, out + at, n);
  }
}

static_assert(std::size(Traits{}.slots) + 1 == BFloat16Chunk::kMostSlots, "one more is the average");

// The same on the elements [begin, begin + count) of a chunk of bfloat16, whose first element has the number `first`;
// `gradient` begins with them.
template <class Gradient>
[[gnu::noinline]] void run_rounded(const Call& call, std::uint64_t first, float* out, const float* in,
                                   std::size_t stride, const Gradient& gradient, std::size_t begin,
                                   std::size_t count) noexcept {
  constexpr std::size_t kBlock = BFloat16Chunk::kBlock;
  BFloat16Chunk{out, in, stride, slots_per_element(call.settings)}.for_blocks(
      begin, count, [&](float* after, const float* before, BFloat16Bits* block, std::size_t at, std::size_t n) {
        run(call, after, before, kBlock, gradient.from(at - begin), n, nullptr);
        round_stochastically(block, after, n, call.rounding, first + at);
      });
}

// Not inlined: otherwise the updates that do not depend on t would have to save more registers.
[[gnu::noinline]] void apply_at(const Call& call, std::uint64_t updates, std::uint64_t first, float* out,
                                const float* in, std::size_t stride, const float* gradient, std::size_t count,
                                const float* following) noexcept {
  const Call now = at_update(call, updates);
  if (call.settings.dtype == DType::kBFloat16)
    run_rounded(now, first, out, in, stride, Given{gradient}, 0, count);
  else
    run(now, out, in, stride, Given{gradient}, count, following);
}

// Prefetches the gradient as far ahead as for_each does for its inputs.
template <class Store>
[[gnu::always_inline]] inline void for_gradient(const float* gradient, float scale, float limit, std::size_t count,
                                                Store&& store) noexcept {
  constexpr std::size_t kBlock = 64, kLine = 16, kAhead = 512;  // floats
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (std::size_t k = 0; k < kBlock; k += kLine) __builtin_prefetch(gradient + i + k + kAhead);
    PS_SHM_SIMD_LOOP
    for (std::size_t k = 0; k < kBlock; ++k) store(i + k, clip(scale * gradient[i + k], limit));
  }
  PS_SHM_SIMD_LOOP
  for (std::size_t k = i; k < count; ++k) store(k, clip(scale * gradient[k], limit));
}

PS_SHM_SIMD_CLONES void clipped(float* out, const float* gradient, float scale, float limit,
                                std::size_t count) noexcept {
  for_gradient(
      gradient, scale, limit, count, [=](std::size_t i, float g) __attribute__((always_inline)) { out[i] = g; });
}

PS_SHM_SIMD_CLONES void add_clipped(float* out, const float* in, const float* gradient, float scale, float limit,
                                    std::size_t count) noexcept {
  for_gradient(
      gradient, scale, limit,
      count, [=](std::size_t i, float g) __attribute__((always_inline)) { out[i] = in[i] + g; });
}

}  // namespace

Call resolve(const Settings& settings, float lr, float scale) noexcept {
  return resolve(settings, lr, scale, settings.clip_value);
}

void apply(const Call& call, std::uint64_t updates, std::uint64_t first, float* out, const float* in,
           std::size_t stride, const float* gradient, std::size_t count, const float* following) noexcept {
  if (call.has_t) return apply_at(call, updates, first, out, in, stride, gradient, count, following);
  run(call, out, in, stride, Given{gradient}, count, following);
}

void apply_in_place(const Call& call, std::uint64_t updates, float* values, std::size_t stride, const float* gradient,
                    std::size_t count, const float* following, const shm::UndoLog& log) noexcept {
  const auto run_in_place = [&](const Call& now) {
    if (!std::isfinite(now.inverse_rate)) return;  // as in run()
    (now.is_plain() ? run_plain_in_place : run_full_in_place)(now, values, stride, Given{gradient}, count, following,
                                                              log);
  };
  if (!call.has_t) return run_in_place(call);
  run_in_place(at_update(call, updates));
}

void apply(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
           const float* gradient, float scale, std::size_t count, const float* following) noexcept {
  apply(resolve(settings, moment.lr, scale), moment.updates, moment.first, out, in, stride, gradient, count,
        following);
}

void apply_combined(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
                    std::span<const Contribution> contributions, std::size_t count, const float* following) noexcept {
  if (contributions.size() == 1)
    return apply(settings, moment, out, in, stride, contributions[0].gradient, contributions[0].scale, count,
                 following);
  const bool is_sum = traits_of(settings.rule).is_sum;
  const float clip_value = is_sum ? 0.0F : settings.clip_value;
  const float share = is_sum ? 1.0F : 1.0F / static_cast<float>(contributions.size());
  Call call = resolve(settings, moment.lr, share, 0.0F);
  if (call.has_t) call = at_update(call, moment.updates);
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const float limit = clip_value > 0 ? clip_value : kNone;
  const Contribution last = contributions.back();
  const bool clips = limit != kNone || std::any_of(contributions.begin(), contributions.end(),
                                                   [](const Contribution& one) { return one.scale != 1.0F; });
  // out = rule(in, first + last) for n elements from `begin` on; `first` has only those elements.
  const auto run_with = [&](const Contribution& first, float first_limit, std::size_t begin, std::size_t n,
                            const float* next) {
    const Sum sum{first.gradient, last.gradient + begin};
    const auto run_on = [&](const auto& gradient) {
      if (settings.dtype == DType::kBFloat16)
        run_rounded(call, moment.first, out, in, stride, gradient, begin, n);
      else
        run(call, out + begin, in + begin, stride, gradient, n, next);
    };
    if (clips)
      run_on(ClippedSum{sum, first.scale, first_limit, last.scale, limit});
    else
      run_on(sum);
  };
  if (contributions.size() == 2) return run_with(contributions[0], limit, 0, count, following);
  constexpr std::size_t kBlock = 1024;  // 4 KiB of sums stay in the first-level cache
  float sum[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    const float* before = nullptr;
    for (const Contribution& one : contributions.first(contributions.size() - 1)) {
      accumulate(sum, before, one.gradient + at, one.scale, clip_value, n);
      before = sum;
    }
    run_with({sum, 1.0F}, kNone, at, n, at + n < count ? in + at + n : following);
  }
}

void accumulate(float* out, const float* in, const float* gradient, float scale, float clip_value,
                std::size_t count) noexcept {
  const float limit = clip_value > 0 ? clip_value : std::numeric_limits<float>::infinity();
  if (in == nullptr)
    clipped(out, gradient, scale, limit, count);
  else
    add_clipped(out, in, gradient, scale, limit, count);
}

}  // namespace ps_shm::update
