// The page that --help prints: no line is wider than the terminal. And what is installed of it: a manual page, and what
// bash completes.
#pragma once

#include <string>
#include <vector>

namespace ps::tools {

// A line of it: what can be written, such as "--lr X", and what that means.
struct HelpEntry {
  std::string label, meaning;
};

struct HelpSection {
  std::string heading;
  std::vector<HelpEntry> entries;
};

struct HelpPage {
  std::string purpose, usage;
  std::vector<HelpSection> sections;  // one without entries is left out
  std::vector<std::string> notes;     // a paragraph each
  std::vector<HelpEntry> examples;
};

// The form in which every option's default is told.
std::string with_default(const std::string& meaning, const std::string& otherwise);

// Fits the terminal that stdout is; where it is none, 80 columns, or COLUMNS.
std::string to_text(const HelpPage& page);

// A page of section 1 for man(1).
std::string to_man(const std::string& program, const HelpPage& page);

// A script that completes the program's options and their values. Values are those that a form such as a|b names, files,
// folders and jobs. `has_commands`: the sections are commands, each with its options.
std::string to_bash(const std::string& program, const std::vector<HelpSection>& sections, bool has_commands);

}  // namespace ps::tools
