// Synthetic sparse examples, identical for identical sizes.
//
//   zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]]   every example has PER_ROW (50) different features, drawn by Zipf's law
//     (0.8): id 0 is the most frequent one. Values are 1 / sqrt(PER_ROW). A weight is planted for each feature, of
//     variance 1; a label is 1 with the probability 1 / (1 + exp(-4 s)) at the score s, else -1.
//   ratings:USERSxITEMSxRATINGS                   users uniform, items by Zipf's law (0.8), each rating on its own, so a
//     pair may occur twice. A rating is 3 + biases + the product of 4 planted factors + noise, rounded, in 1..5.
#pragma once

#include <functional>
#include <string>

#include "train/data/sparse/sparse_file.hpp"

namespace ps_shm::train {

bool is_generated(const std::string& source) noexcept;

// Requires: is_generated. Options used: keyed, with which the keys are the ids; and how to stop. Throws Error if the sizes
// are invalid; Interrupted.
void generate(const std::string& source, const SparseSourceOptions& options, SparseWriter& out);

}  // namespace ps_shm::train
