// The update rules, one row each: the traits of a rule (traits.hpp), and its arithmetic for one element.
// Used by the loops over elements: rules.cpp (versioned chunks), elements.hpp (in place). All is wait-free.
//
// With w the value, g the pushed gradient, r the learning rate, t the number of this update (from 1) since the chunk's
// state began
//   g' = clip(scale * g) + l2 * w           clip to [-clip_value, clip_value]; then, decoupled weight decay:
//   w' = w - r * weight_decay * w           Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019
//   add       w += scale * g                neither clipped, nor decayed
//   sgd       w = w' - r * g'               Robbins and Monro 1951
//   momentum  m = momentum * m + g'; w = w' - r * m                  Polyak 1964, as TensorFlow's MomentumOptimizer
//   nesterov  m = momentum * m + g'; w = w' - r * (g' + momentum * m)  Sutskever et al. 2013, as TensorFlow's and PyTorch's
//   adagrad   n += g'^2; w = w' - r * g' / (sqrt(n) + epsilon)       Duchi, Hazan, Singer 2011; n starts at initial_accumulator
//   rmsprop   n = rho * n + (1 - rho) * g'^2; w = w' - r * g' / (sqrt(n) + epsilon)   Tieleman and Hinton 2012
//   adam      m = beta1 * m + (1 - beta1) * g'; v = beta2 * v + (1 - beta2) * g'^2
//             w = w' - r * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon * sqrt(1 - beta2^t))
//                                                                    Kingma and Ba 2015, algorithm 1
//   adamw     the same; it differs in its default weight_decay       Loshchilov and Hutter 2019, without its schedule factor
//   ftrl      n += g''^2; q = (ftrl_beta + sqrt(n)) / r; z += g'' - (q - q of the step before) * w,
//             with g'' = clip(scale * g); w = 0 if |z| <= l1, else -(z - sign(z) * l1) / (q + l2)
//                                                                    McMahan et al., Ad Click Prediction, 2013, algorithm 1
//             with its sigma as defined in section 3, 1/eta - 1/eta of the step before, so that a changing rate
//             does not change w (algorithm 1 assumes a constant rate)
//             z starts at the value for which the formula gives the initial value
//   ema       a further slot after the rule's own: a = d * a + (1 - d) * w with d = min(ema, (1 + t) / (10 + t)); it
//             starts at the initial value             TensorFlow's ExponentialMovingAverage with num_updates
//
// Adds and assigns bypass the rule (changes.cpp). State stays unchanged, with these exceptions:
//   ftrl        z = -w * ((ftrl_beta + sqrt(n)) / r + l2) - sign(w) * l1, or 0 if w is 0: solved for, so that the next
//               step continues from w
//   ema         an assign also sets the average; an add leaves it unchanged
//
// In place an element lies together with its state, {w}, {w, n}, {z, n} or {w, m, v, t}. The differences there:
//   all         state changes only with its element's pushes (lazy updates: TensorFlow's LazyAdam, PyTorch's SparseAdam)
//   adam, adamw t counts the element's own pushes, as a float: exact up to 2^24, long after the corrections became 1
//   ftrl        w is not stored but computed from z and n, as in McMahan et al. 2013, so it follows a changing rate:
//               w = 0 if |z| <= l1, else -(z - sign(z) * l1) / ((ftrl_beta + sqrt(n)) / r + l2)
//               z += g'' - (sqrt(n + g''^2) - sqrt(n)) / r * w; n += g''^2
//   rowwise_adagrad  one n for a row: n += mean of the row's g'^2; w = w' - r * g' / (sqrt(n) + epsilon). The state of
//               a row is 1 / row_size of Adagrad's; frequent and rare elements of one row share a rate. l2 enters g'
//               but not n. (Gupta et al., Training recommender systems at scale, 2020, and FBGEMM, section rowwise)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "update/call.hpp"
#include "update/rules.hpp"
#include "update/traits.hpp"

