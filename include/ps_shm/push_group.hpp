/// @file
/// Several pushes of a worker (ps_shm/worker.hpp) that snapshots contain together.
#pragma once

#include <memory>

#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

class Worker;

/// Groups pushes (Worker::group_pushes()): pushes made during its lifetime are atomic for snapshots, which contain all
/// of them or none. Snapshots wait for the group, so it should be destroyed soon, and before step(). Mode sync does not
/// need it, because the pushes of a step belong together.
/// @code
///   {
///     const ps_shm::PushGroup group = worker.group_pushes();
///     worker.push(weights, weight_gradient);
///     worker.push_rows(table, ids, row_gradients);
///   }
/// @endcode
class PushGroup {
 public:
  ~PushGroup();
  PushGroup(PushGroup&& other) noexcept;
  PushGroup& operator=(PushGroup&&) = delete;

 private:
  friend class Worker;
  struct Impl;
  explicit PushGroup(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
