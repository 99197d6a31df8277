// A setting is one row of a table: its name, how its value is written as text and read, what it may be, and what is said
// of it. From the rows come command lines and the environment, --help, checks, what launch_shm passes on, the settings
// in a job's control segment, whether a ps may adopt a job, inspect_shm's keys and docs/options.md.
//
// Rows are of the structure that holds the value. within() makes rows of a structure rows of one that contains it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ps/optimizer.hpp"

namespace ps::config {

// The headings that settings are shown under.
enum class Group { kJob, kWorkers, kOptimizer, kPlacement, kData, kOutput, kRun };
inline constexpr Group kGroups[] = {Group::kJob,  Group::kWorkers, Group::kOptimizer, Group::kPlacement,
                                    Group::kData, Group::kOutput,  Group::kRun};
const char* to_string(Group group) noexcept;

// The programs that take a setting: a sum of these. None: the library alone has it.
inline constexpr unsigned kNone = 0, kPs = 1, kWorker = 2, kLaunch = 4;

enum class Kind {
  kNumber,
  kWord,
  kFlag,   // off, until it is named
  kPairs,  // NAME=NUMBER, several with commas in between; may be given repeatedly
};

template <class Struct>
struct Value {
  Kind kind = Kind::kWord;
  std::string form;                // as a text looks: N, TIME, async|ssp|sync; empty: a flag
  std::string bounds;              // "1 to 256"; empty: none that can be said shortly
  std::vector<std::string> words;  // one of these; empty: other texts

  std::function<void(Struct&, const std::string& text)> read;  // throws Error where the text is none
  std::function<void(const Struct&)> check;                    // throws Error where the value is out of bounds
  std::function<std::string(const Struct&)> write;             // what read() reads back; empty: not given
};

struct Traits {
  const char* unit = "";         // steps, s, bytes
  const char* otherwise = "";    // what holds where it is not given, or 0; empty: the default value says it
  bool is_live = false;          // a running job's can be changed
  bool is_stored = true;         // of JobConfig: in the control segment
  bool is_of_beginning = false;  // of JobConfig: how the job came about; a ps that adopts it need not say it
  bool takes_all = false;        // of one that is given repeatedly every text counts, not the last
  float Optimizer::*hyper_parameter = nullptr;  // it is one, of some update rules
  unsigned common = kNone;  // the programs in which most people need it: their --help has it, --help-all has all
};

template <class Struct>
struct Setting {
  const char* name;  // chunk-bytes: --chunk-bytes, PS_CHUNK_BYTES, chunk_bytes in JSON
  Value<Struct> value;
  Group group;
  unsigned programs;
  std::string meaning;
  Traits traits = {};
};

template <class Struct>
using Settings = std::vector<Setting<Struct>>;

// Throws Error that begins with the setting's name, in backquotes as every setting of a message.
[[noreturn]] void fail(const char* setting, const std::string& what);
// The one of `words` that is `text`, in whatever case, with or without hyphens. Throws Error where there is none.
const std::string& choose(const char* setting, const std::string& text, const std::vector<std::string>& words);

// Calls `what`; an Error that it throws is thrown again with the setting's name in front.
void call_for(const char* setting, const std::function<void()>& what);

// Throws Error where the text is none of its values. Bounds are check()'s business.
template <class Struct>
void read(const Setting<Struct>& setting, Struct& into, const std::string& text) {
  const std::vector<std::string>& words = setting.value.words;
  const std::string& word = words.empty() ? text : choose(setting.name, text, words);
  call_for(setting.name, [&] { setting.value.read(into, word); });
}

// Throws Error where the value is out of bounds.
template <class Struct>
void check(const Setting<Struct>& setting, const Struct& in) {
  call_for(setting.name, [&] { setting.value.check(in); });
}

// The value for people; never empty.
template <class Struct>
std::string show(const Setting<Struct>& setting, const Struct& in) {
  const std::string text = setting.value.write(in);
  if (setting.value.kind == Kind::kFlag) return text.empty() ? "off" : "on";
  if (!text.empty()) return text;
  return setting.value.kind == Kind::kNumber ? "0" : "none";
}

// "6000 steps", "1 step"; of seconds "30s", as it would be given.
std::string with_unit(const std::string& text, const std::string& unit);

// What holds where nobody gives it, with its unit; never empty.
template <class Struct>
std::string show_default(const Setting<Struct>& setting, const Struct& defaults) {
  if (*setting.traits.otherwise != '\0') return setting.traits.otherwise;
  const std::string text = show(setting, defaults);
  return text == "none" ? text : with_unit(text, setting.traits.unit);
}

// The same value, of a structure that has `member`.
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

// All of them, or those that one of `programs` takes.
template <class Outer, class Inner>
void add_within(Settings<Outer>& all, Inner Outer::*member, const Settings<Inner>& rows, unsigned programs = ~0U) {
  for (const Setting<Inner>& row : rows)
    if (programs == ~0U || (row.programs & programs) != 0)
      all.push_back({row.name, within(member, row.value), row.group, row.programs, row.meaning, row.traits});
}

}  // namespace ps::config