namespace ps_shm::update {

inline constexpr HyperParameter kUsesMomentum{&Optimizer::momentum, &Settings::momentum};
inline constexpr HyperParameter kUsesBeta1{&Optimizer::beta1, &Settings::beta1};
inline constexpr HyperParameter kUsesBeta2{&Optimizer::beta2, &Settings::beta2};
inline constexpr HyperParameter kUsesRho{&Optimizer::rho, &Settings::rho};
inline constexpr HyperParameter kUsesEpsilon{&Optimizer::epsilon, &Settings::epsilon};
inline constexpr HyperParameter kUsesAccumulator{&Optimizer::initial_accumulator, &Settings::initial_accumulator};
inline constexpr HyperParameter kUsesFtrlBeta{&Optimizer::ftrl_beta, &Settings::ftrl_beta};
inline constexpr HyperParameter kUsesL1{&Optimizer::l1, &Settings::l1};

inline float first_accumulator(const Settings& settings, float, float) noexcept { return settings.initial_accumulator; }

// A row of the table has
//   kTraits       its properties
//   Steps         the row whose arithmetic it uses: its own, or another rule's
//   step          versioned: x[0] is the element's value, x[1] and so on are its slots, w and g are w' and g' above
// and, where needed,
//   set_rate      sets what else depends on the rate; set_update sets what depends on t, for `step` only
//   element_step  in place, if the arithmetic differs: the element's floats begin at x
//   value_of      in place, if the value is not the first float: returns a function that reads the value
//   set_value, set_element   if state depends on the value: sets the value, versioned and in place; state that already
//                 gives that value stays
//   row_state, row_rate, Elements   what a push adds to a row's state; the resulting rate; the row whose step uses it

struct Add {
  using Steps = Add;
  static constexpr Traits kTraits{.rule = UpdateRule::kAdd,
                                  .name = "add",
                                  .lr = 0.1F,  // of the local steps whose sum is pushed
                                  .is_sum = true,
                                  .adds_in_place = true};

  [[gnu::always_inline]] static void step(const Call& call, float* x, float, float g) noexcept {
    x[0] += call.scale * g;
  }
};

struct Sgd {
  using Steps = Sgd;
  static constexpr Traits kTraits{
      .rule = UpdateRule::kSgd, .name = "sgd", .lr = 0.1F, .adds_in_place = true};

  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[0] = w - call.rate * g;
  }
};

struct Momentum {
  using Steps = Momentum;
  static constexpr Traits kTraits{.rule = UpdateRule::kMomentum,
                                  .name = "momentum",
                                  .lr = 0.01F,
                                  .slots = {{"momentum"}},
                                  .hyper_parameters = {kUsesMomentum}};

  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.momentum * x[1] + g;
    x[0] = w - call.rate * x[1];
  }
};

struct Nesterov {
  using Steps = Nesterov;
  static constexpr Traits kTraits{.rule = UpdateRule::kNesterov,
                                  .name = "nesterov",
                                  .lr = 0.01F,
                                  .slots = {{"momentum"}},
                                  .hyper_parameters = {kUsesMomentum}};

  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.momentum * x[1] + g;
    x[0] = w - call.rate * (g + call.settings.momentum * x[1]);
  }
};

struct Adagrad {
  using Steps = Adagrad;
  static constexpr Traits kTraits{.rule = UpdateRule::kAdagrad,
                                  .name = "adagrad",
                                  .lr = 0.05F,
                                  .slots = {{"n", first_accumulator}},
                                  .hyper_parameters = {kUsesEpsilon, kUsesAccumulator}};

  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] += g * g;
    x[0] = w - call.rate * g / (std::sqrt(x[1]) + call.epsilon);
  }
};

struct RmsProp {
  using Steps = RmsProp;
  static constexpr Traits kTraits{.rule = UpdateRule::kRmsProp,
                                  .name = "rmsprop",
                                  .lr = 0.001F,
                                  .slots = {{"n"}},
                                  .hyper_parameters = {kUsesEpsilon, kUsesRho}};

  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.rho * x[1] + (1 - call.settings.rho) * (g * g);
    x[0] = w - call.rate * g / (std::sqrt(x[1]) + call.epsilon);
  }
};

struct Adam {
  using Steps = Adam;
  static constexpr Traits kTraits{.rule = UpdateRule::kAdam,
                                  .name = "adam",
                                  .lr = 0.001F,
                                  .slots = {{"m"}, {"v"}},
                                  .in_place_slots = {{"m"}, {"v"}, {kUpdateCount}},
                                  .hyper_parameters = {kUsesEpsilon, kUsesBeta1, kUsesBeta2}};

