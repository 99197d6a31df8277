// The rivals with locks: a table in anonymous shared memory, and spin locks beside it.
#include <sched.h>

#include <atomic>
#include <bit>
#include <cmath>

#include "schemes.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "update/elements.hpp"

namespace ps_shm::bench {
namespace {

// On a line of its own. Its holder may have lost its core: then others yield theirs.
struct alignas(64) SpinLock {
  std::atomic<bool> is_held;

  void lock() noexcept {
    constexpr int kSpins = 1000;
    for (int spins = 0; is_held.exchange(true, std::memory_order_acquire);) {
      while (is_held.load(std::memory_order_relaxed)) {
        spin_pause();
        if (++spins > kSpins) sched_yield();
      }
    }
  }
  void unlock() noexcept { is_held.store(false, std::memory_order_release); }
};

// Rows for one process, changed by SGD. One lock: held for all of an example, else a row's for its update.
template <bool kOneLock>
struct LockedRows {
  float* rows;
  std::size_t width;
  SpinLock* locks;
  std::uint32_t mask;
  float rate;
  using Id = std::uint32_t;
  static constexpr bool kSumsUp = false;

  float* row(std::uint32_t id) const noexcept { return rows + std::size_t{id} * width; }

  void prefetch(std::span<const std::uint32_t> ids) const noexcept {
    for (const std::uint32_t id : ids) update::prefetch_to_own(row(id));
  }
  void pull(std::span<const std::uint32_t> ids, std::span<float> out) const noexcept {
    if (kOneLock) locks->lock();
    float* to = out.data();
    for (const std::uint32_t id : ids) {  // others may change rows meanwhile, as whole floats
      if (width == 1)
        shm::read_elements(to, rows + id, 2, 1, update::FirstFloat{});
      else
        shm::read_elements(to, row(id), 1, width, update::FirstFloat{});
      to += width;
    }
  }
  void push(std::span<const std::uint32_t> ids, std::span<const float> gradients) const noexcept {
    const float* from = gradients.data();
    const float step = rate;  // no store to a row changes it
    for (const std::uint32_t id : ids) {
      if (!kOneLock) locks[id & mask].lock();
      if (width == 1)
        rows[id] -= step * *from++;
      else
        for (float *x = row(id), *end = x + width; x != end; ++x) *x -= step * *from++;
      if (!kOneLock) locks[id & mask].unlock();
    }
    if (kOneLock) locks->unlock();
  }
};

class LockedTable : public Table {
 public:
  LockedTable(std::uint32_t locks, int workers, const Task& task)
      : LockedTable(locks, workers, task, *task.make_model()) {}

  std::vector<Ran> run(const Span& span, std::uint64_t epoch) final {
    if (lock_count_ == 1) return run_locked<true>(span, epoch);
    return run_locked<false>(span, epoch);
  }

  std::vector<float> values() const final { return {values_.as<float>(), values_.as<float>() + rows_ * width_}; }

 private:
  LockedTable(std::uint32_t locks, int workers, const Task& task, const train::SparseModel& model)
      : task_(task),
        workers_(workers),
        rows_(model.table().shape[0]),
        width_(model.table().shape[1]),
        lock_count_(std::bit_ceil(locks)),
        values_(rows_ * width_ * sizeof(float)),
        locks_(lock_count_ * sizeof(SpinLock)) {
    model.initialize(task.seed, 0, {values_.as<float>(), rows_ * width_});
  }

  template <bool kOneLock>
  std::vector<Ran> run_locked(const Span& span, std::uint64_t epoch) {
    const LockedRows<kOneLock> rows{values_.as<float>(), width_, locks_.as<SpinLock>(), lock_count_ - 1,
                                    task_.lr * std::pow(task_.back_off, float(epoch))};
    return run_processes(workers_, span, [&](int number) {
      const auto loop = std::make_shared<Loop>(task_, number, epoch);
      return Work{.prepare = [] {},
                  .rounds = [loop, rows](std::uint64_t count) -> std::uint64_t {
                    for (; count > 0; --count) loop->run_batch(rows);
                    return 0;
                  }};
    });
  }

  const Task& task_;
  int workers_;
  std::size_t rows_, width_;
  std::uint32_t lock_count_;
  SharedBytes values_, locks_;
};

}  // namespace

std::unique_ptr<Table> make_locked_table(std::uint32_t locks, int workers, const Task& task) {
  return std::make_unique<LockedTable>(locks, workers, task);
}

}  // namespace ps_shm::bench
