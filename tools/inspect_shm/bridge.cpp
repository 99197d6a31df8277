#include "inspect_shm/bridge.hpp"

#include <chrono>
#include <type_traits>

#include "inspect_shm/inspect.hpp"
#include "shm/segment/bridge_state.hpp"

namespace ps_shm::inspect {
namespace {

// None: it has another type.
template <class Value>
std::optional<Value> value_of(const Json& json) {
  if constexpr (std::is_same_v<Value, std::string>)
    return json.is_string() ? std::optional(json.get<Value>()) : std::nullopt;
  else if constexpr (std::is_same_v<Value, double>)
    return json.is_number() ? std::optional(json.get<Value>()) : std::nullopt;
  else
    return json.is_number_unsigned() ? std::optional(json.get<Value>()) : std::nullopt;
}

Json array_of(const Json& text, const char* name) {
  const auto found = text.find(name);
  return found != text.end() && found->is_array() ? *found : Json::array();
}

// Each fact of the tables is an array with a number for each.
std::vector<BridgeTable> tables_of(const Json& text) {
  const Json names = array_of(text, "tables");
  std::vector<BridgeTable> tables;
  for (std::size_t table = 0; table < names.size(); ++table) {
    const auto number = [&](const char* name) {
      const Json numbers = array_of(text, name);
      return table < numbers.size() ? value_of<std::uint64_t>(numbers[table]) : std::nullopt;
    };
    tables.push_back({value_of<std::string>(names[table]), number("keys"), number("most_keys"), number("cut_rows")});
  }
  return tables;
}

}  // namespace

std::optional<BridgeInfo> bridge_of(const std::string& job, std::uint64_t instance) {
  BridgeInfo info;
  std::optional<shm::BridgeState::Seen> seen;
  try {
    seen = shm::BridgeState::look(job, instance);
  } catch (const Error& error) {
    info.error = error.what();
    return info;
  }
  if (!seen) return std::nullopt;
  const Json text = Json::parse(seen->text, nullptr, false);
  if (!text.is_object()) {
    info.error = "its text is no JSON object";
    return info;
  }
  const auto read = [&](const char* name, auto& to) {
    if (const auto found = text.find(name); found != text.end())
      to = value_of<typename std::decay_t<decltype(to)>::value_type>(*found);
  };
  info.is_alive = seen->has_owner;
  std::optional<double> at;  // Unix time
  read("at", at);
  if (at && *at > 0)
    info.age_seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - *at;
  read("box", info.box), read("boxes", info.boxes), read("round", info.round), read("seconds", info.seconds);
  read("bytes", info.bytes), read("norm", info.norm), read("phase", info.phase);
  read("dropped", info.dropped), read("dropped_steps", info.dropped_steps);
  for (const Json& member : array_of(text, "members"))
    if (const auto box = value_of<std::uint64_t>(member)) info.members.push_back(*box);
  info.tables = tables_of(text);
  return info;
}

}  // namespace ps_shm::inspect
