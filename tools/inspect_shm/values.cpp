// Values of variables and tables: printed, written to files, summarised; complete variables, or slices in numpy notation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/value_statistics.hpp"
#include "config/error_code.hpp"
#include "config/values.hpp"
#include "inspect_shm/inspect.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::inspect {
namespace {

Json as_json(const Element& element) {
  if (const double* const value = std::get_if<double>(&element)) return number(*value);
  return std::visit([](auto value) { return Json(value); }, element);
}

Json as_json(const ValueStatistics& of) {
  return {{"min", as_json(of.min)},  {"max", as_json(of.max)}, {"mean", number(of.mean)},
          {"norm", number(of.norm)}, {"nan_count", of.nans},   {"infinite_count", of.infinites}};
}

// The variables of these names, in the order of declaration; all if no name is given. Throws Error with all names.
std::vector<VariableInfo> chosen_of(const JobView& view, const std::vector<std::string>& names) {
  std::vector<VariableInfo> chosen = view.variables();
  if (names.empty()) return chosen;
  for (const std::string& name : names)
    if (std::none_of(chosen.begin(), chosen.end(), [&](const VariableInfo& v) { return v.name == name; }))
      view.bytes(name);
  std::erase_if(chosen,
                [&](const VariableInfo& v) { return std::find(names.begin(), names.end(), v.name) == names.end(); });
  return chosen;
}

// The tables of these names, which are taken out of `names`. Tables have names of their own: where a variable has the
// same one, it comes first.
std::vector<TableInfo> take_tables(const JobView& view, std::vector<std::string>& names) {
  const std::vector<VariableInfo> variables = view.variables();
  std::vector<TableInfo> tables;
  for (TableInfo& table : view.tables()) {
    const std::string& name = table.spec.name;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end() ||
        std::any_of(variables.begin(), variables.end(), [&](const VariableInfo& one) { return one.name == name; }))
      continue;
    names.erase(found);
    tables.push_back(std::move(table));
  }
  return tables;
}

// Writes the rows of a table, and its keys; adds to `facts` what was written.
void write_table(const JobView& view, const TableInfo& table, const std::string& file, const std::string& keys_file,
                 Json& facts) {
  const TableContents all = contents_of(view, table.spec.name);
  const std::uint64_t rows = all.keys.size();
  const std::vector<std::uint64_t> shape = {rows, table.spec.row_size};
  persistence::write_npy(
      file, {table.spec.name, DType::kFloat32, shape, persistence::reader_of(std::as_bytes(std::span(all.values)))});
  persistence::write_npy(
      keys_file, {table.spec.name, DType::kUint64, {rows}, persistence::reader_of(std::as_bytes(std::span(all.keys)))});
  facts.update({{"name", table.spec.name}, {"dtype", to_string(DType::kFloat32)}, {"shape", shape}});
}

// A part of an axis.
struct Range {
  std::uint64_t begin, end, step;
  bool is_index;  // the axis is dropped
};

std::int64_t read_place(const std::string& text) {
  try {
    if (text.starts_with("-")) return -static_cast<std::int64_t>(config::read_whole(text.substr(1), 0, 1ULL << 62));
    return static_cast<std::int64_t>(config::read_whole(text, 0, 1ULL << 62));
  } catch (const Error&) {
    throw BadUsage(fmt::format("--slice: '{}' is not an index; use numpy notation: 3, 0:10, ::2, -1", text));
  }
}

Range read_range(const std::string& text, std::uint64_t extent, std::size_t axis) {
  const auto size = static_cast<std::int64_t>(extent);
  const auto from_end = [&](std::int64_t place) { return place < 0 ? place + size : place; };
  const auto colon = text.find(':');
  if (colon == std::string::npos) {
    const std::int64_t place = from_end(read_place(text));
    if (place < 0 || place >= size)
      throw BadUsage(fmt::format("--slice: {} is out of range for axis {} of size {}", text, axis, extent));
    return {static_cast<std::uint64_t>(place), static_cast<std::uint64_t>(place) + 1, 1, true};
  }
  const auto second = text.find(':', colon + 1);
  const std::string begin = text.substr(0, colon), end = text.substr(colon + 1, second - colon - 1);
  const std::string step = second == std::string::npos ? "" : text.substr(second + 1);
  const auto limited = [&](std::int64_t place) {
    return static_cast<std::uint64_t>(std::clamp<std::int64_t>(from_end(place), 0, size));
  };
  Range range{begin.empty() ? 0 : limited(read_place(begin)), end.empty() ? extent : limited(read_place(end)), 1,
              false};
  if (!step.empty()) {
    const std::int64_t given = read_place(step);
    if (given < 1) throw BadUsage(fmt::format("--slice: a step must be 1 or more; '{}' is not", step));
    range.step = static_cast<std::uint64_t>(given);
  }
  return range;
}

