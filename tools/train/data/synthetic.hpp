// Synthetic examples of any size: meant for measuring the cost of a step, not for what is learned.
//
// Each example has some hidden factors, drawn at random; its features are mixtures of them with noise, its label is the
// class whose linear function of the factors is the largest, by a margin. So a linear model can learn most of it from
// a few examples of each class, however many features there are.
#pragma once

#include <string>
#include <string_view>

#include "train/data/dataset.hpp"

namespace ps_shm::train {

// Whether a data source has this form.
bool is_synthetic(std::string_view source);

// Makes `synthetic:FEATURESxCLASSES[xEXAMPLES]`: EXAMPLES for training (1000), a quarter as many for testing. Equal
// texts give equal examples everywhere. Throws Error if the sizes are invalid; Interrupted.
DataSplit make_synthetic(const std::string& source, const LoadHooks& hooks);

}  // namespace ps_shm::train
