// What the publishers and subscribers of Python have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "ps_shm/bundle_spec.hpp"
#include "tensors.hpp"
#include "worker.hpp"

namespace ps_shm::python {

// An object that one thread may close while another one reads from it. Reading takes no turn, because a call that waits
// may hold the turn for long.
template <class Made>
class Closable : public Guarded {
 public:
  Closable(std::string what, Made&& made)
      : Guarded(std::move(what)), tensors(made.spec().tensors), spec_(made.spec()), made_(std::move(made)) {}

  const NamedTensors tensors;

  // Requires: this thread has the turn.
  Made& use() { return *made_; }
  const BundleSpec& spec() const noexcept { return spec_; }

  // Throws Error as check().
  template <class Read>
  auto look(Read&& read) const {
    check();
    const std::shared_lock lock(closing_);  // with the global interpreter lock held, for which close() does not wait
    check();
    return read(*made_);
  }
  // Requires: this thread has the turn.
  void close() {
    const std::unique_lock lock(closing_);
    is_closed = true;
    made_.reset();
  }

 private:
  const BundleSpec spec_;
  std::optional<Made> made_;
  mutable std::shared_mutex closing_;
};

inline std::vector<std::string> names_of(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string> names;
  for (const TensorSpec& one : tensors) names.push_back(one.name);
  return names;
}

// The address of the memory in which all tensors lie, the bytes of a row, and the number of rows.
inline std::tuple<std::uintptr_t, std::size_t, std::uint32_t> rows_of(std::span<const std::byte> memory,
                                                                      const BundleSpec& spec) {
  return {reinterpret_cast<std::uintptr_t>(memory.data()), memory.size() / spec.records, spec.records};
}

}  // namespace ps_shm::python
