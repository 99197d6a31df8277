// Text fitted to where it is shown: terminal width, wrapped lines, lists and tables, colours, and durations and rates in
// suitable units.
//
// A text's width is the number of its characters, in UTF-8.
#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::report {

// The width to fit; none: no limit.
using Columns = std::optional<std::size_t>;
inline constexpr std::size_t kUsualColumns = 80;  // of a terminal that does not report its width

// Of `out` at this moment: COLUMNS, or the terminal's width if that is smaller. None if `out` is not a terminal and
// COLUMNS is not set.
Columns columns_of(std::FILE* out);

std::size_t width_of(std::string_view text);

// The text, or its beginning and "...".
std::string cut(const std::string& text, std::size_t columns);

// The functions below treat a smaller width as this one.
inline constexpr std::size_t kLeastColumns = 20;

// Wraps a line, with `indent` blanks before all lines but the first. A word longer than a line is broken,
// after one of its marks if possible.
std::string wrapped(std::string_view line, std::size_t columns, std::size_t indent);

// Wraps the lines of a text that do not fit, indented by four more blanks.
std::string fitted(const std::string& text, Columns columns);

// The titles and the rows below them; numbers are right-aligned. Columns that do not fit continue on further
// lines of their row, titles too; wider cells are cut.
using Row = std::vector<std::string>;
std::string table(const std::vector<Row>& rows, Columns columns);

struct Column {
  static constexpr unsigned kStays = ~0U;
  std::string title;
  unsigned leaves;      // the lowest is left out first if a row does not fit on a line
  std::string nothing;  // in a cell that says nothing
};

// A table whose rows are one line each where that is possible: with limited space it has neither columns that say nothing
// nor, as far as necessary, less important ones, and ends with a line about that. `rows` are without titles; not empty.
std::string table_in_lines(std::vector<Column> titles, std::vector<Row> rows, Columns columns);

// Entries in as many columns as fit, read downwards; without a limit, one per line.
std::string listed(const std::vector<std::string>& entries, Columns columns);

// A bar of `columns` marks, filled to this fraction, in eighths with Unicode's block elements.
std::string bar(double share, std::size_t columns, bool has_utf8);
bool has_utf8();  // of the user's locale

// Whether `out` is a terminal that shows colours, and the user wants them (NO_COLOR is not set).
bool has_colour(std::FILE* out);
enum class Colour { kRed = 31, kGreen = 32 };  // as in the escape sequence
std::string coloured(Colour colour, const std::string& text);

std::string duration(double seconds);                      // "0.04 ms", "171 ms", "1.23 s", "3725 s"
std::string rate(double per_second, const char* of_what);  // "0.25 steps/s", "34314 steps/s"; of "": "34314/s"

}  // namespace ps_shm::report
