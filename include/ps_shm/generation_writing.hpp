/// @file
/// A generation that is written tensor by tensor: what Publisher::Writing and FolderPublisher::Writing have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

/// Base of the classes of both publishers.
///
/// Once the generation is committed or its publisher is destroyed, every call throws Error with kInvalidState.
class GenerationWriting {
 public:
  struct Target;

  GenerationWriting& operator=(GenerationWriting&&) = delete;

  /// Copies `bytes` into the tensor, from byte `begin` on. Parts may be written in any order, and may overlap. In a
  /// generation that exceeds the caches, large tensors are copied around them (non-temporal stores on x86-64), which
  /// takes less time than memcpy.
  ///
  /// @throws Error if there is no such tensor, or if the bytes do not fit; with kNoSpace if /dev/shm is full.
  /// @progress wait-free.
  void write(std::uint32_t tensor, std::span<const std::byte> bytes, std::size_t begin = 0);

  /// Copies `values` into the tensor, from element `begin` on, as its dtype: float32, or bfloat16, which rounds to
  /// nearest, ties to even; NaN stays NaN.
  ///
  /// @throws Error as write(), and if the tensor has another dtype.
  /// @progress wait-free.
  void write_floats(std::uint32_t tensor, std::span<const float> values, std::size_t begin = 0);

  /// The memory of the tensor in this generation, of which all must be written; its initial content is undefined.
  /// commit() cannot check that: it takes the tensor as written completely.
  ///
  /// @throws Error if there is no such tensor; with kNoSpace if /dev/shm is full.
  /// @progress wait-free.
  std::span<std::byte> out(std::uint32_t tensor);

 protected:
  ~GenerationWriting();
  GenerationWriting(GenerationWriting&& other) noexcept;

  /// Of a generation that this publisher has begun.
  explicit GenerationWriting(Target& target) noexcept;
  /// @throws Error with kInvalidState if nothing can be written any more.
  Target& own() const;
  /// Writes nothing from now on.
  void let_go() noexcept;

 private:
  Target* target_;  // null: committed, moved from, or left behind by its publisher
};

}  // namespace ps_shm
