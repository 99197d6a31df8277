#include "cli/help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "report/terminal.hpp"

namespace ps_shm::tools {
namespace {

constexpr std::size_t kMostColumns = 110;  // longer lines are hard to follow
constexpr std::size_t kIndent = 2, kGap = 2;
constexpr std::size_t kMeaningColumn = 30, kNarrowMeaningColumn = 6;
constexpr std::size_t kNarrow = 72;  // with fewer columns, meanings are placed below their labels

constexpr const char* kNoBreak = "\u00a0";  // a blank at which no line is broken
constexpr std::size_t kMostTogether = 20;   // a default of up to this many characters is not broken

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

std::string entry_text(const HelpEntry& entry, std::size_t columns) {
  const std::size_t column = columns < kNarrow ? kNarrowMeaningColumn : kMeaningColumn;
  const std::string label = fmt::format("{:{}}{}", "", kIndent, entry.label);
  if (label.size() + kGap <= column)
    return report::wrapped(fmt::format("{:<{}}{}", label, column, entry.meaning), columns, column) + "\n";
  // Values are aligned below each other, not below the option.
  const std::size_t option = kIndent + entry.label.find(' ') + 1;
  return report::wrapped(label, columns, option < column ? option : 2 * kIndent) + "\n" +
         report::wrapped(fmt::format("{:{}}{}", "", column, entry.meaning), columns, column) + "\n";
}

}  // namespace

std::string with_default(const std::string& meaning, const std::string& otherwise) {
  const bool is_short = otherwise.size() <= kMostTogether;
  return fmt::format("{} [default:{}{}]", meaning, kNoBreak, is_short ? replaced(otherwise, " ", kNoBreak) : otherwise);
}

std::string to_text(const HelpPage& page) {
  const std::size_t columns = std::min(report::columns_of(stdout).value_or(report::kUsualColumns), kMostColumns);
  std::string text = report::wrapped(page.purpose, columns, 0) + "\n\n";
  text += report::wrapped("Usage: " + page.usage, columns, 7) + "\n";
  const auto add = [&](const HelpSection& section) {
    if (section.entries.empty()) return;
    text += fmt::format("\n{}\n", section.heading);
    for (const HelpEntry& entry : section.entries) text += entry_text(entry, columns);
  };
  for (const HelpSection& section : page.sections) add(section);
  for (const std::string& note : page.notes) text += fmt::format("\n{}\n", report::wrapped(note, columns, 0));
  add({"Examples", page.examples});
  return replaced(text, kNoBreak, " ");
}

}  // namespace ps_shm::tools
