// What a publisher is to the generation that it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ps_shm/generation_writing.hpp"
#include "publish/written_parts.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN GenerationWriting::Target {
  explicit Target(std::vector<TensorSpec> of) : tensors(std::move(of)), written(tensors) {}
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // The object of the generation under way, which may be moved.
  void follow(GenerationWriting& object) noexcept;
  // The generation under way is no longer written, whatever becomes of its object.
  void end_writing() noexcept {
    if (writing != nullptr) writing->let_go();
  }

  // Each throws Error: in a forked child; if there is no such tensor.
  virtual void require_own() const = 0;
  virtual void require_tensor(std::uint32_t tensor) const = 0;
  // The memory of a tensor in the generation under way.
  virtual std::byte* place(std::uint32_t tensor) = 0;
  virtual std::size_t generation_bytes() const = 0;

  const std::vector<TensorSpec> tensors;
  GenerationWriting* writing = nullptr;  // the generation under way, and which parts it has
  WrittenParts written;

 protected:
  ~Target() = default;
};

}  // namespace ps_shm
