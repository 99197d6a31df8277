// Text for people that fits where it is shown: how wide a terminal is, lines, lists and tables that fit, and durations and
// rates in units that suit them. There are no colours in it.
//
// A text's width is the number of its characters, in UTF-8.
#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ps::report {

// The width to fit; none: there is no limit.
using Columns = std::optional<std::size_t>;
inline constexpr std::size_t kUsualColumns = 80;  // of a terminal that does not say

// Of `out` at this moment: COLUMNS, or what the terminal has where that is less. None where `out` is no terminal and
// nobody has set COLUMNS.
Columns columns_of(std::FILE* out);

// The text, or its beginning and "...".
std::string cut(const std::string& text, std::size_t columns);

// For all below, fewer columns than these count as so many.
inline constexpr std::size_t kLeastColumns = 20;

// A line in lines that fit, those after the first behind `indent` blanks. A word that is longer than a line is broken, if
// it can be behind one of its marks.
std::string wrapped(std::string_view line, std::size_t columns, std::size_t indent);

// A text whose lines fit: those that do not are wrapped, four blanks further in than they begin.
std::string fitted(const std::string& text, Columns columns);

// The titles and the rows below them; numbers stand at the right of their column. Columns that do not fit stand on further
// lines of their row, titles too; what is wider than a line is cut.
using Row = std::vector<std::string>;
std::string table(const std::vector<Row>& rows, Columns columns);

// Entries in as many columns as fit, to be read downwards; where there is no limit, one a line.
std::string listed(const std::vector<std::string>& entries, Columns columns);

std::string duration(double seconds);                      // "0.04 ms", "171 ms", "1.23 s", "3725 s"
std::string rate(double per_second, const char* of_what);  // "0.25 steps/s", "34314 steps/s"; of "": "34314/s"

}  // namespace ps::report
