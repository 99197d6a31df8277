// The formulas of src/update/rule_table.hpp in float64, one element at a time, deliberately written a second time.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "shm/slots/inplace_elements.hpp"
#include "update/rules.hpp"

namespace ps_shm::test {

using update::Settings;

// The rules of the table, in its order, that satisfy `is_wanted`.
template <class IsWanted>
std::vector<UpdateRule> rules_where(IsWanted&& is_wanted) {
  std::vector<UpdateRule> rules;
  for (const update::Traits& traits : update::all_rules())
    if (is_wanted(traits)) rules.push_back(traits.rule);
  return rules;
}

// Whether this build has an exchange as wide as an element with its state; without one, declaring is refused.
inline bool works_in_place(UpdateRule rule) {
  return shm::kHas16ByteExchange || update::slots_per_element(rule, false, true) < 3;
}

// An element in float64, and the size of the terms that it was computed from: float32 errors are relative to those.
struct Element {
  double x[4] = {}, size[4] = {};
};

inline double clipped(const Settings& s, double g) {
  return s.clip_value > 0 ? std::clamp(g, -double(s.clip_value), double(s.clip_value)) : g;
}

// The formulas of rule_table.hpp, except that of rowwise_adagrad, which ReferenceRow has. `g` is scaled and clipped; the terms of the sums that it was computed from were as large as `g_size`.
inline Element reference(const Settings& s, double rate, double t, const Element& from, double g, double g_size) {
  Element to;
  const double w0 = from.x[0], a = from.x[1], b = from.x[2], epsilon = s.epsilon;
  double &w = to.x[0], &w_size = to.size[0];
  std::size_t ema = 1;
  if (s.rule == UpdateRule::kAdd) {
    w = w0 + g;
    w_size = std::abs(w0) + g_size;
    return to;
  }
  if (s.rule == UpdateRule::kFtrl) {
    const double n = a + g * g, root = std::sqrt(n), r = rate, sum = (s.ftrl_beta + root) / r + s.l2;
    const double z = g + (std::abs(b) > s.l1 ? (b > 0 ? 1 : -1) * double(s.l1) - sum * w0 : b);
    w = std::abs(z) <= s.l1 ? 0 : -(z - (z > 0 ? 1 : -1) * double(s.l1)) / sum;
    to.x[1] = n;
    to.x[2] = z;
    to.size[1] = a + std::abs(g) * g_size;
    to.size[2] = std::abs(b) + g_size + double(s.l1) + sum * std::abs(w0);
    w_size = std::abs(w) + (to.size[2] + double(s.l1)) / sum;
    ema = 3;
  } else {
    g_size += s.l2 * std::abs(w0);
    g += double(s.l2) * w0;
    const double kept = w0 - rate * s.weight_decay * w0;
    double move = 0, move_size = 0;
    const auto by_root = [&](double step, double step_size, double square, double square_size, double beside) {
      move = step / (std::sqrt(square) + beside);
      move_size = (step_size + std::abs(step) * square_size / square) / (std::sqrt(square) + beside);
    };
    switch (s.rule) {  // without a default, so that the compiler demands the formula of every rule
      case UpdateRule::kAdd:
      case UpdateRule::kFtrl:
      case UpdateRule::kRowwiseAdagrad:
        break;
      case UpdateRule::kSgd:
        move = g;
        move_size = g_size;
        break;
      case UpdateRule::kMomentum:
      case UpdateRule::kNesterov: {
        const double mu = s.momentum, m = mu * a + g, m_size = mu * std::abs(a) + g_size;
        const bool ahead = s.rule == UpdateRule::kNesterov;
        to.x[1] = m;
        to.size[1] = m_size;
        move = ahead ? g + mu * m : m;
        move_size = ahead ? g_size + mu * m_size : m_size;
        ema = 2;
        break;
      }
      case UpdateRule::kAdagrad:
      case UpdateRule::kRmsProp: {
        const double old = s.rule == UpdateRule::kAdagrad ? 1 : double(s.rho);
        const double now = s.rule == UpdateRule::kAdagrad ? 1 : 1 - double(s.rho);
        to.x[1] = old * a + now * g * g;
        to.size[1] = old * a + now * std::abs(g) * g_size;
        by_root(g, g_size, to.x[1], to.size[1], epsilon);
        ema = 2;
        break;
      }
      case UpdateRule::kAdam:
      case UpdateRule::kAdamW: {
        const double b1 = s.beta1, b2 = s.beta2;
        to.x[1] = b1 * a + (1 - b1) * g;
        to.size[1] = b1 * std::abs(a) + (1 - b1) * g_size;
        to.x[2] = b2 * b + (1 - b2) * g * g;
        to.size[2] = b2 * b + (1 - b2) * std::abs(g) * g_size;
        // The other common formulation: corrected moments, and a plain epsilon.
        const double first = 1 - std::pow(b1, t), second = 1 - std::pow(b2, t);
        by_root(to.x[1] / first, to.size[1] / first, to.x[2] / second, to.size[2] / second, epsilon);
        ema = 3;
        break;
      }
    }
    w = kept - rate * move;
    w_size = std::abs(w0) + rate * move_size;
  }
  if (s.ema > 0) {
    const double d = std::min(double(s.ema), (1 + t) / (10 + t));
    to.x[ema] = d * from.x[ema] + (1 - d) * w;
    to.size[ema] = d * std::abs(from.x[ema]) + (1 - d) * w_size;
  }
  return to;
}

// A row in float64, with the state of its elements and its own.
class ReferenceRow {
 public:
  ReferenceRow(const Settings& settings, double rate, const std::vector<float>& first)
      : settings_(settings),
        rate_(rate),
        mean_squares_(settings.initial_accumulator),
        values_(first.begin(), first.end()) {
    for (const double value : values_) {
      Element& element = elements_.emplace_back();
      element.x[0] = value;
      if (settings.rule == UpdateRule::kAdagrad) element.x[1] = settings.initial_accumulator;
      if (settings.rule == UpdateRule::kFtrl && value != 0)
        element.x[2] = -value * (settings.ftrl_beta / rate + settings.l2) - std::copysign(double(settings.l1), value);
    }
  }

  void push(const std::vector<float>& gradient) {
    ++pushes_;
    double squares = 0;
    for (const float g : gradient) squares += double(g) * g;
    mean_squares_ += squares / double(gradient.size());
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const double g = gradient[i];
      if (settings_.rule == UpdateRule::kRowwiseAdagrad)
        elements_[i].x[0] -= rate_ * g / (std::sqrt(mean_squares_) + settings_.epsilon);
      else
        elements_[i] = reference(settings_, rate_, pushes_, elements_[i], g, std::abs(g));
      values_[i] = elements_[i].x[0];
    }
  }

  const std::vector<double>& values() const { return values_; }

 private:
  Settings settings_;
  double rate_, mean_squares_;
  double pushes_ = 0;
  std::vector<double> values_;
  std::vector<Element> elements_;
};

}  // namespace ps_shm::test
