// Ratings as text: one a line, "user item rating [time]".
//
// The separator is that of the first line: "::", a tab, "," or blanks. Users and items are any text of up to
// 64 bytes, numbered in order of appearance, or as in other data; the rating is a finite number; the time is unused. A
// first line of words separated by tabs or commas is a header. Malformed input is an Error with file, line
// and column.
#pragma once

#include <string_view>

#include "train/data/sparse/sparse_file.hpp"
#include "train/data/sparse/text_lines.hpp"

namespace ps_shm::train {

// Whether a line looks like a rating or a header of ratings, not like LIBSVM text.
bool looks_like_ratings(std::string_view line);

// Whether it has a number as its rating, too, so that it is no header.
bool is_rating(std::string_view line);

// Reads all lines into the writer. Memory grows with the number of different users and items. If `names_of` is not
// null, ids are those of that data, and two additional ids stand for all users and all items that it lacks.
// Requires: it has names.
void read_ratings(TextLines& lines, const SparseData* names_of, SparseWriter& out);

}  // namespace ps_shm::train
