// Lines of styled text, and their elements: tables and curves. Independent of jobs and terminals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::watch {

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

// The characters for drawing: Unicode block elements, or ASCII without UTF-8. Level 0 to kLevels - 1.
inline constexpr std::size_t kLevels = 8;
std::string_view level_mark(std::size_t level, bool has_utf8);

// A curve with one mark per column, the newest values at the right; at most `columns` marks.
// Non-finite values are blanks.
std::string sparkline(const std::vector<double>& values, std::size_t columns, bool has_utf8);

// A table that shows the columns that fit: those of a higher rank are dropped first. The last column may be cut.
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
// The titles and the rows; the row `selected` is highlighted over its full width.
std::vector<Line> lines_of(const Table& table, std::size_t columns, std::size_t selected);

// Numbers in a few characters.
std::string short_number(double number);       // "0.251", "12.4", "3415", "12.9k", "4.21M"
std::string short_bytes(std::uint64_t bytes);  // "512 B", "12.4 KiB"
std::string short_seconds(double seconds);     // "1.2 s", "3:25 min", "2:03:25 h"

}  // namespace ps_shm::watch