struct Part {
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;

  std::uint64_t elements(DType dtype) const { return bytes.size() / bytes_of(dtype); }
};

// Equivalent to numpy's array[slice]. Axes that are not named are complete.
Part part_of(const VariableInfo& variable, std::vector<std::byte> bytes, const std::string& slice) {
  if (slice.empty()) return {variable.shape, std::move(bytes)};
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin <= slice.size();) {
    const std::size_t comma = std::min(slice.find(',', begin), slice.size());
    texts.push_back(slice.substr(begin, comma - begin));
    begin = comma + 1;
  }
  if (texts.size() > variable.shape.size())
    throw BadUsage(fmt::format("--slice {}: variable '{}' has {} ax{}", slice, variable.name, variable.shape.size(),
                               variable.shape.size() == 1 ? "is" : "es"));
  std::vector<Range> ranges;
  Part part;
  for (std::size_t axis = 0; axis < variable.shape.size(); ++axis) {
    ranges.push_back(read_range(axis < texts.size() ? texts[axis] : ":", variable.shape[axis], axis));
    const Range& range = ranges.back();
    if (!range.is_index)
      part.shape.push_back(range.end <= range.begin ? 0 : (range.end - range.begin + range.step - 1) / range.step);
  }
  const std::size_t unit = bytes_of(variable.dtype);
  const auto copy = [&](const auto& self, std::size_t axis, std::uint64_t first) -> void {
    if (axis == ranges.size()) {
      const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(first * unit);
      part.bytes.insert(part.bytes.end(), from, from + static_cast<std::ptrdiff_t>(unit));
      return;
    }
    for (std::uint64_t at = ranges[axis].begin; at < ranges[axis].end; at += ranges[axis].step)
      self(self, axis + 1, first * variable.shape[axis] + at);
  };
  copy(copy, 0, 0);
  return part;
}

Json facts_of(const VariableInfo& variable) {
  return {{"name", variable.name},
          {"dtype", to_string(variable.dtype)},
          {"shape", variable.shape},
          {"element_count", variable.element_count}};
}

void check_one_for(const std::string& option, const std::vector<std::string>& names) {
  if (names.size() != 1) throw BadUsage(fmt::format("{}: name one variable", option));
}

Json histogram_as_json(const persistence::Histogram& histogram) {
  Json bounds = Json::array(), counts = Json::array();
  for (const double limit : histogram.limits) bounds.push_back(limit);
  for (const double count : histogram.counts) counts.push_back(static_cast<std::uint64_t>(count));
  return {{"at_least", histogram.counts.empty() ? Json() : Json(histogram.least)},
          {"bounds", std::move(bounds)},
          {"counts", std::move(counts)}};
}

}  // namespace

Json dump_values(const std::string& job, const DumpRequest& request) {
  if (!request.slice.empty()) check_one_for("--slice", request.names);
  const JobView view(job);
  Json all = Json::array(), tables = Json::array();
  std::vector<std::string> names = request.names;  // of variables
  if (request.slice.empty())
    for (const TableInfo& table : take_tables(view, names)) tables.push_back(dump_table(view, table, request.limit));
  if (!request.names.empty() && names.empty())
    return {{"job", job}, {"variables", std::move(all)}, {"tables", std::move(tables)}};
  for (const VariableInfo& variable : chosen_of(view, names)) {
    Json row = facts_of(variable);
    row["initialised"] = variable.initialised;
    if (variable.initialised || !names.empty()) {
      const Part part = part_of(variable, view.bytes(variable.name), request.slice);
      row["shape"] = part.shape, row["element_count"] = part.elements(variable.dtype);
      row.update(as_json(statistics_of(variable.dtype, part.bytes)));
      Json values = Json::array();
      std::span<const std::byte> shown = part.bytes;
      if (request.limit != 0 && request.limit < part.elements(variable.dtype))
        shown = shown.first(request.limit * bytes_of(variable.dtype));
      update::for_elements(variable.dtype, shown, [&](auto element) { values.push_back(element); });
      row["values"] = std::move(values);
    }
    all.push_back(std::move(row));
  }
  return {{"job", job}, {"variables", std::move(all)}, {"tables", std::move(tables)}};
}

