// The text that --help prints, fitted to the terminal's width, and what is installed with it: a manual page, and a bash
// completion.
#pragma once

#include <string>
#include <vector>

namespace ps_shm::tools {

// An entry: what can be written, such as "--lr X", and its meaning.
struct HelpEntry {
  std::string label, meaning;
};

struct HelpSection {
  std::string heading;
  std::vector<HelpEntry> entries;
};

struct HelpPage {
  std::string purpose, usage;
  std::vector<HelpSection> sections;  // empty sections are omitted
  std::vector<std::string> notes;     // one paragraph each
  std::vector<HelpEntry> examples;
};

// Appends the default in the form used for all options.
std::string with_default(const std::string& meaning, const std::string& otherwise);

// Fits the terminal of stdout; without one, 80 columns, or COLUMNS.
std::string to_text(const HelpPage& page);

// A manual page of section 1, for man(1).
std::string to_man(const std::string& program, const HelpPage& page);

// A script that completes the program's options and their values: the words of a form such as a|b, files,
// folders and jobs. `has_commands`: each section is a command with its options.
std::string to_bash(const std::string& program, const std::vector<HelpSection>& sections, bool has_commands);

}  // namespace ps_shm::tools
