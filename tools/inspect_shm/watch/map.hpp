// The page of one variable's chunks: a map in which a mark's height shows a chunk's updates per second, and its colour
// the retries.
#pragma once

#include <vector>

#include "inspect_shm/watch/model.hpp"
#include "inspect_shm/watch/text.hpp"

namespace ps_shm::watch {

std::vector<Line> chunk_map(const Model& model, const ViewState& view, std::size_t rows, std::size_t columns);

}  // namespace ps_shm::watch
