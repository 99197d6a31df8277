// Updates of elements that lie together with their state, for layouts that update elements in place; and how such an
// element is read. The differences to versioned chunks are listed in rule_table.hpp. All functions are wait-free.
#pragma once

#include <cstddef>

#include "update/rule_table.hpp"

namespace ps_shm::update {

// The update of one element: element(x, g) changes the kFloats floats at x.
template <class ItsRule, bool kPlain>
struct ElementUpdate {
  using Rule = ItsRule;
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

// The update of a row: add the result of add_to_state() to the row's state, then update its elements by
// with_state(state).
template <class ItsRule, bool kPlain>
struct RowUpdate {
  using Rule = ItsRule;
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
decltype(auto) with_element_update(const Settings& settings, float lr, float scale, Body&& body) {
  const Call call = resolve(settings, lr, scale, settings.clip_value);
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

// A change of one element that bypasses the optimizer (Change of rules.hpp): change(x, value) changes the kFloats
// floats at x. is_sum(): whether it adds the value.
template <std::size_t kRecord>
struct ElementAdd {
  static constexpr std::size_t kFloats = kRecord;
  static constexpr bool is_sum() noexcept { return true; }
  void operator()(float* x, float delta) const noexcept { x[0] += delta; }
};

template <std::size_t kRecord>
struct ElementAssign {
  static constexpr std::size_t kFloats = kRecord;
  static constexpr bool is_sum() noexcept { return false; }
  void operator()(float* x, float value) const noexcept { x[0] = value; }
};

// For rules whose value is a function of the state.
template <class Rule>
struct ComputedChange {
  static constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(true).size();
  Settings settings;
  float lr;
  bool adds;
  bool is_sum() const noexcept { return adds; }
  void operator()(float* x, float value) const noexcept {
    const float before = adds ? Rule::value_of(settings, lr)(x) : 0.0F;
    Rule::set_element(settings, lr, x, adds ? before + value : value);
  }
};

// If the rule keeps row state, the row's state is reset first.
template <std::size_t kRecord, bool kHasRowState>
struct ElementReset {
  static constexpr std::size_t kFloats = kRecord;
  Settings settings;
  float lr;
  static constexpr bool is_sum() noexcept { return false; }
  void operator()(float* x, float value) const noexcept { initialise_elements(settings, lr, &value, x, 1); }
  float row_state() const noexcept requires kHasRowState {
    return first_row_state(settings, lr);
  }
};

// Calls body(change) with the ElementReset of the rule.
template <class Body>
decltype(auto) with_element_reset(const Settings& settings, float lr, Body&& body) {
  return with_rule(settings.rule, [&](auto rule) -> decltype(auto) {
    constexpr auto& kTraits = decltype(rule)::kTraits;
    return body(ElementReset<1 + kTraits.slots_of(true).size(), kTraits.has_row_state()>{settings, lr});
  });
}

// Calls body(change) with one of these. Requires: not Change::kStep.
template <class Body>
decltype(auto) with_element_change(const Settings& settings, Change how, float lr, Body&& body) {
  if (how == Change::kReset) return with_element_reset(settings, lr, body);
  return with_rule(settings.rule, [&](auto rule) -> decltype(auto) {
    using Rule = decltype(rule);
    constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(true).size();
    if constexpr (requires { Rule::value_of(settings, 0.0F); })
      return body(ComputedChange<Rule>{settings, lr, how == Change::kAdd});
    else if (how == Change::kAdd)
      return body(ElementAdd<kFloats>{});
    else
      return body(ElementAssign<kFloats>{});
  });
}

// Reads the value of an element whose first float is the value.
struct FirstFloat {
  static constexpr std::size_t kFloats = 1;  // number of floats read
  float operator()(const float* x) const noexcept { return x[0]; }
};

// What reads the value of an element under this rule: its first float, or the rule's own function of the state.
template <class Rule>
auto element_value_of(const Settings& settings, float lr) noexcept {
  if constexpr (Rule::kTraits.reads_by_rate)
    return Rule::value_of(settings, lr);
  else
    return FirstFloat{};
}

template <class Body, class First, class... Rest>
decltype(auto) with_value_of(RuleList<First, Rest...>, const Settings& settings, float lr, Body&& body) {
  if constexpr (First::kTraits.reads_by_rate)
    if (settings.rule == First::kTraits.rule) return body(element_value_of<First>(settings, lr));
  if constexpr (sizeof...(Rest) == 0)
    return body(FirstFloat{});
  else
    return with_value_of(RuleList<Rest...>{}, settings, lr, body);
}

// Calls body(value_of) with FirstFloat or with the rule's own function.
template <class Body>
decltype(auto) with_element_value(const Settings& settings, float lr, Body&& body) {
  return with_value_of(Rules{}, settings, lr, body);
}

}  // namespace ps_shm::update
