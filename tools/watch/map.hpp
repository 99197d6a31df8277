// The page of one variable's chunks: a map whose marks are as high as a chunk's updates a second, and coloured by its
// retries.
#pragma once

#include <vector>

#include "watch/model.hpp"
#include "watch/text.hpp"

namespace ps::watch {

std::vector<Line> chunk_map(const Model& model, const ViewState& view, std::size_t rows, std::size_t columns);

}  // namespace ps::watch
