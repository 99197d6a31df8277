// LIBSVM text: one example a line, "label [qid:N] index:value ... [# comment]".
//
// Labels and values are finite numbers, indices ascend. Blank lines and lines with only a comment are skipped; a line
// with only a label is an example without features. A qid is checked and not used. What is malformed is an Error that
// names file, line and column.
#pragma once

#include "train/sparse/sparse_data.hpp"
#include "train/sparse/sparse_file.hpp"
#include "train/sparse/text_lines.hpp"

namespace ps::train {

// Reads all lines into the writer. Of the options: first_index, hash_bits and features.
void read_libsvm(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out);

}  // namespace ps::train
