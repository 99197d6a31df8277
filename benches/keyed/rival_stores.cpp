// The stores of others: none of them survives the death of a process, and none evicts.
#include <tbb/concurrent_hash_map.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/interprocess/allocators/allocator.hpp>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <boost/interprocess/sync/interprocess_sharable_mutex.hpp>
#include <boost/interprocess/sync/scoped_lock.hpp>
#include <boost/interprocess/sync/sharable_lock.hpp>
#include <boost/unordered_map.hpp>
#include <fstream>
#include <stdexcept>

#include "../processes.hpp"
#include "store.hpp"

namespace ps_shm::bench {
namespace {

void subtract(float* row, const float* gradient, std::uint64_t width) noexcept {
  for (std::uint64_t i = 0; i < width; ++i) row[i] -= kRate * gradient[i];
}

struct KeyHash {  // the keys are mixed already
  std::size_t operator()(std::uint64_t key) const noexcept { return key; }
  static std::size_t hash(std::uint64_t key) noexcept { return key; }
  static bool equal(std::uint64_t a, std::uint64_t b) noexcept { return a == b; }
};

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Rows in the order in which they are made.
struct Rows {
  explicit Rows(const Shape& shape)
      : width(shape.width), count(shape.rows), memory(shape.rows * shape.width * sizeof(float)) {}
  float* at(std::uint64_t number) const noexcept { return memory.as<float>() + number * width; }
  float* make(std::uint64_t number) const {
    if (number >= count) throw std::runtime_error("there are no rows left");
    std::fill_n(at(number), width, 0.5F);
    return at(number);
  }
  std::uint64_t bytes_of(std::uint64_t rows) const noexcept { return rows * width * sizeof(float); }

  std::uint64_t width, count;
  SharedBytes memory;
};

using TbbMap = tbb::concurrent_hash_map<std::uint64_t, std::uint32_t, KeyHash>;

class TbbStore final : public Store {
 public:
  explicit TbbStore(const Shape& shape) : rows_(shape), before_(resident_bytes()), map_(std::bit_ceil(shape.keys)) {}
  std::unique_ptr<Access> open(int) override { return std::make_unique<Mine>(*this); }
  bool is_of_threads() const override { return true; }
  std::uint64_t bytes() const override {  // its nodes are the only memory that this process takes meanwhile
    const std::uint64_t now = resident_bytes();
    return now > before_ ? now - before_ : rows_.bytes_of(map_.size());
  }

 private:
  struct Mine final : Access {
    explicit Mine(TbbStore& store) : all(store) {}
    std::uint64_t lookup(std::span<const std::uint64_t> keys) override {
      std::uint64_t found = 0;
      for (const std::uint64_t key : keys) {
        TbbMap::const_accessor row;
        found += all.map_.find(row, key);
      }
      return found;
    }
    void pull(std::span<const std::uint64_t> keys, std::span<float> out) override {
      const std::uint64_t width = all.rows_.width;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        TbbMap::const_accessor row;
        if (all.map_.find(row, keys[i])) std::copy_n(all.rows_.at(row->second), width, out.data() + i * width);
      }
    }
    void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) override {
      const std::uint64_t width = all.rows_.width;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        TbbMap::accessor row;
        if (all.map_.insert(row, keys[i])) all.rows_.make(row->second = all.made_.fetch_add(1));
        subtract(all.rows_.at(row->second), gradients.data() + i * width, width);
      }
    }
    TbbStore& all;
  };

  Rows rows_;
  std::uint64_t before_;
  TbbMap map_;
  std::atomic<std::uint32_t> made_{0};
};

// Open addressing with linear probing: a key is in one of 1024 parts, each two thirds full at most, and under a lock.
class StripedStore final : public Store {
 public:
  explicit StripedStore(const Shape& shape)
      : width_(shape.width),
        slots_(std::bit_ceil(shape.rows * 3 / 2 / kStripes + 16)),
        slot_bytes_(sizeof(std::uint64_t) + shape.width * sizeof(float)),
        memory_(kStripes * (sizeof(Stripe) + slots_ * slot_bytes_)) {}
  std::unique_ptr<Access> open(int) override { return std::make_unique<Mine>(*this); }
  std::uint64_t bytes() const override { return kStripes * (sizeof(Stripe) + slots_ * slot_bytes_); }

 private:
  static constexpr std::uint64_t kStripes = 1024, kAhead = 16;
  struct alignas(64) Stripe {
    std::atomic<std::uint32_t> is_locked;
    std::uint32_t used;
  };
  class Locked {
   public:
    explicit Locked(Stripe& stripe) : stripe_(stripe) {
      while (stripe_.is_locked.exchange(1, std::memory_order_acquire) != 0)
        while (stripe_.is_locked.load(std::memory_order_relaxed) != 0) spin_pause();
    }
    ~Locked() { stripe_.is_locked.store(0, std::memory_order_release); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    Stripe& stripe_;
  };

