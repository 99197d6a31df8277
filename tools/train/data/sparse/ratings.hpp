// Ratings as text: one a line, "user item rating [time]".
//
// The separator is that of the first line: "::", a tab, "," or blanks. Users and items are any text of up to
// 64 bytes, numbered in order of appearance, or as in other data; the rating is a finite number; the time is unused. A
// first line of words separated by tabs or commas is a header. Malformed input is an Error with file, line
// and column.
#pragma once

#include <cstdint>
#include <string_view>

#include "train/data/sparse/sparse_file.hpp"
#include "train/data/sparse/text_lines.hpp"

namespace ps_shm::train {

// Whether a line looks like a rating or a header of ratings, not like LIBSVM text.
bool looks_like_ratings(std::string_view line);

// Whether it has a number as its rating, too, so that it is no header.
bool is_rating(std::string_view line);

// The key of a user or an item in keyed data: XXH3 (64 bits) of its name, with the seed 1 for users and 2 for items.
std::uint64_t rating_key(bool is_item, std::string_view name) noexcept;

// Reads all lines into the writer. Memory grows with the number of different users and items, but not of keyed data. If
// `names_of` is not null, ids are those of that data, and two additional ids stand for all users and all items that it
// lacks. Requires: it has names. Options used: names_of and keyed.
void read_ratings(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out);

}  // namespace ps_shm::train
