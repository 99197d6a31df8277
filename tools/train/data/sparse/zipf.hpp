// Numbers 1..n distributed by Zipf's law: k with probability proportional to k^-exponent, in constant time and memory.
//
// Rejection-inversion (Hoermann and Derflinger, Rejection-inversion to generate variates from monotone discrete
// distributions, ACM TOMACS 6(3), 1996): inverts the integral H of x^-exponent, and rejects where the curve exceeds
// the steps of the distribution. At most about one draw in ten is rejected.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace ps_shm::train {

class ZipfSampler {
 public:
  // Requires: n >= 1, exponent >= 0.
  ZipfSampler(std::uint64_t n, double exponent)
      : n_(n),
        exponent_(exponent),
        first_(integral(1.5) - 1.0),
        last_(integral(static_cast<double>(n) + 0.5)),
        sure_(2.0 - inverse(integral(2.5) - std::pow(2.0, -exponent))) {}

  std::uint64_t operator()(std::mt19937_64& random) const {
    for (;;) {
      const double unit = static_cast<double>(random() >> 11) * 0x1.0p-53;
      const double u = last_ + unit * (first_ - last_);
      const double x = inverse(u);
      const double k = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(n_));
      if (k - x <= sure_ || u >= integral(k + 0.5) - std::pow(k, -exponent_)) return static_cast<std::uint64_t>(k);
    }
  }

 private:
  // H(x) = (x^(1 - e) - 1) / (1 - e), log x for e = 1.
  double integral(double x) const {
    const double log_x = std::log(x), t = (1.0 - exponent_) * log_x;
    return std::abs(t) > 1e-8 ? std::expm1(t) / (1.0 - exponent_) : log_x * (1.0 + t / 2.0);
  }
  double inverse(double y) const {
    const double t = std::max((1.0 - exponent_) * y, -1.0);  // rounding may make it slightly smaller
    return std::exp(std::abs(t) > 1e-8 ? std::log1p(t) / (1.0 - exponent_) : y * (1.0 - t / 2.0));
  }

  std::uint64_t n_;
  double exponent_, first_, last_;
  double sure_;  // a k at most this far above x is never rejected
};

}  // namespace ps_shm::train
