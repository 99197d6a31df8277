// Files installed with the programs: manual pages and completions, generated from the content of --help.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "cli/help.hpp"
#include "cli/version.hpp"

namespace ps_shm::tools {
namespace {

// Escapes text for roff.
std::string roff(const std::string& text) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\u00a0") == 0)
      escaped += "\\~", ++i;
    else if (text[i] == '\\')
      escaped += "\\e";
    else if (text[i] == '-')
      escaped += "\\-";
    else
      escaped += text[i];
  }
  return escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" + escaped : escaped;
}

std::string roff_entries(const std::vector<HelpEntry>& entries) {
  std::string text;
  for (const HelpEntry& entry : entries)
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(entry.label), roff(entry.meaning));
  return text;
}

std::string option_in(const std::string& label) {  // "-h,--help", "--lr X"
  const std::string names = label.substr(0, label.find(' '));
  const auto comma = names.rfind(',');
  return comma == std::string::npos ? names : names.substr(comma + 1);
}

std::string form_in(const std::string& label) {
  const auto blank = label.find(' ');
  return blank == std::string::npos ? "" : label.substr(blank + 1);
}

// How bash completes a value of that form; empty if unknown.
std::string values_of(const std::string& option, const std::string& form) {
  if (option == "--job") return "-W \"$(cd /dev/shm 2>/dev/null && ls | sed -n 's/^ps_shm\\.\\([^.]*\\)$/\\1/p')\"";
  std::string words;
  for (std::size_t begin = 0; begin < form.size();) {
    const std::size_t bar = std::min(form.find('|', begin), form.size());
    const std::string word = form.substr(begin, bar - begin);
    // Lower-case words are literal values.
    if (!word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
          return std::islower(c) || std::isdigit(c) || c == '-' || c == '_';
        }))
      words += (words.empty() ? "" : " ") + word;
    begin = bar + 1;
  }
  if (!words.empty()) return "-W \"" + words + "\"";
  if (form.find("DIR") != std::string::npos && form.find("FILE") == std::string::npos) return "-d";
  return form.find("FILE") != std::string::npos || option == "--data" ? "-f" : "";
}

}  // namespace

std::string to_man(const std::string& program, const HelpPage& page) {
  std::string upper = program;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string text = fmt::format(
      ".\\\" Made by {} --help-man.\n.TH {} 1 \"\" \"ps-shm {}\" \"User Commands\"\n"
      ".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n\\fB{}\\fR\n.SH OPTIONS\n",
      program, upper, version_number(), program, roff(page.purpose), roff(page.usage));
  for (const HelpSection& section : page.sections)
    if (!section.entries.empty())
      text += fmt::format(".SS {}\n", roff(section.heading)) + roff_entries(section.entries);
  if (!page.notes.empty()) text += ".SH NOTES\n";
  for (const std::string& note : page.notes) text += fmt::format(".PP\n{}\n", roff(note));
  if (!page.examples.empty()) text += ".SH EXAMPLES\n" + roff_entries(page.examples);
  text += ".SH SEE ALSO\n";
  std::string others;
  for (const char* other : {"inspect_shm", "launch_shm", "ps_shm", "worker_shm"})
    if (other != program) others += fmt::format("{}\\fB{}\\fR(1)", others.empty() ? "" : ",\n", other);
  return text + others + "\n";
}

std::string to_bash(const std::string& program, const std::vector<HelpSection>& sections, bool has_commands) {
  std::map<std::string, std::vector<std::string>> values;  // completion -> options that use it
  std::map<std::string, std::string> known;
  std::string cases, commands, all;
  for (const HelpSection& section : sections) {
    std::string options;
    for (const HelpEntry& entry : section.entries) {
      const std::string option = option_in(entry.label), form = form_in(entry.label);
      if (!option.starts_with("-")) continue;  // a word that is not an option
      options += (options.empty() ? "" : " ") + option;
      if (!form.empty() && known.emplace(option, form).second) values[values_of(option, form)].push_back(option);
    }
    if (has_commands) cases += fmt::format("    {}) words=\"{}\" ;;\n", section.heading, options);
    commands += section.heading + " ";
    all += options + " ";
  }
  std::string text = fmt::format(
      "# bash completion for {0}; made by {0} --help-bash.\n_{0}() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} words=\n  COMPREPLY=()\n"
      "  case $before in\n",
      program);
  for (const auto& [how, options] : values) {
    text += fmt::format("    {}) ", fmt::join(options, "|"));
    text += how.empty() ? "return ;;\n" : fmt::format("COMPREPLY=($(compgen {} -- \"$word\")); return ;;\n", how);
  }
  text += "  esac\n";
  if (has_commands)
    text +=
        fmt::format("  case ${{COMP_WORDS[1]}} in\n{}  esac\n  ((COMP_CWORD > 1)) || words=\"{}--help --version\"\n",
                    cases, commands);
  else
    text += fmt::format("  words=\"{}--help --help-all --version\"\n", all);
  return text + fmt::format("  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}}\ncomplete -F _{0} {0}\n", program);
}

}  // namespace ps_shm::tools
