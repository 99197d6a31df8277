// The differences of two states of a job's variables and tables: running jobs, snapshots, checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/value_statistics.hpp"
#include "config/spelling.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/jobs.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::inspect {
namespace {

struct StateVariable {
  std::string name;
  DType dtype;
  std::vector<std::uint64_t> shape;
};

struct StateTable {
  std::string name;
  std::uint64_t row_size = 1, rows = 0;
};

constexpr std::string_view kSnapshot = "@snapshot";

// A source of values.
class State {
 public:
  virtual ~State() = default;
  virtual const char* kind() const = 0;
  virtual std::uint64_t global_step() const = 0;             // of a job: its step at this moment
  virtual std::vector<StateVariable> variables() const = 0;  // those that have values
  virtual std::vector<std::byte> bytes(const StateVariable& variable) const = 0;
  virtual std::vector<StateTable> tables() const = 0;
  virtual TableContents contents(const StateTable& table) const = 0;
};

std::size_t bytes_in(const StateVariable& variable) {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : variable.shape) elements *= extent;
  return elements * bytes_of(variable.dtype);
}

// Variable by variable, like a worker's pulls.
class LiveState : public State {
 public:
  explicit LiveState(const std::string& job) : view_(job) {}
  const char* kind() const override { return "job"; }
  std::uint64_t global_step() const override { return view_.global_step(); }
  std::vector<StateVariable> variables() const override {
    std::vector<StateVariable> all;
    for (const VariableInfo& variable : view_.variables())
      if (variable.initialised) all.push_back({variable.name, variable.dtype, variable.shape});
    return all;
  }
  std::vector<std::byte> bytes(const StateVariable& variable) const override { return view_.bytes(variable.name); }
  std::vector<StateTable> tables() const override {
    std::vector<StateTable> all;
    for (const TableInfo& table : view_.tables())
      all.push_back({table.spec.name, table.spec.row_size, table.statistics.rows});
    return all;
  }
  TableContents contents(const StateTable& table) const override { return contents_of(view_, table.name); }

 protected:
  JobView view_;
};

// All variables in a consistent snapshot. Tables are not in it: their rows are those of the job at the moment.
class SnapshotState : public LiveState {
 public:
  SnapshotState(const std::string& job, const std::string& group)
      : LiveState(job), snapshot_(view_.snapshot({}, group)) {}
  const char* kind() const override { return "snapshot"; }
  std::uint64_t global_step() const override { return snapshot_.global_step(); }
  std::vector<StateVariable> variables() const override {
    const std::vector<std::string> names = snapshot_.variables();
    std::vector<StateVariable> all = LiveState::variables();
    std::erase_if(all,
                  [&](const StateVariable& v) { return std::find(names.begin(), names.end(), v.name) == names.end(); });
    return all;
  }
  std::vector<std::byte> bytes(const StateVariable& variable) const override {
    std::vector<std::byte> all(bytes_in(variable));
    snapshot_.copy(variable.name, std::span<std::byte>(all));
    return all;
  }

 private:
  Snapshot snapshot_;
};

