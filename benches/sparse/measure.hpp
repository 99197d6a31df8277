// What is measured of one configuration.
#pragma once

#include <nlohmann/json.hpp>

#include "schemes.hpp"

namespace ps_shm::bench {

struct Configuration {
  Scheme scheme = Scheme::kExact;
  int workers = 1;
  std::size_t combine = 1;
};

struct Measuring {
  std::string model = "logistic";  // or rows: nothing but pulls and pushes of rows
  std::uint64_t width = 16;        // of rows
  std::uint32_t factors = 8;       // of mf, fm
  std::uint32_t stripes = 1024;
  double seconds = 0.3;      // of one measurement
  std::uint64_t epochs = 0;  // after each of which the loss is taken
  std::size_t batch = 100;
  float lr = 0.1F, l2 = 0.0F, back_off = 1.0F;
  std::uint64_t seed = 1;
};

// Rate, lost updates, and the loss after each epoch: each of a table of its own.
nlohmann::ordered_json measure(const Configuration& configuration, const Measuring& measuring,
                               const train::SparseData& data);

}  // namespace ps_shm::bench
