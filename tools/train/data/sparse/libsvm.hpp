// LIBSVM text: one example a line, "label [qid:N] index:value ... [# comment]".
//
// Labels and values are finite numbers, indices ascend; blanks may stand before a value. Blank lines and lines with only
// a comment are skipped; a line with only a label is an example without features. A qid is checked but not used.
// Malformed input is an Error with file, line and column.
#pragma once

#include <string_view>

#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_file.hpp"
#include "train/data/sparse/text_lines.hpp"

namespace ps_shm::train {

// Whether a line has a label and features, so that it can be nothing else. A label alone may be of another format.
bool looks_like_libsvm(std::string_view line);

// Reads all lines into the writer. Options used: first_index, hash_bits, features and keyed.
void read_libsvm(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out);

}  // namespace ps_shm::train
