// Examples made up on the spot, of any size: for the cost of a step rather than for what it learns.
//
// Some hidden factors are drawn for each example; its features are mixtures of them with noise, its label is the class
// whose linear function of the factors is the largest, by a margin. So a linear model can learn nearly all of it from
// some examples of each class, however many features there are.
#pragma once

#include <string>
#include <string_view>

#include "train/data/dataset.hpp"

namespace ps::train {

// Whether a data source is one of these by its name.
bool is_synthetic(std::string_view source);

// Makes `synthetic:FEATURESxCLASSES[xEXAMPLES]`: EXAMPLES to train on (1000), a quarter as many to test. The same text
// gives the same examples everywhere. Throws Error where there are no such sizes.
DataSplit make_synthetic(const std::string& source);

}  // namespace ps::train
