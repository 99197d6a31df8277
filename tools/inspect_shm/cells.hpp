// Cells of the inspector's tables.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "inspect_shm/inspect.hpp"
#include "report/terminal.hpp"

namespace ps_shm::inspect {

inline std::string bytes_as_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = double(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < std::size(kUnits); ++unit) amount /= 1024;
  return fmt::format("{:.{}f} {}", amount, unit == 0 ? 0 : 1, kUnits[unit]);
}

// Of a job or publication; 0: none of its segments can be read.
inline std::string size_as_text(std::uint64_t bytes) { return bytes == 0 ? "-" : bytes_as_text(bytes); }

inline std::string age_as_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 1) return report::duration(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min", whole / 60);
  return whole < 172800 ? fmt::format("{} h {} min", whole / 3600, whole / 60 % 60)
                        : fmt::format("{} d", whole / 86400);
}

inline std::string cell(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump();
}

inline std::string shape_of(const Json& row) {
  const std::string shape = row["shape"].dump();
  return row["dtype"] == "float32" ? shape : fmt::format("{} {}", shape, cell(row["dtype"]));
}

}  // namespace ps_shm::inspect
