// Lines of styled text, and what the pages put into them: tables, bars, curves. Knows neither job nor terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ps::watch {

enum class Style { kPlain, kBold, kDim, kGood, kWarn, kBad, kSelected, kCool, kTitle };
inline constexpr std::size_t kStyles = 9;

struct Span {
  std::string text;
  Style style = Style::kPlain;
  bool operator==(const Span&) const = default;
};
using Line = std::vector<Span>;

std::string text_of(const Line& line);
// The first `columns` characters.
Line clipped(const Line& line, std::size_t columns);

// What is drawn with: block elements of Unicode, or ASCII where a terminal has no UTF-8. Level 0 to kLevels - 1.
inline constexpr std::size_t kLevels = 8;
std::string_view level_mark(std::size_t level, bool has_utf8);

// A curve as one mark for each column, the newest values at the right; as many as there are, but `columns` at most.
// Values that are no numbers are blanks.
std::string sparkline(const std::vector<double>& values, std::size_t columns, bool has_utf8);
// So much of `columns` marks, in eighths.
std::string bar(double share, std::size_t columns, bool has_utf8);

// A table of which those columns are shown that fit: those of a higher rank go first. The last column may be cut.
struct Column {
  std::string title;
  bool is_number = false;
  int rank = 0;
};
using Cells = std::vector<Span>;
struct Table {
  std::vector<Column> columns;
  std::vector<Cells> rows;
  std::size_t sorted_by = 0;  // marked in its title
  bool is_reversed = false;
  bool has_utf8 = true;
};
// The titles and the rows; `selected`: of the rows, marked over all of its line.
std::vector<Line> lines_of(const Table& table, std::size_t columns, std::size_t selected);

// Figures of a few characters.
std::string short_number(double number);       // "0.251", "12.4", "3415", "12.9k", "4.21M"
std::string short_bytes(std::uint64_t bytes);  // "512 B", "12.4 KiB"
std::string short_seconds(double seconds);     // "1.2 s", "3:25 min", "2:03:25 h"

}  // namespace ps::watch