class CheckpointState : public State {
 public:
  explicit CheckpointState(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  const char* kind() const override { return "checkpoint"; }
  std::uint64_t global_step() const override { return checkpoint_.global_step(); }
  std::vector<StateVariable> variables() const override {
    std::vector<StateVariable> all;
    for (const StoredVariable& variable : checkpoint_.variables())
      all.push_back({variable.name, variable.dtype, variable.shape});
    return all;
  }
  std::vector<std::byte> bytes(const StateVariable& variable) const override {
    std::vector<std::byte> all(bytes_in(variable));
    checkpoint_.read(variable.name, all);
    return all;
  }
  std::vector<StateTable> tables() const override {
    std::vector<StateTable> all;
    for (const StoredTable& table : checkpoint_.tables()) all.push_back({table.name, table.row_size, table.rows});
    return all;
  }
  TableContents contents(const StateTable& table) const override {
    std::vector<std::uint64_t> keys(table.rows);
    std::vector<float> values(table.rows * table.row_size);
    checkpoint_.read_rows(table.name, 0, keys, values);
    std::vector<std::size_t> order(keys.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
    TableContents all;
    for (const std::size_t row : order) {
      all.keys.push_back(keys[row]);
      const auto from = values.begin() + static_cast<std::ptrdiff_t>(row * table.row_size);
      all.values.insert(all.values.end(), from, from + static_cast<std::ptrdiff_t>(table.row_size));
    }
    return all;
  }

 private:
  Checkpoint checkpoint_;
};

std::unique_ptr<State> open_state(const std::string& source, const std::string& group) {
  if (source.ends_with(kSnapshot))
    return std::make_unique<SnapshotState>(source.substr(0, source.size() - kSnapshot.size()), group);
  std::error_code failed;
  const bool is_folder = std::filesystem::is_directory(source, failed);
  if (!is_folder) {
    const bool may_be_job = source.find('/') == std::string::npos;
    try {
      if (may_be_job) return std::make_unique<LiveState>(source);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
    }
    const std::string meant = config::did_you_mean(source, job_names());
    throw Error(fmt::format("{} is {}the folder of a checkpoint{}", source, may_be_job ? "neither a job nor " : "not ",
                            !may_be_job     ? ""
                            : meant.empty() ? "; inspect_shm ls lists the jobs"
                                            : meant),
                ErrorCode::kNotFound);
  }
  // The folder of one checkpoint, or of several, of which the newest is used.
  if (is_folder && !std::filesystem::exists(source + "/checkpoint.json", failed))
    if (std::optional<Checkpoint> newest = Checkpoint::latest(source))
      return std::make_unique<CheckpointState>(std::move(*newest));
  Checkpoint given(source);
  given.verify();
  return std::make_unique<CheckpointState>(std::move(given));
}

template <class T>
Json element_as_json(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return number(double(value));
  else
    return value;
}

// An element's index along each axis.
Json place_of(std::uint64_t element, const std::vector<std::uint64_t>& shape) {
  Json place = Json::array();
  for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) {
    place.insert(place.begin(), element % *extent);
    element /= *extent;
  }
  return place;
}

// The elements as numbers of their type, so that 64-bit integers keep all digits.
template <class T>
std::vector<T> elements_of(DType dtype, std::span<const std::byte> bytes) {
  std::vector<T> elements;
  elements.reserve(bytes.size() / bytes_of(dtype));
  update::for_elements(dtype, bytes, [&](auto element) { elements.push_back(static_cast<T>(element)); });
  return elements;
}

// NaN is infinitely far from a number, and equal to NaN.
template <class T>
double distance_between(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    const auto from = static_cast<std::uint64_t>(a), to = static_cast<std::uint64_t>(b);
    return double(a < b ? to - from : from - to);
  } else {
    if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
    const double distance = std::fabs(double(b) - double(a));
    return std::isnan(distance) ? INFINITY : distance;
  }
}

struct Difference {
  double squares = 0, largest = 0;
  std::uint64_t count = 0, at = 0;  // number of differing elements, and the first one with the largest difference
  Json value_a, value_b;            // its values
};

template <class T>
Difference difference_between(const std::vector<T>& a, const std::vector<T>& b) {
  Difference difference;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double distance = distance_between(a[i], b[i]);
    if (distance == 0) continue;
    difference.squares += distance * distance;
    if (distance > difference.largest) difference.largest = distance, difference.at = i;
    ++difference.count;
  }
  if (difference.count != 0)
    difference.value_a = element_as_json(a[difference.at]), difference.value_b = element_as_json(b[difference.at]);
  return difference;
}

Json compare(const StateVariable& variable, std::span<const std::byte> before, std::span<const std::byte> after) {
  Difference found;
  update::for_elements(variable.dtype, before.first(std::min<std::size_t>(before.size(), bytes_of(variable.dtype))),
                       [&]([[maybe_unused]] auto first) {
                         using Element = decltype(first);
                         found = difference_between(elements_of<Element>(variable.dtype, before),
                                                    elements_of<Element>(variable.dtype, after));
                       });
  const double norm_a = statistics_of(variable.dtype, before).norm, norm_b = statistics_of(variable.dtype, after).norm;
  const double norm = std::sqrt(found.squares);
  return {{"name", variable.name},
          {"dtype", to_string(variable.dtype)},
          {"shape", variable.shape},
          {"norm_a", number(norm_a)},
          {"norm_b", number(norm_b)},
          {"norm_of_difference", number(norm)},
          {"relative_difference", found.count == 0 ? Json(0.0) : number(norm / norm_a)},
          {"different_count", found.count},
          {"largest_difference", number(found.largest)},
          {"largest_at", found.count == 0 ? Json() : place_of(found.at, variable.shape)},
          {"value_a", std::move(found.value_a)},
          {"value_b", std::move(found.value_b)}};
}

