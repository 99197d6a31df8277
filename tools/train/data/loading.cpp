#include "train/data/loading.hpp"

#include <fmt/format.h>

#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"

namespace ps_shm::train {
namespace {

constexpr std::uint64_t kBetweenLinesNs = 2'000'000'000;

}  // namespace

Loading::Loading(const LoadHooks& hooks, std::string source)
    : hooks_(hooks), source_(std::move(source)), next_ns_(shm::now_ns() + kBetweenLinesNs) {}

bool Loading::is_due() {
  if (hooks_.stop_requested && hooks_.stop_requested()) throw Interrupted();
  if (!hooks_.log || shm::now_ns() < next_ns_) return false;
  next_ns_ = shm::now_ns() + kBetweenLinesNs;
  return true;
}

void Loading::at(std::uint64_t done, std::uint64_t all) {
  if (is_due()) hooks_.log(fmt::format("loading {}: {:.0f} %", source_, 100.0 * double(done) / double(all)));
}

void Loading::at_bytes(std::uint64_t bytes) {
  if (is_due()) hooks_.log(fmt::format("loading {}: {} MiB", source_, bytes >> 20));
}

}  // namespace ps_shm::train
