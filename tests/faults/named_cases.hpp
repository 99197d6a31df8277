// What a kill matrix of named cases is given, and the count of those that have failed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "faults/strike.hpp"

namespace ps_shm::test {

// [--full] [--seed N] [--only TEXT]; PS_SHM_TEST_FULL in the environment stands for --full.
class NamedCases {
 public:
  // False: an argument is unknown, and that has been said.
  [[nodiscard]] bool take(int argc, char** argv) {
    std::uint64_t seed = std::random_device()();
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument == "--full")
        is_full_ = true;
      else if (argument == "--seed" && i + 1 < argc)
        seed = std::stoull(argv[++i]);
      else if (argument == "--only" && i + 1 < argc)
        only_ = argv[++i];
      else
        return fmt::print(stderr, "unknown argument {}\n", argument), false;
    }
    random_.seed(seed);
    fmt::print("seed {}\n", seed);
    return true;
  }

  bool is_full() const { return is_full_; }
  std::uint64_t random() { return random_(); }

  // Runs the case, which throws Failed, unless other ones are wanted.
  template <class Body>
  void run(const std::string& name, Body&& body) {
    if (name.find(only_) == std::string::npos) return;
    ++cases_;
    const double since = now();
    try {
      body();
    } catch (const Failed& failure) {
      ++failed_;
      fmt::print("FAILED {} after {:.1f} s: {}\n", name, now() - since, failure.what);
    }
    std::fflush(stdout);
  }

  // The exit code.
  int end() const {
    fmt::print("{} cases, {} failed, {:.0f} s\n", cases_, failed_, now() - began_);
    return failed_ != 0 || cases_ == 0;
  }

 private:
  bool is_full_ = std::getenv("PS_SHM_TEST_FULL") != nullptr;
  std::string only_;
  std::mt19937_64 random_;
  int cases_ = 0, failed_ = 0;
  const double began_ = now();
};

}  // namespace ps_shm::test