// Compares the rows whose keys both have, as a variable, and counts the others.
Json compare(const StateTable& table, const TableContents& before, const TableContents& after) {
  std::vector<std::uint64_t> keys;  // of both
  std::set_intersection(before.keys.begin(), before.keys.end(), after.keys.begin(), after.keys.end(),
                        std::back_inserter(keys));
  const auto rows_of_both = [&](const TableContents& of) {
    std::vector<float> values;
    std::size_t row = 0;
    for (const std::uint64_t key : keys) {
      while (of.keys[row] != key) ++row;
      const auto from = of.values.begin() + static_cast<std::ptrdiff_t>(row * table.row_size);
      values.insert(values.end(), from, from + static_cast<std::ptrdiff_t>(table.row_size));
    }
    return values;
  };
  const std::vector<float> a = rows_of_both(before), b = rows_of_both(after);
  Json compared = compare(StateVariable{table.name, DType::kFloat32, {keys.size(), table.row_size}},
                          std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
  compared.erase("dtype"), compared.erase("shape");
  if (Json& place = compared["largest_at"]; !place.is_null()) place[0] = keys[place[0].get<std::size_t>()];
  compared.update({{"row_size", table.row_size},
                   {"rows_of_both", keys.size()},
                   {"only_in_a", before.keys.size() - keys.size()},
                   {"only_in_b", after.keys.size() - keys.size()}});
  return compared;
}

Json facts_of(const std::string& source, const State& state) {
  return {{"source", source}, {"kind", state.kind()}, {"global_step", state.global_step()}};
}

std::string shape_text(const StateVariable& variable) {
  return fmt::format("{} [{}]", to_string(variable.dtype), fmt::join(variable.shape, ", "));
}
std::string shape_text(const StateTable& table) { return fmt::format("rows of {} floats", table.row_size); }

bool is_like(const StateVariable& a, const StateVariable& b) { return a.dtype == b.dtype && a.shape == b.shape; }
bool is_like(const StateTable& a, const StateTable& b) { return a.row_size == b.row_size; }

// Calls compare(a, b) for what both have alike, and appends the rest to `unlike`.
template <class Part, class Compare>
void pair_up(std::vector<Part> first, std::vector<Part> second, const char* what, Json& unlike, Compare&& compare) {
  std::map<std::string, Part> others;
  for (Part& one : second) others.emplace(one.name, std::move(one));
  for (const Part& one : first) {
    const auto other = others.extract(one.name);
    if (other.empty())
      unlike.push_back({{"name", what + one.name}, {"why", "only in a"}});
    else if (!is_like(one, other.mapped()))
      unlike.push_back({{"name", what + one.name},
                        {"why", fmt::format("{} in a, {} in b", shape_text(one), shape_text(other.mapped()))}});
    else
      compare(one, other.mapped());
  }
  for (const auto& [name, one] : others) unlike.push_back({{"name", what + name}, {"why", "only in b"}});
}

}  // namespace

Json find_differences(const std::string& a, const std::string& b, const std::string& group) {
  if (a == b && a.ends_with(kSnapshot))  // the second would wait for the first one to be released
    throw BadUsage(fmt::format("a job can have only one snapshot at a time: compare {} with the job itself", a));
  const std::unique_ptr<State> first = open_state(a, group), second = open_state(b, group);
  // Once both are open, which may take long, and just before their values are read.
  Json about_a = facts_of(a, *first), about_b = facts_of(b, *second);
  Json rows = Json::array(), tables = Json::array(), unlike = Json::array();
  bool is_equal = true;
  pair_up(first->variables(), second->variables(), "", unlike,
          [&](const StateVariable& one, const StateVariable& other) {
            rows.push_back(compare(one, first->bytes(one), second->bytes(other)));
            is_equal = is_equal && rows.back()["different_count"] == 0;
          });
  pair_up(first->tables(), second->tables(), "table ", unlike, [&](const StateTable& one, const StateTable& other) {
    tables.push_back(compare(one, first->contents(one), second->contents(other)));
    for (const char* key : {"different_count", "only_in_a", "only_in_b"})
      is_equal = is_equal && tables.back()[key] == 0;
  });
  is_equal = is_equal && unlike.empty();
  return {{"a", std::move(about_a)},     {"b", std::move(about_b)},     {"variables", std::move(rows)},
          {"tables", std::move(tables)}, {"unlike", std::move(unlike)}, {"equal", is_equal}};
}

}  // namespace ps_shm::inspect
