// The handwritten digits of tools/data, linked into the program. Attribution and licence: tools/data/README.md.
#pragma once

#include "train/data/dataset.hpp"

namespace ps_shm::train {

// Views of the four IDX files, valid for the life of the program; for load_data.
EmbeddedData embedded_digits();

}  // namespace ps_shm::train
