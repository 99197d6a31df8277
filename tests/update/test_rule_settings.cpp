// What the rows of the update rules define about slots and hyper-parameters.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "update/rules.hpp"

using namespace ps_shm;
using namespace ps_shm::update;

namespace {

// Whether the enumeration has a rule of that number: for all others a compiler can only print a cast.
template <UpdateRule kRule>
constexpr bool has_name() {
  return std::string_view(__PRETTY_FUNCTION__).find("UpdateRule)") == std::string_view::npos;
}

template <std::size_t... kNumbers>
std::vector<bool> have_names(std::index_sequence<kNumbers...>) {
  return {has_name<UpdateRule{kNumbers}>()...};
}

}  // namespace

TEST_CASE("every rule of the enumeration has a row, with a number and a name of its own") {
  std::set<std::string> names;
  for (const Traits& traits : all_rules()) {
    CHECK(find_rule(std::uint32_t(traits.rule)) == &traits);
    CHECK(&traits_of(traits.rule) == &traits);
    CHECK(std::string(to_string(traits.rule)) == traits.name);
    CHECK(default_lr(traits.rule) > 0);
    CHECK(names.insert(traits.name).second);
  }
  const std::vector<bool> are_named = have_names(std::make_index_sequence<64>{});
  for (std::uint32_t number = 0; number < are_named.size(); ++number) {
    CAPTURE(number);
    CHECK((find_rule(number) != nullptr) == are_named[number]);
  }
}

TEST_CASE("a number without a rule has no row") {
  for (const std::uint32_t number : {0U, 99U, ~0U}) {
    CHECK(find_rule(number) == nullptr);
    CHECK(std::string(to_string(UpdateRule{number})) == "unknown");
    CHECK(default_lr(UpdateRule{number}) == 0);
    CHECK(slots_per_element(UpdateRule{number}, false) == 0);
  }
}

TEST_CASE("slots have counts and names") {
  const auto names_of = [](UpdateRule rule, bool averaged, bool in_place) {
    std::string all;
    for (std::size_t k = 0; k < slots_per_element(rule, averaged, in_place); ++k)
      all += std::string(k == 0 ? "" : " ") + slot_name(rule, in_place, k);
    return all;
  };
  const auto names = [&](UpdateRule rule, bool averaged) { return names_of(rule, averaged, false); };
  CHECK(names(UpdateRule::kAdd, true) == "");
  CHECK(names(UpdateRule::kSgd, false) == "");
  CHECK(names(UpdateRule::kSgd, true) == "ema");
  CHECK(names(UpdateRule::kMomentum, true) == "momentum ema");
  CHECK(names(UpdateRule::kNesterov, false) == "momentum");
  CHECK(names(UpdateRule::kAdagrad, true) == "n ema");
  CHECK(names(UpdateRule::kRmsProp, false) == "n");
  CHECK(names(UpdateRule::kAdam, true) == "m v ema");
  CHECK(names(UpdateRule::kAdamW, false) == "m v");
  CHECK(names(UpdateRule::kFtrl, true) == "n z ema");
  CHECK(names_of(UpdateRule::kNesterov, true, true) == "momentum");
  CHECK(names_of(UpdateRule::kAdamW, false, true) == "m v t");
  CHECK(names_of(UpdateRule::kFtrl, false, true) == "n");
  CHECK(names_of(UpdateRule::kRowwiseAdagrad, false, true) == "");
  CHECK(std::string(slot_name(UpdateRule::kRowwiseAdagrad, true, 0)) == "n of row");
}

TEST_CASE("settings hold the hyper-parameters of the rule and no others") {
  Optimizer optimizer;
  optimizer.l1 = optimizer.l2 = optimizer.weight_decay.emplace(0.5F);
  const auto held = [&](UpdateRule rule) {
    const Settings s = settings_of(optimizer, rule, true);
    std::string all;
    const auto add = [&](const char* name, float value, float wanted) {
      if (value != 0) all += std::string(all.empty() ? "" : " ") + name;
      CHECK((value == 0 || value == wanted));
    };
    add("momentum", s.momentum, optimizer.momentum);
    add("beta1", s.beta1, optimizer.beta1);
    add("beta2", s.beta2, optimizer.beta2);
    add("rho", s.rho, optimizer.rho);
    add("epsilon", s.epsilon, optimizer.epsilon);
    add("accumulator", s.initial_accumulator, optimizer.initial_accumulator);
    add("beta", s.ftrl_beta, optimizer.ftrl_beta);
    add("l1", s.l1, 0.5F);
    add("l2", s.l2, 0.5F);
    add("decay", s.weight_decay, 0.5F);
    return all;
  };
  CHECK(held(UpdateRule::kAdd) == "");
  CHECK(held(UpdateRule::kSgd) == "l2 decay");
  CHECK(held(UpdateRule::kMomentum) == "momentum l2 decay");
  CHECK(held(UpdateRule::kNesterov) == "momentum l2 decay");
  CHECK(held(UpdateRule::kAdagrad) == "epsilon accumulator l2 decay");
  CHECK(held(UpdateRule::kRmsProp) == "rho epsilon l2 decay");
  CHECK(held(UpdateRule::kAdam) == "beta1 beta2 epsilon l2 decay");
  CHECK(held(UpdateRule::kAdamW) == "beta1 beta2 epsilon l2 decay");
  CHECK(held(UpdateRule::kFtrl) == "beta l1 l2");
  CHECK(held(UpdateRule::kRowwiseAdagrad) == "epsilon accumulator l2 decay");
}

TEST_CASE("settings hold what the rule uses, penalties only for a variable to be regularised") {
  Optimizer optimizer;
  optimizer.l1 = optimizer.l2 = optimizer.clip_value = 0.5F;
  optimizer.ema = 0.9F;
  const Settings ftrl = settings_of(optimizer, UpdateRule::kFtrl, true);
  CHECK(ftrl.l1 == 0.5F);
  CHECK(ftrl.l2 == 0.5F);
  CHECK(ftrl.ftrl_beta == 1.0F);
  CHECK(ftrl.weight_decay == 0.0F);
  CHECK(ftrl.beta1 == 0.0F);
  const Settings free = settings_of(optimizer, UpdateRule::kFtrl, false);
  CHECK(free.l1 == 0.0F);
  CHECK(free.l2 == 0.0F);
  CHECK(free.clip_value == 0.5F);
  CHECK(settings_of(optimizer, UpdateRule::kAdamW, true).weight_decay == 0.01F);
  CHECK(settings_of(optimizer, UpdateRule::kAdamW, false).weight_decay == 0.0F);
  CHECK(settings_of(optimizer, UpdateRule::kAdam, true).weight_decay == 0.0F);
  optimizer.weight_decay = 0.2F;
  CHECK(settings_of(optimizer, UpdateRule::kAdam, true).weight_decay == 0.2F);
  const Settings add = settings_of(optimizer, UpdateRule::kAdd, true);
  CHECK(add.clip_value + add.l2 + add.weight_decay + add.ema == 0.0F);
}
