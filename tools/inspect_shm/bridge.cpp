// The bridge of a job to other boxes, by what it keeps in shared memory.
#include <chrono>
#include <optional>

#include "inspect_shm/inspect.hpp"
#include "shm/segment/bridge_state.hpp"

namespace ps_shm::inspect {
namespace {

// A field of a text that anybody may have written; null if it has another type.
Json field(const Json& of, const char* name, bool (Json::*is)() const noexcept) {
  const auto found = of.find(name);
  return found != of.end() && ((*found).*is)() ? *found : Json();
}

// Of the tables by key, each of whose facts is an array with a number for each.
Json tables_of(const Json& text) {
  const Json names = field(text, "tables", &Json::is_array);
  Json tables = Json::array();
  for (std::size_t table = 0; table < names.size(); ++table) {
    tables.push_back({{"name", names[table].is_string() ? names[table] : Json()}});
    for (const char* name : {"keys", "most_keys", "cut_rows"}) {
      const Json numbers = field(text, name, &Json::is_array);
      tables.back()[name] = table < numbers.size() && numbers[table].is_number_unsigned() ? numbers[table] : Json();
    }
  }
  return tables;
}

}  // namespace

Json bridge_of(const std::string& job, std::uint64_t instance) {
  std::optional<shm::BridgeState::Seen> seen;
  try {
    seen = shm::BridgeState::look(job, instance);
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
  if (!seen) return {};
  const Json text = Json::parse(seen->text, nullptr, false);
  if (!text.is_object()) return {{"error", "its text is no JSON object"}};
  Json shown = {{"alive", seen->has_owner}, {"age_seconds", nullptr}};
  if (const Json at = field(text, "at", &Json::is_number); !at.is_null() && at > 0) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    shown["age_seconds"] = now - at.get<double>();
  }
  for (const char* name : {"box", "boxes", "round", "seconds", "bytes", "norm", "dropped", "dropped_steps"})
    shown[name] = field(text, name, &Json::is_number);
  shown["phase"] = field(text, "phase", &Json::is_string);
  shown["members"] = Json::array();
  for (const Json& member : field(text, "members", &Json::is_array))
    if (member.is_number_unsigned()) shown["members"].push_back(member);
  shown["tables"] = tables_of(text);
  return shown;
}

}  // namespace ps_shm::inspect
