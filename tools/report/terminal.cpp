#include "report/terminal.hpp"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace ps_shm::report {
namespace {

constexpr std::size_t kFurtherIn = 4;  // indent of continued lines and rows
constexpr std::size_t kGap = 2;        // between columns

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// The bytes of the first `count` characters.
std::size_t bytes_of(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  for (; at < text.size(); ++at)
    if (begins_character(text[at]) && count-- == 0) break;
  return at;
}

std::string padded(const std::string& text, std::size_t width, bool to_the_right) {
  const std::string blanks(width - std::min(width, width_of(text)), ' ');
  return to_the_right ? blanks + text : text + blanks;
}

// How much of a word fits before the line's end, up to one of its marks, in `room` bytes; 0: none does.
std::size_t break_of(std::string_view word, std::size_t room) {
  const std::size_t mark = word.substr(0, room).find_last_of("|,:;/[=");
  return mark == std::string_view::npos ? 0 : mark + (word[mark] != '[');
}

std::string without_end_blanks(const std::string& line) { return line.substr(0, line.find_last_not_of(' ') + 1); }

// The line on which each column of a table is placed, if no line may be wider than `columns`.
std::vector<std::size_t> lines_of(const std::vector<std::size_t>& widths, std::size_t columns) {
  std::vector<std::size_t> lines;
  std::size_t line = 0, used = 0;
  for (const std::size_t width : widths) {
    if (used != 0 && used + width > columns) ++line, used = kFurtherIn;
    used += width + kGap;
    lines.push_back(line);
  }
  return lines;
}

// The same, with as few lines as possible, of about equal length.
std::vector<std::size_t> folded(const std::vector<std::size_t>& widths, std::size_t columns) {
  std::vector<std::size_t> best = lines_of(widths, columns);
  while (columns-- > kLeastColumns) {
    const std::vector<std::size_t> narrower = lines_of(widths, columns);
    if (narrower.back() != best.back()) break;
    best = narrower;
  }
  return best;
}

// Or a size, a duration, a fraction: text that begins with a digit.
bool is_number(const std::string& cell) {
  const std::size_t begin = cell.find_first_not_of("+-");
  return begin != std::string::npos &&
         (cell.substr(begin) == "nan" || cell.substr(begin) == "inf" || (cell[begin] >= '0' && cell[begin] <= '9'));
}

// Numbers, and "-" for missing ones.
bool is_of_numbers(const std::vector<Row>& rows, std::size_t column) {
  const auto count = [&](auto is_such) {
    return std::count_if(rows.begin() + 1, rows.end(), [&](const Row& row) { return is_such(row[column]); });
  };
  const auto numbers = count(is_number), gaps = count([](const std::string&cell) { return cell == "-"; });
  return numbers != 0 && static_cast<std::size_t>(numbers + gaps) == rows.size() - 1;
}

// Three digits, or all digits before the decimal point.
std::string three_digits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  if (value <= 0) return "0";
  return value < 0.0095 ? fmt::format("{:.1g}", value) : fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

Columns columns_of(std::FILE* out) {
  winsize size{};
  Columns columns;
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col != 0) columns = size.ws_col;
  const char* given = std::getenv("COLUMNS");
  const std::size_t wanted = given != nullptr ? std::strtoul(given, nullptr, 10) : 0;
  if (wanted != 0) columns = std::min(columns.value_or(wanted), wanted);
  return columns;
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string cut(const std::string& text, std::size_t columns) {
  constexpr std::string_view kMore = "...";
  if (width_of(text) <= columns) return text;
  if (columns <= kMore.size()) return text.substr(0, bytes_of(text, columns));
  return text.substr(0, bytes_of(text, columns - kMore.size())).append(kMore);
}

std::string wrapped(std::string_view line, std::size_t columns, std::size_t indent) {
  columns = std::max(columns, kLeastColumns);
  indent = std::min(indent, columns / 2);
  std::string lines;
  std::size_t used = 0;
  bool has_word = false;
  const auto begin_line = [&] {
    lines = without_end_blanks(lines) + '\n' + std::string(indent, ' ');
    used = indent;
    has_word = false;
  };
  while (!line.empty()) {
    const std::size_t gap = std::min(line.find_first_not_of(' '), line.size());
    line.remove_prefix(gap);
    std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(word.size());
    const std::size_t width = width_of(word), room = columns - std::min(columns, used + gap);
    if (has_word && width > room && (indent + width <= columns || break_of(word, bytes_of(word, room)) == 0))
      begin_line();
    else
      lines.append(gap, ' '), used += gap;
    while (used + width_of(word) > columns) {
      const std::size_t most = bytes_of(word, columns - std::min(used, columns - 1)), mark = break_of(word, most);
      const std::size_t part = mark != 0 ? mark : most;
      lines += word.substr(0, part);
      word.remove_prefix(part);
      begin_line();
    }
    lines += word;
    used += width_of(word);
    has_word = true;
  }
  return lines;
}

std::string fitted(const std::string& text, Columns columns) {
  if (!columns) return text;
  std::string all, line;
  for (std::istringstream lines(text); std::getline(lines, line);) {
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    all += (width_of(line) <= *columns ? line : wrapped(line, *columns, begin + kFurtherIn)) + '\n';
  }
  return all;
}

std::string table(const std::vector<Row>& rows, Columns columns) {
  const std::size_t most = std::max(columns.value_or(std::string::npos), kLeastColumns);
  std::vector<std::size_t> widths(rows[0].size());
  std::vector<bool> is_numeric;
  for (std::size_t c = 0; c < widths.size(); ++c) {
    for (const Row& row : rows) widths[c] = std::max(widths[c], width_of(row[c]));
    widths[c] = std::min(widths[c], c == 0 ? most : most - kFurtherIn);
    is_numeric.push_back(is_of_numbers(rows, c));
  }
  const std::vector<std::size_t> line_of = columns ? folded(widths, most) : std::vector<std::size_t>(widths.size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      if (c != 0 && line_of[c] != line_of[c - 1]) {
        text += without_end_blanks(line) + '\n';
        line.assign(kFurtherIn, ' ');
      }
      line += padded(cut(row[c], widths[c]), widths[c], is_numeric[c]).append(kGap, ' ');
    }
    text += without_end_blanks(line) + '\n';
  }
  return text;
}

