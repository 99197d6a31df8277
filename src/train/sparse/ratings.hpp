// Ratings as text: one a line, "user item rating [time]".
//
// Between the fields is what the first line has there: "::", a tab, "," or blanks. Users and items are any text of up to
// 64 bytes, numbered as they first appear, or as in other data; the rating is a finite number, the time is not used. A
// first line of words between tabs or commas is taken for a header. What is malformed is an Error that names file, line
// and column.
#pragma once

#include <string_view>

#include "train/sparse/sparse_file.hpp"
#include "train/sparse/text_lines.hpp"

namespace ps::train {

// Whether a line looks like a rating or a header of ratings, rather than like LIBSVM text.
bool looks_like_ratings(std::string_view line);

// Reads all lines into the writer. Memory grows with the number of different users and items. With `names_of` not null
// they have the ids that they have there, and two more ids are those of all users and of all items that it has not.
// Requires: it has names.
void read_ratings(TextLines& lines, const SparseData* names_of, SparseWriter& out);

}  // namespace ps::train
