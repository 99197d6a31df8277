// Rows of a table: only the rows that a batch names are pulled and pushed.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include <ps_shm/errors.hpp>
#include <ps_shm/server.hpp>
#include <ps_shm/worker.hpp>

int main() try {
  constexpr std::uint64_t kRows = 1'000'000;
  constexpr std::size_t kDim = 8;
  const std::string job = "example-rows-" + std::to_string(getpid());
  ps_shm::JobConfig config;
  config.job = job;
  config.optimizer.rule = ps_shm::UpdateRule::kAdagrad;
  config.optimizer.lr = 0.1F;
  ps_shm::Server server(config);  // here in the same process; usually in one of its own

  ps_shm::Worker worker({.job = job});
  const ps_shm::VariableSpec spec{
      .name = "embedding", .shape = {kRows, kDim}, .layout = ps_shm::Layout::kInplace};  // rows change where they lie
  const ps_shm::Variable table = worker.variable(spec, [](std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i % 97) / 97;
  });

  // Pull two rows towards each other: the gradient of the squared distance.
  const std::array<std::uint64_t, 2> ids{17, 123'456};
  std::array<float, 2 * kDim> rows, gradients;
  const auto distance = [&] {
    worker.pull_rows(table, ids, rows);
    float sum = 0;
    for (std::size_t i = 0; i < kDim; ++i) sum += (rows[i] - rows[kDim + i]) * (rows[i] - rows[kDim + i]);
    return std::sqrt(sum);
  };
  const float before = distance();
  for (int step = 0; step < 100; ++step) {
    worker.pull_rows(table, ids, rows);
    for (std::size_t i = 0; i < kDim; ++i) {
      gradients[i] = 2 * (rows[i] - rows[kDim + i]);
      gradients[kDim + i] = -gradients[i];
    }
    worker.push_rows(table, ids, gradients);
    worker.step();
  }
  std::array<float, kDim> other;
  worker.pull_rows(table, std::array<std::uint64_t, 1>{18}, other);
  std::printf("distance %.2f before, %.2f after; row 18 is %s\n", double(before), double(distance()),
              other[0] == float(18 * kDim % 97) / 97 ? "as it was" : "changed");
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "rows: %s\n", error.what());
  return 1;
}
