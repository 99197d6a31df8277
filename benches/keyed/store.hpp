// What benches/keyed compares: rows of floats that several processes or threads find by a 64-bit key.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>

namespace ps_shm::bench {

struct Shape {
  std::uint64_t keys;   // that are used
  std::uint64_t rows;   // that there may be
  std::uint64_t width;  // floats of a row
  int processes;        // at most
};

constexpr float kRate = 1e-6F;  // a push subtracts this times the gradient

// What one process, or thread, has of a store. No key is 0.
class Access {
 public:
  virtual ~Access() = default;
  virtual std::uint64_t lookup(std::span<const std::uint64_t> keys) = 0;  // returns how many have rows
  virtual void pull(std::span<const std::uint64_t> keys, std::span<float> out) = 0;
  virtual void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) = 0;  // makes rows
};

class Store {
 public:
  virtual ~Store() = default;
  virtual std::unique_ptr<Access> open(int number) = 0;
  virtual bool is_of_threads() const { return false; }          // it works within one process only
  virtual std::uint64_t bytes() const = 0;                      // that the rows and what finds them take
  virtual std::uint64_t cpu_ns_elsewhere() const { return 0; }  // that a server has taken so far for all processes
};

// What a store needs is not installed.
struct Absent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Contestant {
  const char* name;
  std::unique_ptr<Store> (*make)(const Shape& shape);
  bool makes_rows = true;  // new keys get rows while the processes run
};

std::span<const Contestant> contestants();  // the first one is ours

std::unique_ptr<Store> make_table(const Shape& shape);     // a job's table by key
std::unique_ptr<Store> make_bfloat16(const Shape& shape);  // the same, with rows of bfloat16
std::unique_ptr<Store> make_dictionary(
    const Shape& shape);                                  // a job's rows by number, and each process's own map to these
std::unique_ptr<Store> make_tbb(const Shape& shape);      // oneTBB's concurrent_hash_map to rows; threads
std::unique_ptr<Store> make_striped(const Shape& shape);  // open addressing in 1024 parts, each under a spin lock
std::unique_ptr<Store> make_boost(
    const Shape& shape);  // Boost's unordered map under one sharable mutex in shared memory
std::unique_ptr<Store> make_redis(const Shape& shape);  // Redis, a server of its own

// The keys, in an order that has nothing to do with how often they are used.
std::uint64_t key_of(std::uint64_t id) noexcept;
std::uint64_t id_in_order(std::uint64_t number, std::uint64_t keys) noexcept;

}  // namespace ps_shm::bench
