// Update rules of an element that lies together with its state, {w}, {w, n}, {z, n} or {w, m, v, t}: for layouts that
// change elements where they are. Formulas and sources: rules.hpp; what differs from there:
//
//   all         state changes only with its element's pushes (lazy updates: TensorFlow's LazyAdam, PyTorch's SparseAdam)
//   adam, adamw t counts the element's own pushes, as a float: exact up to 2^24, where the corrections are 1 long since
//   ftrl        w is not kept but computed of z and n, as in McMahan et al. 2013, so it follows a rate that changes:
//               w = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((ftrl_beta + sqrt(n)) / r + l2)
//               z += g'' - (sqrt(n + g''^2) - sqrt(n)) / r * w; n += g''^2
//   rowwise_adagrad  one n for a row: n += mean of the row's g'^2; w = w' - r * g' / (sqrt(n) + epsilon). The state of
//               a row takes 1 / row_size of Adagrad's; frequent and rare elements of one row share a rate. l2 enters g'
//               but not n. (Gupta et al., Training recommender systems at scale, 2020, and FBGEMM, section rowwise)
// All are wait-free.
#pragma once

#include <cmath>
#include <cstddef>

#include "update/rule_steps.hpp"

namespace ps::update {

// w of {z, n}.
inline float ftrl_value(const Settings& settings, float inverse_rate, float z, float n) noexcept {
  const float left = std::fabs(z) - settings.l1;
  if (!(left > 0)) return left == left ? 0.0F : left;  // NaN is passed on
  return -std::copysign(left, z) / ((settings.ftrl_beta + std::sqrt(n)) * inverse_rate + settings.l2);
}

// What lies beside each other, in floats.
template <class Rule>
struct InPlace {
  static constexpr std::size_t kFloats = 1 + Rule::kSlots;
  static void step(const Call& call, float* x, float w, float g) noexcept { Rule::step(call, x, w, g); }
};

template <>
struct InPlace<Adam> {
  static constexpr std::size_t kFloats = 4;
  static void step(const Call& shared, float* x, float w, float g) noexcept {
    Call call = shared;
    x[3] += 1;
    const float root = std::sqrt(1 - std::pow(call.settings.beta2, x[3]));
    call.rate = shared.rate * root / (1 - std::pow(call.settings.beta1, x[3]));
    call.epsilon = call.settings.epsilon * root;
    Adam::step(call, x, w, g);
  }
};

template <>
struct InPlace<Ftrl> {
  static constexpr std::size_t kFloats = 2;
  static void step(const Call& call, float* x, float, float g) noexcept {
    const float w = ftrl_value(call.settings, call.inverse_rate, x[0], x[1]);
    const float n = x[1] + g * g;
    x[0] += g - (std::sqrt(n) - std::sqrt(x[1])) * call.inverse_rate * w;
    x[1] = n;
  }
};

// One element's update: element(x, g) changes the kFloats floats at x.
template <class Rule, bool kPlain>
struct ElementUpdate {
  static constexpr std::size_t kFloats = InPlace<Rule>::kFloats;
  Call call;

  [[gnu::always_inline]] void operator()(float* x, float g) const noexcept {
    float w = x[0];
    if constexpr (!kPlain) {
      g = clip(call.scale * g, call.limit) + call.l2 * w;
      w -= call.decay * w;
    }
    InPlace<Rule>::step(call, x, w, g);
  }
};

// A row's: add what add_to_state() says to the row's n, then update its elements by with_state(n).
template <bool kPlain>
struct RowUpdate {
  Call call;

  float add_to_state(const float* gradient, std::size_t count) const noexcept {
    float squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float g = kPlain ? gradient[i] : clip(call.scale * gradient[i], call.limit);
      squares += g * g;
    }
    return squares / static_cast<float>(count);
  }
  ElementUpdate<Sgd, kPlain> with_state(float n) const noexcept {
    ElementUpdate<Sgd, kPlain> update{call};
    update.call.rate = call.rate / (std::sqrt(n) + call.epsilon);
    return update;
  }
};

// Calls body(update) with an ElementUpdate or a RowUpdate.
template <class Body>
decltype(auto) with_element_update(const Settings& settings, float learning_rate, float scale, Body&& body) {
  Call call = resolve(settings, {learning_rate, 0}, scale, settings.clip_value);
  const auto run = [&]<bool kPlain>() -> decltype(auto) {
    switch (settings.rule) {
      case UpdateRule::kAdd:
        return body(ElementUpdate<Add, true>{call});
      case UpdateRule::kSgd:
        break;
      case UpdateRule::kMomentum:
        return body(ElementUpdate<Momentum, kPlain>{call});
      case UpdateRule::kNesterov:
        return body(ElementUpdate<Nesterov, kPlain>{call});
      case UpdateRule::kAdagrad:
        return body(ElementUpdate<Adagrad, kPlain>{call});
      case UpdateRule::kRmsProp:
        return body(ElementUpdate<RmsProp, kPlain>{call});
      case UpdateRule::kAdam:
      case UpdateRule::kAdamW:
        call.rate = learning_rate;
        return body(ElementUpdate<Adam, kPlain>{call});
      case UpdateRule::kFtrl:
        return body(ElementUpdate<Ftrl, kPlain>{call});
      case UpdateRule::kRowwiseAdagrad:
        return body(RowUpdate<kPlain>{call});
    }
    return body(ElementUpdate<Sgd, kPlain>{call});
  };
  return call.is_plain() ? run.template operator()<true>() : run.template operator()<false>();
}

// Reads an element's value.
struct FirstFloat {
  static constexpr std::size_t kFloats = 1;  // that are read
  float operator()(const float* x) const noexcept { return x[0]; }
};
struct FtrlValue {
  static constexpr std::size_t kFloats = 2;
  Settings settings;
  float inverse_rate;
  float operator()(const float* x) const noexcept { return ftrl_value(settings, inverse_rate, x[0], x[1]); }
};

// Calls body(value_of) with one of the two.
template <class Body>
decltype(auto) with_element_value(const Settings& settings, float learning_rate, Body&& body) {
  if (settings.rule == UpdateRule::kFtrl) return body(FtrlValue{settings, 1.0F / learning_rate});
  return body(FirstFloat{});
}

// The element's floats as they begin, where its value is `value`.
inline void initialise_element(const Settings& settings, float learning_rate, float value, float* x) noexcept {
  x[0] = value;
  switch (settings.rule) {
    case UpdateRule::kAdd:
    case UpdateRule::kSgd:
    case UpdateRule::kRowwiseAdagrad:
      return;
    case UpdateRule::kAdagrad:
      x[1] = settings.initial_accumulator;
      return;
    case UpdateRule::kFtrl:
      x[0] = value == 0
                 ? 0.0F
                 : -value * (settings.ftrl_beta / learning_rate + settings.l2) - std::copysign(settings.l1, value);
      x[1] = 0;
      return;
    case UpdateRule::kAdam:
    case UpdateRule::kAdamW:
      x[2] = x[3] = 0;
      [[fallthrough]];
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
    case UpdateRule::kRmsProp:
      x[1] = 0;
  }
}

}  // namespace ps::update