  static void set_update(Call& call, double t) noexcept {
    const double root = std::sqrt(1 - std::pow(double(call.settings.beta2), t));
    call.rate = static_cast<float>(double(call.rate) * root / (1 - std::pow(double(call.settings.beta1), t)));
    call.epsilon = static_cast<float>(double(call.settings.epsilon) * root);
  }
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.beta1 * x[1] + (1 - call.settings.beta1) * g;
    x[2] = call.settings.beta2 * x[2] + (1 - call.settings.beta2) * (g * g);
    x[0] = w - call.rate * x[1] / (std::sqrt(x[2]) + call.epsilon);  // both already corrected for the bias
  }
  static void element_step(const Call& shared, float* x, float w, float g) noexcept {
    Call call = shared;
    x[3] += 1;
    const float root = std::sqrt(1 - std::pow(call.settings.beta2, x[3]));
    call.rate = shared.rate * root / (1 - std::pow(call.settings.beta1, x[3]));
    call.epsilon = call.settings.epsilon * root;
    step(call, x, w, g);
  }
};

struct AdamW : Adam {
  static constexpr Traits kTraits{.rule = UpdateRule::kAdamW,
                                  .name = "adamw",
                                  .lr = 0.001F,
                                  .weight_decay = 0.01F,
                                  .slots = {{"m"}, {"v"}},
                                  .in_place_slots = {{"m"}, {"v"}, {kUpdateCount}},
                                  .hyper_parameters = {kUsesEpsilon, kUsesBeta1, kUsesBeta2}};
};

struct Ftrl {
  using Steps = Ftrl;
  // The z that gives `value`, with this n.
  static float z_of(const Settings& settings, float lr, float value, float n) noexcept {
    if (value == 0) return 0.0F;
    return -value * ((settings.ftrl_beta + std::sqrt(n)) / (lr * settings.lr_scale) + settings.l2) -
           std::copysign(settings.l1, value);
  }
  static float first_z(const Settings& settings, float lr, float value) noexcept {
    return z_of(settings, lr, value, 0.0F);
  }
  static constexpr Traits kTraits{.rule = UpdateRule::kFtrl,
                                  .name = "ftrl",
                                  .lr = 0.1F,
                                  .slots = {{"n"}, {"z", first_z}},
                                  .in_place_slots = {{"n"}},
                                  .first_in_place = first_z,
                                  .hyper_parameters = {kUsesFtrlBeta, kUsesL1},
                                  .regularizes_itself = true,
                                  .reads_by_rate = true};

  static void set_rate(Call& call, float lr) noexcept { call.inverse_rate = 1.0F / lr; }
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    const float n = x[1] + g * g, root = std::sqrt(n);
    const float denominator = (call.settings.ftrl_beta + root) * call.inverse_rate + call.settings.l2;
    // No branch, so that it vectorises. Where w is not 0, the closed form of the previous step gives sum(s * w) from w.
    const float l1 = call.settings.l1, moved = std::copysign(l1, x[2]) - denominator * w;
    const float z = g + (std::fabs(x[2]) > l1 ? moved : x[2]);
    // The excess of |z| over l1 becomes 0 where the value must be 0; the denominator is kept from 0 / 0 there.
    const float left = std::fabs(z) - l1;
    constexpr float kLeast = std::numeric_limits<float>::min();
    x[0] = std::copysign(left < 0 ? 0 : left, -z) / (denominator < kLeast ? kLeast : denominator);
    x[1] = n;
    x[2] = z;
  }

  struct Value {
    static constexpr std::size_t kFloats = 2;  // number of floats read
    Settings settings;
    float inverse_rate;

    float operator()(const float* x) const noexcept { return of(settings, inverse_rate, x[0], x[1]); }
    static float of(const Settings& settings, float inverse_rate, float z, float n) noexcept {
      const float left = std::fabs(z) - settings.l1;
      if (!(left > 0)) return left == left ? 0.0F : left;  // NaN is passed on
      return -std::copysign(left, z) / ((settings.ftrl_beta + std::sqrt(n)) * inverse_rate + settings.l2);
    }
  };
  static Value value_of(const Settings& settings, float lr) noexcept {
    return {settings, 1.0F / (lr * settings.lr_scale)};
  }
  static void set_value(const Settings& settings, float lr, float* x, float value) noexcept {
    if (value != x[0]) x[2] = z_of(settings, lr, value, x[1]);
    x[0] = value;
  }
  static void set_element(const Settings& settings, float lr, float* x, float value) noexcept {
    if (value != value_of(settings, lr)(x)) x[0] = z_of(settings, lr, value, x[1]);
  }
  static void element_step(const Call& call, float* x, float, float g) noexcept {
    const float w = Value::of(call.settings, call.inverse_rate, x[0], x[1]);
    const float n = x[1] + g * g;
    x[0] += g - (std::sqrt(n) - std::sqrt(x[1])) * call.inverse_rate * w;
    x[1] = n;
  }
};

