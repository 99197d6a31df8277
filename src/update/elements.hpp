// Updates of elements that lie together with their state, for layouts that change elements where they are; and how such
// an element is read. What differs there from versioned chunks: rule_table.hpp. All are wait-free.
#pragma once

#include <cstddef>

#include "update/rule_table.hpp"

namespace ps::update {

// One element's update: element(x, g) changes the kFloats floats at x.
template <class Rule, bool kPlain>
struct ElementUpdate {
  static constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(true).size();
  Call call;

  [[gnu::always_inline]] void operator()(float* x, float g) const noexcept {
    float w = x[0];
    if constexpr (!kPlain) {
      g = clip(call.scale * g, call.limit) + call.l2 * w;
      w -= call.decay * w;
    }
    if constexpr (requires { Rule::element_step(call, x, w, g); })
      Rule::element_step(call, x, w, g);
    else
      Rule::step(call, x, w, g);
  }
};

// A row's: add what add_to_state() says to the row's state, then update its elements by with_state(state).
template <class Rule, bool kPlain>
struct RowUpdate {
  Call call;

  float add_to_state(const float* gradient, std::size_t count) const noexcept {
    return Rule::template row_state<kPlain>(call, gradient, count);
  }
  ElementUpdate<typename Rule::Elements, kPlain> with_state(float state) const noexcept {
    ElementUpdate<typename Rule::Elements, kPlain> update{call};
    update.call.rate = Rule::row_rate(call, state);
    return update;
  }
};

// Calls body(update) with an ElementUpdate or a RowUpdate.
template <class Body>
decltype(auto) with_element_update(const Settings& settings, float learning_rate, float scale, Body&& body) {
  const Call call = resolve(settings, learning_rate, scale, settings.clip_value);
  const auto run = [&]<bool kPlain>() -> decltype(auto) {
    return with_rule(settings.rule, [&](auto rule) -> decltype(auto) {
      using Rule = decltype(rule);
      if constexpr (Rule::kTraits.has_row_state())
        return body(RowUpdate<Rule, kPlain>{call});
      else
        return body(ElementUpdate < Rule, kPlain || Rule::kTraits.is_sum > {call});
    });
  };
  return call.is_plain() ? run.template operator()<true>() : run.template operator()<false>();
}

// One element's change past its rule, by rules.hpp's Change: change(x, value) changes the kFloats floats at x.
template <std::size_t kRecord>
struct ElementAdd {
  static constexpr std::size_t kFloats = kRecord;
  void operator()(float* x, float delta) const noexcept { x[0] += delta; }
};

template <std::size_t kRecord>
struct ElementAssign {
  static constexpr std::size_t kFloats = kRecord;
  void operator()(float* x, float value) const noexcept { x[0] = value; }
};

// Where the value is a function of state.
template <class Rule>
struct ComputedChange {
  static constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(true).size();
  Settings settings;
  float learning_rate;
  bool adds;
  void operator()(float* x, float value) const noexcept {
    const float before = adds ? Rule::value_of(settings, learning_rate)(x) : 0.0F;
    Rule::set_element(settings, learning_rate, x, adds ? before + value : value);
  }
};

// With a row's state, where the rule keeps one, it sets that first.
template <class Rule>
struct ElementReset {
  static constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(true).size();
  Settings settings;
  float learning_rate;
  void operator()(float* x, float value) const noexcept { initialise_elements(settings, learning_rate, &value, x, 1); }
  float row_state() const noexcept requires(Rule::kTraits.has_row_state()) {
    return first_row_state(settings, learning_rate);
  }
};

// Calls body(change) with one of these. Requires: not Change::kStep.
template <class Body>
decltype(auto) with_element_change(const Settings& settings, Change how, float learning_rate, Body&& body) {
  return with_rule(settings.rule, [&](auto rule) -> decltype(auto) {
    using Rule = decltype(rule);
    constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(true).size();
    if (how == Change::kReset) return body(ElementReset<Rule>{settings, learning_rate});
    if constexpr (requires { Rule::value_of(settings, 0.0F); })
      return body(ComputedChange<Rule>{settings, learning_rate, how == Change::kAdd});
    else if (how == Change::kAdd)
      return body(ElementAdd<kFloats>{});
    else
      return body(ElementAssign<kFloats>{});
  });
}

// Reads an element's value, where that is its first float.
struct FirstFloat {
  static constexpr std::size_t kFloats = 1;  // that are read
  float operator()(const float* x) const noexcept { return x[0]; }
};

template <class Body, class First, class... Rest>
decltype(auto) with_value_of(RuleList<First, Rest...>, const Settings& settings, float learning_rate, Body&& body) {
  if constexpr (First::kTraits.reads_by_rate)
    if (settings.rule == First::kTraits.rule) return body(First::value_of(settings, learning_rate));
  if constexpr (sizeof...(Rest) == 0)
    return body(FirstFloat{});
  else
    return with_value_of(RuleList<Rest...>{}, settings, learning_rate, body);
}

// Calls body(value_of) with that, or with the rule's own.
template <class Body>
decltype(auto) with_element_value(const Settings& settings, float learning_rate, Body&& body) {
  return with_value_of(Rules{}, settings, learning_rate, body);
}

}  // namespace ps::update