  Stripe& stripe_of(std::uint64_t key) const noexcept { return memory_.as<Stripe>()[key >> 54]; }
  std::byte* slot(std::uint64_t key, std::uint64_t step) const noexcept {
    const std::uint64_t number = (key >> 54) * slots_ + ((key + step) & (slots_ - 1));
    return memory_.as<std::byte>() + kStripes * sizeof(Stripe) + number * slot_bytes_;
  }
  // The row, or nullptr. Requires: the key's stripe is locked.
  float* find(std::uint64_t key, bool makes) const {
    for (std::uint64_t step = 0;; ++step) {
      auto* const there = reinterpret_cast<std::uint64_t*>(slot(key, step));
      auto* const row = reinterpret_cast<float*>(there + 1);
      if (*there == key) return row;
      if (*there != 0) continue;
      if (!makes) return nullptr;
      if (++stripe_of(key).used > slots_ * 3 / 4) throw std::runtime_error("there are no rows left");
      *there = key;
      std::fill_n(row, width_, 0.5F);
      return row;
    }
  }
  template <class Body>
  void for_each(std::span<const std::uint64_t> keys, bool makes, Body&& body) const {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) __builtin_prefetch(slot(keys[i + kAhead], 0), 1);
      const Locked locked(stripe_of(keys[i]));
      if (float* const row = find(keys[i], makes)) body(row, i);
    }
  }

  struct Mine final : Access {
    explicit Mine(StripedStore& store) : all(store) {}
    std::uint64_t lookup(std::span<const std::uint64_t> keys) override {
      std::uint64_t found = 0;
      all.for_each(keys, false, [&](const float*, std::size_t) { ++found; });
      return found;
    }
    void pull(std::span<const std::uint64_t> keys, std::span<float> out) override {
      all.for_each(keys, false,
                   [&](const float* row, std::size_t i) { std::copy_n(row, all.width_, out.data() + i * all.width_); });
    }
    void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) override {
      all.for_each(keys, true,
                   [&](float* row, std::size_t i) { subtract(row, gradients.data() + i * all.width_, all.width_); });
    }
    StripedStore& all;
  };

  std::uint64_t width_, slots_, slot_bytes_;
  SharedBytes memory_;
};

namespace ipc = boost::interprocess;

// As HugeCTR's hierarchical parameter server has it.
class BoostStore final : public Store {
  using Buffer = ipc::managed_external_buffer;
  using Item = std::pair<const std::uint64_t, std::uint32_t>;
  using Map = boost::unordered_map<std::uint64_t, std::uint32_t, KeyHash, std::equal_to<std::uint64_t>,
                                   ipc::allocator<Item, Buffer::segment_manager>>;

 public:
  explicit BoostStore(const Shape& shape)
      : rows_(shape),
        memory_((std::uint64_t{16} << 20) + shape.rows * kBytesOfItem),
        buffer_(ipc::create_only, memory_.as<void>(), (std::uint64_t{16} << 20) + shape.rows * kBytesOfItem),
        mutex_(buffer_.construct<ipc::interprocess_sharable_mutex>("mutex")()),
        map_(buffer_.construct<Map>("map")(shape.rows, KeyHash(), std::equal_to<std::uint64_t>(),
                                           buffer_.get_segment_manager())) {}
  std::unique_ptr<Access> open(int) override { return std::make_unique<Mine>(*this); }
  std::uint64_t bytes() const override {
    return buffer_.get_size() - buffer_.get_free_memory() + rows_.bytes_of(map_->size());
  }

 private:
  static constexpr std::uint64_t kBytesOfItem = 96;  // a node and its buckets, with room to spare

  struct Mine final : Access {
    explicit Mine(BoostStore& store) : all(store) {}
    std::uint64_t lookup(std::span<const std::uint64_t> keys) override {
      const ipc::sharable_lock lock(*all.mutex_);
      std::uint64_t found = 0;
      for (const std::uint64_t key : keys) found += all.map_->count(key);
      return found;
    }
    void pull(std::span<const std::uint64_t> keys, std::span<float> out) override {
      const ipc::sharable_lock lock(*all.mutex_);
      const std::uint64_t width = all.rows_.width;
      for (std::size_t i = 0; i < keys.size(); ++i)
        if (const auto row = all.map_->find(keys[i]); row != all.map_->end())
          std::copy_n(all.rows_.at(row->second), width, out.data() + i * width);
    }
    void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) override {
      const ipc::scoped_lock lock(*all.mutex_);
      const std::uint64_t width = all.rows_.width;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto number = static_cast<std::uint32_t>(all.map_->size());
        const auto [row, is_new] = all.map_->emplace(keys[i], number);
        if (is_new) all.rows_.make(number);
        subtract(all.rows_.at(row->second), gradients.data() + i * width, width);
      }
    }
    BoostStore& all;
  };

  Rows rows_;
  SharedBytes memory_;
  Buffer buffer_;
  ipc::interprocess_sharable_mutex* mutex_;
  Map* map_;
};

}  // namespace

std::unique_ptr<Store> make_tbb(const Shape& shape) { return std::make_unique<TbbStore>(shape); }
std::unique_ptr<Store> make_striped(const Shape& shape) { return std::make_unique<StripedStore>(shape); }
std::unique_ptr<Store> make_boost(const Shape& shape) { return std::make_unique<BoostStore>(shape); }

}  // namespace ps_shm::bench