struct RowwiseAdagrad {
  using Steps = RowwiseAdagrad;
  using Elements = Sgd;
  static constexpr Traits kTraits{.rule = UpdateRule::kRowwiseAdagrad,
                                  .name = "rowwise_adagrad",
                                  .lr = 0.05F,
                                  .row_slot = {"n of row", first_accumulator},
                                  .hyper_parameters = {kUsesEpsilon, kUsesAccumulator},
                                  .works_versioned = false};

  template <bool kPlain>
  static float row_state(const Call& call, const float* gradient, std::size_t count) noexcept {
    float squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float g = kPlain ? gradient[i] : clip(call.scale * gradient[i], call.limit);
      squares += g * g;
    }
    return squares / static_cast<float>(count);
  }
  static float row_rate(const Call& call, float n) noexcept { return call.rate / (std::sqrt(n) + call.epsilon); }
};

// The table, in the order of the rules' numbers.
template <class... Rows>
struct RuleList {
  static constexpr Traits kTraits[] = {Rows::kTraits...};
};
using Rules = RuleList<Add, Sgd, Momentum, Nesterov, Adagrad, RmsProp, Adam, AdamW, Ftrl, RowwiseAdagrad>;

template <class... Rows>
consteval bool is_in_order(RuleList<Rows...>) {
  std::uint32_t number = 0;
  return ((static_cast<std::uint32_t>(Rows::kTraits.rule) == ++number) && ...);
}
static_assert(is_in_order(Rules{}), "a rule would be looked up in another one's row");

template <class Row>
consteval bool says_what_it_does() {
  constexpr bool has_step = requires(Call call, float* x) { Row::step(call, x, 0.0F, 0.0F); };
  constexpr bool has_value = requires(Settings settings) { Row::value_of(settings, 0.0F); };
  constexpr bool has_row_rate = requires(Call call) { Row::row_rate(call, 0.0F); };
  const Traits& traits = Row::kTraits;
  return traits.works_versioned == has_step && traits.reads_by_rate == has_value &&
         traits.has_row_state() == has_row_rate;
}
template <class... Rows>
consteval bool say_what_they_do(RuleList<Rows...>) {
  return (says_what_it_does<Rows>() && ...);
}
static_assert(say_what_they_do(Rules{}), "what is asked of a rule would not be what its arithmetic can");

// Whether the rule uses the arithmetic of the row `Steps`.
template <class Steps, class... Rows>
[[gnu::always_inline]] constexpr bool has_steps(RuleList<Rows...>, UpdateRule rule) noexcept {
  return ((std::is_same_v<typename Rows::Steps, Steps> && rule == Rows::kTraits.rule) || ...);
}

template <class Body, class First, class... Rest>
[[gnu::always_inline]] inline decltype(auto) with_rule_of(RuleList<First, Rest...>, UpdateRule rule, Body&& body) {
  if constexpr (sizeof...(Rest) == 0) {
    return body(First{});
  } else {
    if constexpr (std::is_same_v<typename First::Steps, First>)
      if (has_steps<First>(Rules{}, rule)) return body(First{});
    return with_rule_of(RuleList<Rest...>{}, rule, body);
  }
}

// Calls body(row) with the row whose arithmetic the rule uses. Requires: the rule has a row.
template <class Body>
[[gnu::always_inline]] inline decltype(auto) with_rule(UpdateRule rule, Body&& body) {
  return with_rule_of(Rules{}, rule, body);
}

// What a call's elements have in common, except for t.
inline Call resolve(const Settings& settings, float lr, float scale, float clip_value) noexcept {
  const float rate = lr * settings.lr_scale;
  Call call{.settings = settings, .rate = rate, .scale = scale, .epsilon = settings.epsilon};
  with_rule(
      settings.rule, [&](auto rule) __attribute__((always_inline)) {
        using Rule = decltype(rule);
        if constexpr (!Rule::kTraits.is_sum) {
          if (clip_value > 0) call.limit = clip_value;
          if constexpr (!Rule::kTraits.regularizes_itself) {
            call.l2 = settings.l2;
            call.decay = rate * settings.weight_decay;
          }
          if constexpr (requires { Rule::set_rate(call, rate); }) Rule::set_rate(call, rate);
          call.has_t = settings.ema > 0 || requires { Rule::set_update(call, 1.0); };
        }
      });
  call.has_t = call.has_t || settings.dtype == DType::kBFloat16;
  return call;
}

}  // namespace ps_shm::update
