// A GPU's gradients of whole models against the CPU's.
#include <doctest/doctest.h>

#include "gpu/tables.hpp"
#include "support/gpu_model_check.hpp"

TEST_CASE("gpu model: loss and gradients equal the CPU's, for both models and odd sizes") {
  ps_shm::test::check_gpu_gradients(ps_shm::test::cuda(), ps_shm::test::model_kernels());
}
