// Source locations with a memory order that a test weakens, one at a time, to find out whether it is needed.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "shm/base/memory_model.hpp"

namespace ps_shm::test {

enum class Operation : std::uint8_t { kLoad, kStore, kExchange, kFailure, kFence };

// Removes the acquire or the release part of an order; a fence loses its total order.
enum class Weaker : std::uint8_t { kNothing, kNoAcquire, kNoRelease, kNoOrder };

struct Mutation {
  std::string_view file;
  std::uint32_t line = 0, column = 0;
  Operation operation = Operation::kLoad;
  Weaker weaker = Weaker::kNothing;
};

// The operations with an order that were executed: file name, line, column, operation, order, and function name.
using Place = std::tuple<std::string, std::uint32_t, std::uint32_t, Operation, std::memory_order>;
inline std::map<Place, std::string> g_places;
inline bool g_notes_places = false;

inline std::memory_order weakened(const Mutation& mutation, const shm::Site& site, std::memory_order order,
                                  Operation operation) {
  if (g_notes_places && order != std::memory_order_relaxed)
    g_places[{site.file_name(), site.line(), site.column(), operation, order}] = site.function_name();
  if (mutation.line != site.line() || mutation.column != site.column() || mutation.operation != operation ||
      mutation.file != site.file_name())
    return order;
  switch (mutation.weaker) {
    case Weaker::kNothing:
      return order;
    case Weaker::kNoOrder:
      return std::memory_order_acq_rel;
    case Weaker::kNoAcquire:
      return order == std::memory_order_acq_rel ? std::memory_order_release : std::memory_order_relaxed;
    case Weaker::kNoRelease:
      return order == std::memory_order_acq_rel ? std::memory_order_acquire : std::memory_order_relaxed;
  }
  return order;
}

}  // namespace ps_shm::test