std::string table_in_lines(std::vector<Column> titles, std::vector<Row> rows, Columns columns) {
  const std::size_t all = titles.size();
  const auto leave_out = [&](std::size_t c) {
    titles.erase(titles.begin() + static_cast<std::ptrdiff_t>(c));
    for (Row& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
  };
  const auto width = [&] {
    std::size_t sum = kGap * (titles.size() - 1);
    for (std::size_t c = 0; c < titles.size(); ++c) {
      std::size_t widest = width_of(titles[c].title);
      for (const Row& row : rows) widest = std::max(widest, width_of(row[c]));
      sum += widest;
    }
    return sum;
  };
  for (std::size_t c = columns ? all : 0; c-- > 0;)
    if (std::all_of(rows.begin(), rows.end(), [&](const Row& row) { return row[c] == titles[c].nothing; }))
      leave_out(c);
  while (columns && width() > *columns) {
    const auto first = std::min_element(titles.begin(), titles.end(),
                                        [](const Column& a, const Column& b) { return a.leaves < b.leaves; });
    if (first->leaves == Column::kStays) break;
    leave_out(static_cast<std::size_t>(first - titles.begin()));
  }
  Row head;
  for (const Column& column : titles) head.push_back(column.title);
  rows.insert(rows.begin(), head);
  return table(rows, columns) + (titles.size() == all ? "" : fitted("--wide shows more columns\n", columns));
}

std::string listed(const std::vector<std::string>& entries, Columns columns) {
  std::size_t widest = 0;
  for (const std::string& entry : entries) widest = std::max(widest, width_of(entry));
  const std::size_t beside = columns ? std::max<std::size_t>(1, (*columns + kGap) / (widest + kGap)) : 1;
  const std::size_t height = (entries.size() + beside - 1) / beside;
  std::string text;
  for (std::size_t row = 0; row < height; ++row) {
    std::string line;
    for (std::size_t i = row; i < entries.size(); i += height) line += padded(entries[i], widest + kGap, false);
    text += without_end_blanks(line) + '\n';
  }
  return fitted(text, columns);
}

std::string bar(double share, std::size_t columns, bool has_utf8) {
  static constexpr std::array<std::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = std::size_t(std::clamp(share, 0.0, 1.0) * double(columns) * 8 + 0.5);
  std::string line;
  for (std::size_t i = 0; i < eighths / 8; ++i) line += has_utf8 ? "█" : "#";
  if (has_utf8) line += kEighths[eighths % 8];
  return line;
}

bool has_utf8() {
  const locale_t own = newlocale(LC_CTYPE_MASK, "", nullptr);  // the process keeps the locale "C"
  if (own == nullptr) return false;
  const bool is_utf8 = std::strcmp(nl_langinfo_l(CODESET, own), "UTF-8") == 0;
  freelocale(own);
  return is_utf8;
}

bool has_colour(std::FILE* out) {
  const char* const refused = std::getenv("NO_COLOR");  // no-color.org: any value but the empty one
  const char* const kind = std::getenv("TERM");
  return isatty(fileno(out)) != 0 && (refused == nullptr || *refused == '\0') && kind != nullptr && *kind != '\0' &&
         std::strcmp(kind, "dumb") != 0;
}

std::string coloured(Colour colour, const std::string& text) {
  return fmt::format("\x1b[{}m{}\x1b[39m", static_cast<int>(colour), text);
}

std::string duration(double seconds) {
  const double ms = seconds * 1000;
  return ms < 999.5 ? three_digits(ms) + " ms" : three_digits(seconds) + " s";
}

std::string rate(double per_second, const char* of_what) {
  return fmt::format("{}{}{}/s", three_digits(per_second), *of_what == '\0' ? "" : " ", of_what);
}

}  // namespace ps_shm::report
