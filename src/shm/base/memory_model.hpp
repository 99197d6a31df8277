// A memory model that tests put in the place of shared memory. It answers each access to a word, and each fence, with
// what the memory orders allow (tests/scenes). Without PS_SHM_FAULT_POINTS all of this compiles to nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#if defined(PS_SHM_FAULT_POINTS)
#include <version>
#if defined(__cpp_lib_source_location)
#include <source_location>
#else  // clang 14
#include <experimental/source_location>
#endif
#endif

namespace ps_shm::shm {

#if defined(PS_SHM_FAULT_POINTS)
#if defined(__cpp_lib_source_location)
using Site = std::source_location;  // the place of an operation in the sources
#else
using Site = std::experimental::source_location;  // has no columns
#endif
#else
struct Site {
  static constexpr Site current() noexcept { return {}; }
};
#endif

enum class Change : std::uint8_t { kAdd, kOr, kAnd };

// Words have 2, 4 or 8 bytes. Values are passed as their bits.
class MemoryModel {
 public:
  virtual bool has(const void* word) const noexcept = 0;  // false: the memory itself answers
  virtual std::uint64_t load(const void* word, std::size_t bytes, std::memory_order order, const Site& site) = 0;
  virtual void store(const void* word, std::size_t bytes, std::uint64_t desired, std::memory_order order,
                     const Site& site) = 0;
  // Returns the previous value.
  virtual std::uint64_t change(const void* word, std::size_t bytes, Change how, std::uint64_t operand,
                               std::memory_order order, const Site& site) = 0;
  virtual bool compare_exchange(const void* word, std::size_t bytes, std::uint64_t& expected, std::uint64_t desired,
                                std::memory_order order, std::memory_order failure, const Site& site) = 0;
  virtual bool has_fences() const noexcept = 0;
  virtual void fence(std::memory_order order, const Site& site) = 0;
  // A futex wait: sleeps if the word equals `seen`. There is no time-out.
  virtual void sleep(const void* word, std::uint32_t seen) = 0;
  virtual void wake(const void* word) = 0;
  // Whether a task of the model holds that lock byte; nullopt if the kernel is to answer.
  virtual std::optional<bool> is_held(std::uint32_t byte) = 0;
  // The task polls. Of what it has read since the first of these polls, its future depends on `state` alone.
  virtual void poll(bool is_first, std::uint64_t state) = 0;

 protected:
  ~MemoryModel() = default;
};

#if defined(PS_SHM_FAULT_POINTS)
inline MemoryModel* g_memory_model = nullptr;  // set by the test
inline MemoryModel* model_of(const void* word) noexcept {
  return g_memory_model != nullptr && g_memory_model->has(word) ? g_memory_model : nullptr;
}
inline MemoryModel* model_of_fences() noexcept {
  return g_memory_model != nullptr && g_memory_model->has_fences() ? g_memory_model : nullptr;
}
#else
constexpr MemoryModel* model_of(const void*) noexcept { return nullptr; }
constexpr MemoryModel* model_of_fences() noexcept { return nullptr; }
#endif

}  // namespace ps_shm::shm
