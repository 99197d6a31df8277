// The linear support vector machine of sparse examples.
#include "train/models/sparse/linear_model.hpp"

namespace ps_shm::train {

std::unique_ptr<SparseModel> make_svm(const SparseInfo& info, const SparseModelOptions& options) {
  return std::make_unique<LinearModel<kernels::SparseLoss::kHinge>>(info, options, false);
}

}  // namespace ps_shm::train
