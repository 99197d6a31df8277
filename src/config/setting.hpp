// A setting is one row of a table: its name, how its value is written as text and read, its bounds, and its
// description. The tables are the source of command lines and the environment, --help, checks, the options that
// launch_shm passes on, the settings in a job's control segment, the check whether a ps may adopt a job, inspect_shm's
// keys and docs/options.md.
//
// A row belongs to the structure that holds the value. within() converts rows of a structure to rows of one that
// contains it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ps_shm/optimizer.hpp"

namespace ps_shm::config {

// The headings under which settings are shown.
enum class Group { kJob, kWorkers, kOptimizer, kPlacement, kData, kOutput, kRun };
inline constexpr Group kGroups[] = {Group::kJob,  Group::kWorkers, Group::kOptimizer, Group::kPlacement,
                                    Group::kData, Group::kOutput,  Group::kRun};
const char* to_string(Group group) noexcept;

// The programs that accept a setting: a sum of these. None: only the library has it.
inline constexpr unsigned kNone = 0, kPs = 1, kWorker = 2, kLaunch = 4;

enum class Kind {
  kNumber,
  kWord,
  kFlag,   // off unless it is given
  kPairs,  // NAME=NUMBER, comma-separated; may be given repeatedly
};

template <class Struct>
struct Value {
  Kind kind = Kind::kWord;
  std::string form;                // form of the text: N, TIME, async|ssp|sync; empty: a flag
  std::string bounds;              // "1 to 256"; empty: none that can be said briefly
  std::vector<std::string> words;  // the allowed words; empty: any other text

  std::function<void(Struct&, const std::string& text)> read;  // throws Error if the text is invalid
  std::function<void(const Struct&)> check;                    // throws Error if the value is out of bounds
  std::function<std::string(const Struct&)> write;             // text that read() accepts; empty: not given
};

struct Traits {
  const char* unit = "";         // steps, s, bytes
  const char* otherwise = "";    // what holds if it is not given, or 0; empty: the default value shows it
  bool is_live = false;          // can be changed while the job runs: it has a row in live_rows.hpp
  bool is_stored = true;         // of JobConfig: in the control segment
  bool is_of_beginning = false;  // of JobConfig: how the job was created; not needed from a ps that adopts it
  bool takes_all = false;        // if it is given repeatedly, every text counts, not only the last
  float Optimizer::*hyper_parameter = nullptr;  // set if it is a hyper-parameter of some update rules
  unsigned common = kNone;                      // the programs whose --help shows it; --help-all shows all
};

template <class Struct>
struct Setting {
  const char* name;  // chunk-bytes: --chunk-bytes, PS_SHM_CHUNK_BYTES, chunk_bytes in JSON
  Value<Struct> value;
  Group group;
  unsigned programs;
  std::string meaning;
  Traits traits = {};
};

template <class Struct>
using Settings = std::vector<Setting<Struct>>;

// Throws Error that begins with the setting's name in backquotes, as in all messages.
[[noreturn]] void fail(const char* setting, const std::string& what);
// Returns the one of `words` that equals `text`, ignoring case and hyphens. Throws Error if there is none.
const std::string& choose(const char* setting, const std::string& text, const std::vector<std::string>& words);

// Calls `what`. An Error that it throws is thrown again, prefixed by the setting's name.
void call_for(const char* setting, const std::function<void()>& what);

// Throws Error if the text is not a value of the setting. Bounds are checked by check().
template <class Struct>
void read(const Setting<Struct>& setting, Struct& into, const std::string& text) {
  const std::vector<std::string>& words = setting.value.words;
  const std::string& word = words.empty() ? text : choose(setting.name, text, words);
  call_for(setting.name, [&] { setting.value.read(into, word); });
}

// Throws Error if the value is out of bounds.
template <class Struct>
void check(const Setting<Struct>& setting, const Struct& in) {
  call_for(setting.name, [&] { setting.value.check(in); });
}

// The value as shown to users; never empty.
template <class Struct>
std::string show(const Setting<Struct>& setting, const Struct& in) {
  const std::string text = setting.value.write(in);
  if (setting.value.kind == Kind::kFlag) return text.empty() ? "off" : "on";
  if (!text.empty()) return text;
  return setting.value.kind == Kind::kNumber ? "0" : "none";
}

// "6000 steps", "1 step"; for seconds "30s", as it would be given.
std::string with_unit(const std::string& text, const std::string& unit);

// What holds if the setting is not given, with its unit; never empty.
template <class Struct>
std::string show_default(const Setting<Struct>& setting, const Struct& defaults) {
  if (*setting.traits.otherwise != '\0') return setting.traits.otherwise;
  const std::string text = show(setting, defaults);
  return text == "none" ? text : with_unit(text, setting.traits.unit);
}

// The same value, of a structure that contains it as `member`.
template <class Outer, class Inner>
Value<Outer> within(Inner Outer::*member, const Value<Inner>& value) {
  return {value.kind,
          value.form,
          value.bounds,
          value.words,
          [=, read = value.read](Outer& outer, const std::string& text) { read(outer.*member, text); },
          [=, check = value.check](const Outer& outer) { check(outer.*member); },
          [=, write = value.write](const Outer& outer) { return write(outer.*member); }};
}

template <class Struct>
void append(Settings<Struct>& all, const Settings<Struct>& rows) {
  all.insert(all.end(), rows.begin(), rows.end());
}

// Adds all rows, or those that one of `programs` accepts.
template <class Outer, class Inner>
void add_within(Settings<Outer>& all, Inner Outer::*member, const Settings<Inner>& rows, unsigned programs = ~0U) {
  for (const Setting<Inner>& row : rows)
    if (programs == ~0U || (row.programs & programs) != 0)
      all.push_back({row.name, within(member, row.value), row.group, row.programs, row.meaning, row.traits});
}

}  // namespace ps_shm::config
