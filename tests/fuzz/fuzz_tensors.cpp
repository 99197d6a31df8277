// Any bytes as a safetensors file: tensors inside it, one after the other to its end, or an Error.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "persistence/tensor_reader.hpp"
#include "ps_shm/errors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int file = memfd_create("tensors", MFD_CLOEXEC);
  if (file < 0 || write(file, data, size) != static_cast<ssize_t>(size)) abort();
  try {
    const ps_shm::persistence::TensorFile tensors(fmt::format("/proc/self/fd/{}", file));
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : tensors.tensors()) {
      if (tensor.begin > size || tensor.bytes > size - tensor.begin) abort();
      bytes += tensor.bytes;
      if (!ps_shm::persistence::is_float(tensor.dtype)) continue;
      std::vector<float> values(tensor.elements);
      tensors.read(tensor, values);
    }
    if (bytes > size) abort();
  } catch (const ps_shm::Error&) {
  }
  close(file);
  return 0;
}
