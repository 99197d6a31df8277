// Values, statistics and differences as text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "inspect_shm/cells.hpp"
#include "inspect_shm/inspect.hpp"

namespace ps_shm::inspect {
namespace {

using report::fitted;
using report::Row;
using report::table;

std::string numbers_of(const Json& row) {
  std::string text = fmt::format("min {}, max {}, mean {}, norm {}", cell(row["min"]), cell(row["max"]),
                                 cell(row["mean"]), cell(row["norm"]));
  if (row["nan_count"] != 0) text += fmt::format(", {} NaN", cell(row["nan_count"]));
  if (row["infinite_count"] != 0) text += fmt::format(", {} infinite", cell(row["infinite_count"]));
  return text;
}

// A bar for each of at most 16 ranges of equal width.
std::string bars_of(const Json& histogram, Columns columns) {
  constexpr std::size_t kBars = 16, kBefore = 39, kLongest = 60;
  const Json &bounds = histogram["bounds"], &counts = histogram["counts"];
  if (counts.empty()) return "  no finite value\n";
  const std::size_t together = (counts.size() + kBars - 1) / kBars;
  struct Bar {
    double begin, end;
    std::uint64_t count;
  };
  std::vector<Bar> bars;
  std::uint64_t most = 1;
  double begin = histogram["at_least"];
  for (std::size_t i = 0; i < counts.size(); i += together) {
    const std::size_t end = std::min(i + together, counts.size());
    Bar bar{begin, bounds[end - 1], 0};
    for (std::size_t bucket = i; bucket < end; ++bucket) bar.count += counts[bucket].get<std::uint64_t>();
    begin = bar.end;
    most = std::max(most, bar.count);
    bars.push_back(bar);
  }
  const std::size_t room =
      std::clamp<std::size_t>(columns.value_or(kBefore + kLongest), kBefore + 1, kBefore + kLongest);
  std::string text;
  for (const Bar& bar : bars) {
    const double share = double(bar.count) / double(most);
    const auto length = static_cast<std::size_t>(std::ceil(share * double(room - kBefore)));
    const std::string line =
        fmt::format("  {:>11.4g} .. {:>11.4g} {:>9} {}", bar.begin, bar.end, bar.count, std::string(length, '#'));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::string values_as_text(const Json& dumped, Columns columns) {
  if (dumped.contains("folder"))
    return fitted(
        fmt::format("wrote {} variables{} at step {} to {}; index.json lists the files\n", dumped["variables"].size(),
                    dumped["tables"].empty() ? "" : fmt::format(" and {} tables", dumped["tables"].size()),
                    dumped["global_step"].get<std::uint64_t>(), cell(dumped["folder"])),
        columns);
  if (dumped.contains("file"))
    return fitted(
        fmt::format("wrote {} {} of step {} to {}{}\n", cell(dumped["name"]), shape_of(dumped),
                    cell(dumped["global_step"]), cell(dumped["file"]),
                    dumped.contains("keys_file") ? fmt::format(", and its keys to {}", cell(dumped["keys_file"])) : ""),
        columns);
  constexpr std::size_t kBefore = 11, kUsual = 13;
  std::string text;
  for (const Json& row : dumped["variables"]) {
    text += fmt::format("{} {}, {} elements", cell(row["name"]), shape_of(row), cell(row["element_count"]));
    if (!row.contains("values")) {
      text += ": NOT INITIALISED\n";
      continue;
    }
    std::vector<std::string> values;  // with as few digits as distinguish an element from others of its type
    for (const Json& value : row["values"])
      values.push_back(!value.is_number_float()    ? cell(value)
                       : row["dtype"] == "float64" ? fmt::to_string(value.get<double>())
                                                   : fmt::to_string(value.get<float>()));
    std::size_t width = kUsual;
    for (const std::string& value : values) width = std::max(width, value.size());
    const std::size_t room = columns ? *columns - std::min(*columns, kBefore) : 8 * (kUsual + 1);
    const std::size_t per_line = std::clamp<std::size_t>(room / (width + 1), 1, 8);
    text += ": " + numbers_of(row);
    for (std::size_t i = 0; i < values.size(); ++i)
      text += i % per_line == 0 ? fmt::format("\n{:>10}: {:>{}}", i, values[i], width)
                                : fmt::format(" {:>{}}", values[i], width);
    text += values.size() < row["element_count"] ? "\n            ... (--limit 0 shows all)\n" : "\n";
  }
  for (const Json& table : dumped["tables"]) text += table_rows_as_text(table);
  return text.empty() ? "no variables\n" : fitted(text, columns);
}

std::string statistics_as_text(const Json& found, Columns columns) {
  std::string text;
  for (const Json& row : found["variables"]) {
    std::string line = fmt::format("{} {}, {} elements", cell(row["name"]), shape_of(row), cell(row["element_count"]));
    if (!row.contains("histogram")) {
      text += line + ": NOT INITIALISED\n";
      continue;
    }
    if (row["sampled"] != row["element_count"]) line += fmt::format(", {} sampled", cell(row["sampled"]));
    text += fitted(line + ": " + numbers_of(row) + "\n", columns) + bars_of(row["histogram"], columns);
  }
  return text.empty() ? "no variables\n" : text;
}

std::string difference_as_text(const Json& found, Columns columns) {
  std::string text;
  for (const char* side : {"a", "b"}) {
    const Json& from = found[side];
    text += fmt::format("{}: {} {} at step {}\n", side, cell(from["kind"]), cell(from["source"]),
                        cell(from["global_step"]));
  }
  std::vector<Row> rows = {
      {"NAME", "SHAPE", "NORM A", "NORM B", "NORM B-A", "RELATIVE", "DIFFERENT", "LARGEST", "AT", "A", "B"}};
  const auto add = [&](const Json& row, std::string shape) {
    rows.push_back({cell(row["name"]), std::move(shape), cell(row["norm_a"]), cell(row["norm_b"]),
                    cell(row["norm_of_difference"]), cell(row["relative_difference"]), cell(row["different_count"]),
                    cell(row["largest_difference"]), cell(row["largest_at"]), cell(row["value_a"]),
                    cell(row["value_b"])});
  };
  for (const Json& row : found["variables"]) add(row, shape_of(row));
  for (const Json& row : found["tables"])
    add(row, fmt::format("[{},{}]", cell(row["rows_of_both"]), cell(row["row_size"])));
  if (rows.size() > 1) text += table(rows, columns);
  for (const Json& row : found["tables"])
    if (row["only_in_a"] != 0 || row["only_in_b"] != 0)
      text += fmt::format("table {}: {} keys only in a, {} only in b\n", cell(row["name"]), cell(row["only_in_a"]),
                          cell(row["only_in_b"]));
  for (const Json& row : found["unlike"]) text += fmt::format("{}: {}\n", cell(row["name"]), cell(row["why"]));
  return fitted(text + (found["equal"] ? "they are equal\n" : "they differ\n"), columns);
}

}  // namespace ps_shm::inspect
