// Logistic regression of sparse examples.
#include "train/models/sparse/linear_model.hpp"

namespace ps_shm::train {

std::unique_ptr<SparseModel> make_logistic(const SparseInfo& info, const SparseModelOptions& options) {
  return std::make_unique<LinearModel<kernels::SparseLoss::kLogistic>>(info, options, true);
}

}  // namespace ps_shm::train
