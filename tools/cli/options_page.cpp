#include "cli/options_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/option_tables.hpp"
#include "config/values.hpp"

namespace ps_shm::tools {
namespace {

// A line of the page: an option that several programs share.
struct Line {
  std::string name, form, meaning, otherwise, programs;
  config::Group group;
  bool is_live;
};

template <class Struct>
void collect(std::vector<Line>& lines, const char* program, const config::Settings<Struct>& rows) {
  for (const config::Setting<Struct>& row : rows) {
    const std::string& bounds = row.value.bounds;
    Line line{row.name,
              row.value.form,
              with_option_names(row.meaning) + (bounds.empty() ? "" : " (" + bounds + ")"),
              with_option_names(show_default(row, Struct{})),
              program,
              row.group,
              row.traits.is_live};
    // Placed next to the option of the same name of another program.
    const auto namesake =
        std::find_if(lines.rbegin(), lines.rend(), [&](const Line& l) { return l.name == line.name; });
    if (namesake == lines.rend()) {
      lines.push_back(std::move(line));
    } else if (namesake->meaning == line.meaning && namesake->form == line.form) {
      if (namesake->otherwise != line.otherwise)
        namesake->otherwise += fmt::format("; {}: {}", program, line.otherwise);
      namesake->programs += fmt::format(", {}", program);
    } else {
      lines.insert(namesake.base(), std::move(line));
    }
  }
}

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

}  // namespace

std::string options_page() {
  std::vector<Line> lines;
  collect(lines, "ps_shm", ps_options());
  collect(lines, "launch_shm", launch_options());
  collect(lines, "worker_shm", worker_options());
  std::string forms = config::describe_forms();
  for (std::size_t at = 0; (at = forms.find(". ", at)) != std::string::npos;) forms[at + 1] = '\n';
  std::string page = fmt::format(
      "# Options\n\n"
      "*For everybody who runs the programs. Read [First steps](start.md) before.*\n\n"
      "`launch_shm --help-markdown > docs/options.md` generates this page from the tables of settings.\n\n"
      "An option that is not given is read from its environment variable; an empty variable counts as not set.\n"
      "`inspect_shm set NAME=VALUE` changes a live setting while the job runs, but `LO..HI` and epochs can be given at\n"
      "the start only.\n"
      "{}\n",
      forms);
  std::set<std::string> anchored;  // an anchor leads to the first line of a name
  for (const config::Group group : config::kGroups) {
    page += fmt::format(
        "\n## {}\n\n| option | variable | default | programs | live | meaning |\n"
        "|---|---|---|---|---|---|\n",
        to_string(group));
    for (const Line& line : lines) {
      if (line.group != group) continue;
      const std::string option = option_of(line.name);
      page += fmt::format("| `{}{}{}`{} | `{}` | {} | {} | {} | {} |\n", option, line.form.empty() ? "" : " ",
                          cell(line.form), anchored.insert(line.name).second ? fmt::format("<a id=\"{}\"></a>", option) : "",
                          variable_of(line.name), cell(line.otherwise), line.programs, line.is_live ? "yes" : "",
                          cell(line.meaning));
    }
  }
  return page;
}

}  // namespace ps_shm::tools
