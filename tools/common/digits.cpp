#include "common/digits.hpp"

#include <cstdint>

#ifndef PS_SHM_DATA_DIR
#error "PS_SHM_DATA_DIR must be defined as the absolute path of tools/data, in quotes"
#endif

// Each file becomes read-only data behind two hidden symbols: its bytes and its size, as the distance of two symbols
// is not a constant in C++. Hidden symbols need no relocation at run time, even in a position-independent program;
// they are global in it so that link-time optimisation may move this text away from the code below.
asm(R"(
.macro ps_embed symbol, file
  .pushsection .rodata.ps_digits, "a"
  .globl ps_digits_\symbol, ps_digits_\symbol\()_size
  .hidden ps_digits_\symbol, ps_digits_\symbol\()_size
  .type ps_digits_\symbol, STT_OBJECT
  .type ps_digits_\symbol\()_size, STT_OBJECT
  .balign 16
  ps_digits_\symbol:
    .incbin ")" PS_SHM_DATA_DIR R"(/\file"
  1:
  .size ps_digits_\symbol, 1b - ps_digits_\symbol
  .balign 8
  ps_digits_\symbol\()_size:
    .quad 1b - ps_digits_\symbol
  .size ps_digits_\symbol\()_size, 8
  .popsection
.endm
ps_embed train_images, digits-train-images.idx3-ubyte
ps_embed train_labels, digits-train-labels.idx1-ubyte
ps_embed test_images, digits-test-images.idx3-ubyte
ps_embed test_labels, digits-test-labels.idx1-ubyte
.purgem ps_embed
)");

#define PS_SHM_HIDDEN __attribute__((visibility("hidden")))

extern "C" {
PS_SHM_HIDDEN extern const unsigned char ps_digits_train_images[];
PS_SHM_HIDDEN extern const unsigned char ps_digits_train_labels[];
PS_SHM_HIDDEN extern const unsigned char ps_digits_test_images[];
PS_SHM_HIDDEN extern const unsigned char ps_digits_test_labels[];
PS_SHM_HIDDEN extern const std::uint64_t ps_digits_train_images_size;
PS_SHM_HIDDEN extern const std::uint64_t ps_digits_train_labels_size;
PS_SHM_HIDDEN extern const std::uint64_t ps_digits_test_images_size;
PS_SHM_HIDDEN extern const std::uint64_t ps_digits_test_labels_size;
}

namespace ps_shm::train {

EmbeddedData embedded_digits() {
  return {{ps_digits_train_images, ps_digits_train_images_size},
          {ps_digits_train_labels, ps_digits_train_labels_size},
          {ps_digits_test_images, ps_digits_test_images_size},
          {ps_digits_test_labels, ps_digits_test_labels_size}};
}

}  // namespace ps_shm::train
