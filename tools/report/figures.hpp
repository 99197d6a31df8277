// The figures of a record (inspection/figures.hpp) as JSON.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <vector>

#include "inspection/figures.hpp"

namespace ps_shm::report {

template <class Value>
nlohmann::ordered_json figures_json(const Value& value);

namespace internal {

template <class Value>
nlohmann::ordered_json json_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>)
    return to_string(value);
  else
    return value;
}
template <class Value>
nlohmann::ordered_json json_of(const std::optional<Value>& value) {
  return value ? figures_json(*value) : nlohmann::ordered_json();
}
template <class Value>
nlohmann::ordered_json json_of(const std::vector<Value>& values) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Value& value : values) all.push_back(figures_json(value));
  return all;
}

}  // namespace internal

// An object with a figure each, or, of another value, that value; null: std::nullopt.
template <class Value>
nlohmann::ordered_json figures_json(const Value& value) {
  if constexpr (inspection::kHasFigures<Value>) {
    nlohmann::ordered_json json;
    inspection::for_each_figure<Value>(
        [&](const auto& figure) { json[figure.name] = figures_json(std::invoke(figure.read, value)); });
    return json;
  } else {
    return internal::json_of(value);
  }
}

}  // namespace ps_shm::report