Json sum_up(const std::string& job, const std::vector<std::string>& names, std::uint64_t sample) {
  const JobView view(job);
  Json all = Json::array();
  for (const VariableInfo& variable : chosen_of(view, names)) {
    Json row = facts_of(variable);
    row["initialised"] = variable.initialised;
    if (variable.initialised || !names.empty()) {
      const std::vector<std::byte> bytes = sample == 0 ? view.bytes(variable.name) : view.sample(variable.name, sample);
      const ValueStatistics statistics = statistics_of(variable.dtype, bytes, variable.element_count);
      row["sampled"] = statistics.sampled;
      row.update(as_json(statistics));
      row["histogram"] = histogram_as_json(histogram_of(variable.dtype, bytes));
    }
    all.push_back(std::move(row));
  }
  return {{"job", job}, {"variables", std::move(all)}};
}

Json dump_file(const std::string& job, const DumpRequest& request, const std::string& file) {
  check_one_for("--npy " + file, request.names);
  const JobView view(job);
  const std::uint64_t step = view.global_step();
  std::vector<std::string> names = request.names;
  if (request.slice.empty())
    for (const TableInfo& table : take_tables(view, names)) {
      const std::string keys_file = file.substr(0, file.size() - std::string_view(".npy").size()) + ".keys.npy";
      Json written = {{"job", job}, {"global_step", step}, {"file", file}, {"keys_file", keys_file}};
      write_table(view, table, file, keys_file, written);
      written["element_count"] = written["shape"][0].get<std::uint64_t>() * table.spec.row_size;
      return written;
    }
  const VariableInfo variable = chosen_of(view, request.names).front();
  const Part part = part_of(variable, view.bytes(variable.name), request.slice);
  persistence::write_npy(file, {variable.name, variable.dtype, part.shape, persistence::reader_of(part.bytes)});
  return {{"job", job},
          {"global_step", step},
          {"file", file},
          {"name", variable.name},
          {"dtype", to_string(variable.dtype)},
          {"shape", part.shape},
          {"element_count", part.elements(variable.dtype)}};
}

Json dump_files(const std::string& job, std::vector<std::string> names, const std::string& folder) {
  const JobView view(job);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw Error(fmt::format("cannot create the folder {}: {}", folder, failed.message()),
                config::code_of(failed.value()));
  const bool has_all = names.empty();
  std::vector<TableInfo> tables = has_all ? view.tables() : take_tables(view, names);
  for (const std::string& name : names) static_cast<void>(view.bytes(name));  // throws an Error that lists the names
  const std::uint64_t step = view.global_step();                              // before the values, as for one file
  Json all = Json::array(), of_tables = Json::array();
  const auto stem_of = [&](std::string name) {  // it may contain characters that a file name may not
    std::replace(name.begin(), name.end(), '/', '_');
    return fmt::format("{:03}-{}", all.size() + of_tables.size(), name);
  };
  for (const VariableInfo& variable : view.variables()) {
    if (!variable.initialised || (!has_all && std::find(names.begin(), names.end(), variable.name) == names.end()))
      continue;
    const std::string stem = stem_of(variable.name);
    const auto write = [&](const std::string& what, DType dtype, std::span<const std::byte> bytes) {
      const std::string file = stem + what + ".npy";
      persistence::write_npy(folder + "/" + file,
                             {variable.name, dtype, variable.shape, persistence::reader_of(bytes)});
      return file;
    };
    Json row = {{"name", variable.name},
                {"dtype", to_string(variable.dtype)},
                {"shape", variable.shape},
                {"rule", to_string(variable.rule)},
                {"file", write("", variable.dtype, view.bytes(variable.name))},
                {"slots", Json::object()}};
    for (std::size_t slot = 0; slot + variable.row_slots < variable.slots.size(); ++slot) {
      const std::vector<float> values = view.slot(variable.name, variable.slots[slot]);
      row["slots"][variable.slots[slot]] =
          write("." + variable.slots[slot], DType::kFloat32, std::as_bytes(std::span(values)));
    }
    all.push_back(std::move(row));
  }
  for (const TableInfo& table : tables) {
    const std::string stem = stem_of(table.spec.name);
    Json row = {{"file", stem + ".npy"}, {"keys_file", stem + ".keys.npy"}};
    write_table(view, table, folder + "/" + stem + ".npy", folder + "/" + stem + ".keys.npy", row);
    of_tables.push_back(std::move(row));
  }
  Json index = {{"job", job}, {"global_step", step}, {"variables", std::move(all)}, {"tables", std::move(of_tables)}};
  persistence::write_text(folder + "/index.json", index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  index["folder"] = folder;
  return index;
}

}  // namespace ps_shm::inspect
