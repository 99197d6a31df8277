#include "persistence/checkpoint_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "config/error_code.hpp"
#include "config/job_settings.hpp"
#include "persistence/folder_lock.hpp"
#include "persistence/json_text.hpp"
#include "ps_shm/errors.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::persistence {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ps-checkpoint";
constexpr std::uint64_t kVersion = 1;
constexpr const char* kFactsFile = "checkpoint.json";
constexpr std::uint64_t kMostFactsBytes = 64 << 20;
constexpr int kMostDepth = 4;                                    // variables, one variable, its shape
constexpr std::uint64_t kMostExamples = std::uint64_t{1} << 53;  // of one rank

[[noreturn]] void fail(const std::string& folder, const std::string& why) {
  throw Error(fmt::format("{} is not a valid checkpoint: {}", folder, why), ErrorCode::kDamaged);
}

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::uint64_t of_hex(const std::string& text) {
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    throw std::out_of_range(fmt::format("'{}' is not a hash", escaped(text)));
  return hash;
}

// Accepts only the name of a file in the folder itself.
std::string file_name(const std::string& text) {
  if (text.empty() || text[0] == '.' || text.find('/') != std::string::npos || text.find('\0') != std::string::npos)
    throw std::out_of_range(fmt::format("'{}' is not a file name", escaped(text)));
  return text;
}

std::uint64_t whole(const Json& number) {
  if (!number.is_number_unsigned()) throw std::out_of_range("an invalid number");
  return number.get<std::uint64_t>();
}

DType dtype_of(const std::string& name) {
  if (const update::DTypeTraits* row = update::find_dtype(name)) return row->dtype;
  throw std::out_of_range(fmt::format("unknown dtype '{}'", escaped(name)));
}

StoredVariable variable_of(const Json& said) {
  StoredVariable variable;
  variable.name = said.at("name").get<std::string>();
  variable.dtype = dtype_of(said.at("dtype").get<std::string>());
  for (const Json& extent : said.at("shape").get_ref<const Json::array_t&>()) variable.shape.push_back(whole(extent));
  variable.updates = whole(said.at("updates"));
  variable.is_point_in_time = !said.at("not_point_in_time").get<bool>();
  variable.slots = said.at("slots").get<std::vector<std::string>>();
  return variable;
}

StoredTable table_of(const Json& said) {
  StoredTable table;
  table.name = said.at("name").get<std::string>();
  if (said.contains("dtype")) table.dtype = dtype_of(said.at("dtype").get<std::string>());  // tables were of float32
  table.row_size = whole(said.at("row_size"));
  table.rows = whole(said.at("rows"));
  table.rule = said.at("rule").get<std::string>();
  table.slots = said.at("slots").get<std::vector<std::string>>();
  table.row_slots = whole(said.at("row_slots"));
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;  // products of two of them fit into 64 bits with a few slots
  if (table.row_size == 0 || table.row_size > 1 << 20 || table.rows > kMost || table.slots.size() > 4 ||
      table.row_slots > table.slots.size() || !update::takes_gradients(table.dtype))
    throw std::out_of_range("a table of an invalid size or dtype");
  return table;
}

std::string to_json(const CheckpointFacts& facts) {
  Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"job", facts.job},
      {"global_step", facts.global_step},
      {"created_unix",
       std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count()},
      {"loss", nullptr},
      {"learning_rate", facts.lr},
      {"examples", facts.examples},
      {"partial_ranks", facts.partial_ranks},
      {"settings", facts.settings},
      {"variables", Json::array()},
      {"tables", Json::array()},
      {"files", Json::array()}};
  if (facts.loss && std::isfinite(*facts.loss)) json["loss"] = *facts.loss;
  for (const StoredVariable& variable : facts.variables)
    json["variables"].push_back({{"name", variable.name},
                                 {"dtype", to_string(variable.dtype)},
                                 {"shape", variable.shape},
                                 {"updates", variable.updates},
                                 {"not_point_in_time", !variable.is_point_in_time},
                                 {"slots", variable.slots}});
  for (const StoredTable& table : facts.tables)
    json["tables"].push_back({{"name", table.name},
                              {"dtype", to_string(table.dtype)},
                              {"row_size", table.row_size},
                              {"rows", table.rows},
                              {"rule", table.rule},
                              {"slots", table.slots},
                              {"row_slots", table.row_slots}});
  for (const StoredFile& file : facts.files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.facts.bytes}, {"xxh3", hex(file.facts.hash)}});
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Distributes the tensors over files, in their order. Each file is filled as far as possible.
std::vector<std::vector<Tensor>> in_files(const std::vector<Tensor>& tensors, std::uint64_t max_file_bytes) {
  std::vector<std::vector<Tensor>> files;
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (files.empty() || bytes + tensor.bytes() > max_file_bytes) files.emplace_back(), bytes = 0;
    files.back().push_back(tensor);
    bytes += tensor.bytes();
  }
  return files;
}

// Writes NAME.safetensors, or NAME-00001-of-0000N.safetensors and the index that torch's tools read.
void write_group(const std::string& folder, const std::string& group, const std::vector<Tensor>& tensors,
                 std::uint64_t max_file_bytes, std::vector<StoredFile>& written) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const std::vector<std::vector<Tensor>> files = in_files(tensors, max_file_bytes);
  Json places = Json::object();
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1
                                 ? group + ".safetensors"
                                 : fmt::format("{}-{:05}-of-{:05}.safetensors", group, i + 1, files.size());
    written.push_back({name, write_safetensors(folder + "/" + name, files[i], metadata)});
    for (const Tensor& tensor : files[i]) places[tensor.name] = name, bytes += tensor.bytes();
  }
  if (files.size() < 2) return;
  const std::string name = group + ".safetensors.index.json";
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", places}};
  written.push_back(
      {name, write_text(folder + "/" + name, index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n")});
}

// Writes each tensor of the tables to a file of its own, row by row, and what they are to facts.
void write_tables(const std::string& folder, const std::vector<CheckpointArrays::Table>& tables,
                  CheckpointFacts& facts) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::size_t files = 0, number = 0;
  for (const CheckpointArrays::Table& table : tables) files += 2 + table.stored.slots.size();
  Json places = Json::object();
  std::uint64_t bytes = 0;
  for (const CheckpointArrays::Table& table : tables) {
    StoredTable stored = table.stored;
    std::vector<std::string> names;
    std::vector<std::unique_ptr<GrowingTensor>> tensors;
    std::vector<std::uint16_t> rounded;
    const auto add = [&](const std::string& part, DType dtype, std::vector<std::uint64_t> rest) {
      names.push_back(fmt::format("tables-{:05}-of-{:05}.safetensors", ++number, files));
      const std::string tensor = stored.name + "." + part;
      tensors.push_back(
          std::make_unique<GrowingTensor>(folder + "/" + names.back(), tensor, dtype, std::move(rest), metadata));
      places[tensor] = names.back();
    };
    add("keys", DType::kUint64, {});
    add("rows", stored.dtype, {stored.row_size});
    for (std::size_t slot = 0; slot < stored.slots.size(); ++slot) {
      const bool is_of_rows = slot + stored.row_slots >= stored.slots.size();
      add(stored.slots[slot], DType::kFloat32,
          is_of_rows ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>{stored.row_size});
    }
    table.dump([&](std::uint64_t key, std::span<const float> values, std::span<const float> state) {
      ++stored.rows;
      tensors[0]->append(std::as_bytes(std::span(&key, 1)));
      if (stored.dtype == DType::kBFloat16) {
        rounded.resize(values.size());
        update::round_to_nearest(rounded.data(), values.data(), values.size());
        tensors[1]->append(std::as_bytes(std::span(rounded)));
      } else {
        tensors[1]->append(std::as_bytes(values));
      }
      for (std::size_t slot = 0; slot < stored.slots.size(); ++slot) {
        const std::size_t floats = slot + stored.row_slots >= stored.slots.size() ? 1 : stored.row_size;
        tensors[2 + slot]->append(std::as_bytes(state.first(floats)));
        state = state.subspan(floats);
      }
    });
    for (std::size_t i = 0; i < tensors.size(); ++i) facts.files.push_back({names[i], tensors[i]->finish()});
    const std::uint64_t of_values = stored.row_size * update::find_dtype(stored.dtype)->bytes;
    bytes += stored.rows * (sizeof(std::uint64_t) + of_values + stored.state_size() * sizeof(float));
    facts.tables.push_back(std::move(stored));
  }
  if (files == 0) return;
  const std::string name = "tables.safetensors.index.json";
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", places}};
  facts.files.push_back(
      {name, write_text(folder + "/" + name, index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n")});
}

// Moves `made` to `folder` atomically. `made` then names what was there before. If it throws, all is as before,
// except on a file system that cannot exchange two folders: there the checkpoint that was replaced is gone.
void put_in_place(const std::string& made, const std::string& folder) {
  bool is_exchanged = false;
  if (::rename(made.c_str(), folder.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST)
      throw Error(fmt::format("cannot write {}: {}", folder, std::strerror(errno)), config::code_of(errno));
    is_exchanged = ::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0;
    if (!is_exchanged) {
      // The file system cannot exchange the two: for a moment there is neither.
      remove_checkpoint(folder);
      if (::rename(made.c_str(), folder.c_str()) != 0)
        throw Error(fmt::format("cannot write {}: {}", folder, std::strerror(errno)), config::code_of(errno));
    }
  }
  try {
    sync_folder(fs::path(folder).parent_path().string());
  } catch (const Error&) {  // a power failure might undo the rename, so older checkpoints must stay
    ::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, made.c_str(), is_exchanged ? RENAME_EXCHANGE : 0);
    throw;
  }
}

// Creates a hidden folder for a checkpoint that is being written, and locks it, so that no process takes it for one that
// a dead process has left. Returns its path. Throws Error.
std::string make_hidden_folder(const std::string& dir, const std::string& name, shm::OpenFile& file) {
  constexpr int kAttempts = 100;
  for (int attempt = 0;; ++attempt) {
    const std::string path = fmt::format("{}/{}{}-{}-{}", dir, kHiddenName, name,
                                         std::chrono::steady_clock::now().time_since_epoch().count(), getpid());
    if (::mkdir(path.c_str(), 0777) != 0) {
      if (errno == EEXIST && attempt < kAttempts) continue;
      throw Error(fmt::format("cannot write {}: {}", path, std::strerror(errno)), config::code_of(errno));
    }
    file = shm::OpenFile();
    struct stat status {};
    // Another process may have taken it for a leftover before it was locked. Some file systems have no locks.
    if (lock_folder(file, path) != FolderLock::kInUse && ::stat(path.c_str(), &status) == 0) return path;
    if (attempt == kAttempts)
      throw Error(fmt::format("cannot write {}: other processes remove it", path), ErrorCode::kSystem);
  }
}

}  // namespace

std::map<std::string, std::string> settings_as_text(const JobConfig& config) {
  std::map<std::string, std::string> settings;
  for (const config::Setting<JobConfig>& setting : config::job_settings())
    if (setting.traits.is_stored) settings[setting.name] = show(setting, config);
  return settings;
}

TensorPlace place_of(const std::string& variable, const std::string& slot) {
  if (slot.empty()) return {"model", variable};
  if (slot == "ema") return {"ema", variable};
  return {"optimizer", variable + "." + slot};
}

void CheckpointArrays::add(StoredVariable variable, Read read) {
  const TensorPlace place = place_of(variable.name, "");
  groups_[place.group].push_back({place.name, variable.dtype, variable.shape, std::move(read)});
  variables_.push_back(std::move(variable));
}

void CheckpointArrays::add_slot(const std::string& slot, std::vector<std::uint64_t> shape, Read read) {
  StoredVariable& variable = variables_.back();
  const TensorPlace place = place_of(variable.name, slot);
  groups_[place.group].push_back({place.name, DType::kFloat32, std::move(shape), std::move(read)});
  variable.slots.push_back(slot);
}

CheckpointFacts read_facts(const std::string& folder) {
  const std::string path = folder + "/" + kFactsFile;
  std::error_code ignored;
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path, ignored)) fail(folder, fmt::format("it has no {} that can be read", kFactsFile));
  std::string text;
  char piece[1 << 14];
  while (file.read(piece, sizeof piece), file.gcount() > 0) {
    text.append(piece, static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostFactsBytes) fail(folder, fmt::format("its {} is too long", kFactsFile));
  }
  try {
    const Json json = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMostDepth) throw std::out_of_range("it is nested too deep");
      return true;
    });
    if (json.at("format") != kFormat) throw std::out_of_range("a format of another program");
    if (const std::uint64_t version = whole(json.at("version")); version != kVersion)
      throw Error(fmt::format("{} is a checkpoint of format version {}; this build reads version {}", folder, version,
                              kVersion),
                  ErrorCode::kIncompatible);
    CheckpointFacts facts;
    facts.job = json.at("job").get<std::string>();
    facts.global_step = whole(json.at("global_step"));
    if (const Json& loss = json.at("loss"); !loss.is_null()) facts.loss = loss.get<double>();
    facts.lr = json.at("learning_rate").get<double>();
    facts.settings = json.at("settings").get<std::map<std::string, std::string>>();
    facts.partial_ranks = json.at("partial_ranks").get<std::vector<std::uint32_t>>();
    for (const Json& count : json.at("examples").get_ref<const Json::array_t&>())
      if (facts.examples.emplace_back(whole(count)) > kMostExamples) throw std::out_of_range("too many examples");
    std::set<std::string> names;
    for (const Json& said : json.at("variables").get_ref<const Json::array_t&>()) {
      facts.variables.push_back(variable_of(said));
      if (!names.insert(facts.variables.back().name).second) throw std::out_of_range("a variable that occurs twice");
    }
    names.clear();
    if (json.contains("tables"))  // what wrote the checkpoint may not have known tables
      for (const Json& said : json.at("tables").get_ref<const Json::array_t&>()) {
        facts.tables.push_back(table_of(said));
        if (!names.insert(facts.tables.back().name).second) throw std::out_of_range("a table that occurs twice");
      }
    for (const Json& said : json.at("files").get_ref<const Json::array_t&>())
      facts.files.push_back({file_name(said.at("name").get<std::string>()),
                             {whole(said.at("bytes")), of_hex(said.at("xxh3").get<std::string>())}});
    return facts;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // thrown by the JSON parser, or above
    fail(folder, fmt::format("{}: {}", kFactsFile, json_fault(error)));
  }
}

std::string write_checkpoint(const std::string& dir, CheckpointFacts facts, const CheckpointArrays& arrays,
                             std::uint64_t max_file_bytes) {
  const std::string name = fmt::format("step-{}", facts.global_step);
  std::error_code error;
  if (fs::create_directories(dir, error)) sync_folder(fs::absolute(dir).parent_path().string());
  if (error) throw Error(fmt::format("cannot write {}: {}", dir, error.message()), config::code_of(error.value()));
  shm::OpenFile in_use;
  const std::string made = make_hidden_folder(dir, name, in_use);
  try {
    facts.variables = arrays.variables();
    for (const auto& [group, tensors] : arrays.groups()) write_group(made, group, tensors, max_file_bytes, facts.files);
    write_tables(made, arrays.tables(), facts);
    write_text(made + "/" + kFactsFile, to_json(facts));
    sync_folder(made);
    put_in_place(made, dir + "/" + name);
  } catch (...) {
    fs::remove_all(made, error);
    throw;
  }
  fs::remove_all(made, error);  // the folder that it replaced
  return dir + "/" + name;
}

std::vector<std::pair<std::uint64_t, std::string>> list_checkpoints(const std::string& dir) {
  constexpr std::string_view kFront = "step-";
  std::vector<std::pair<std::uint64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::uint64_t step = 0;
    if (!name.starts_with(kFront)) continue;
    const auto [rest, wrong] = std::from_chars(name.data() + kFront.size(), name.data() + name.size(), step);
    if (wrong == std::errc() && rest == name.data() + name.size()) found.emplace_back(step, entry->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw Error(fmt::format("cannot read {}: {}", dir, error.message()), config::code_of(error.value()));
  std::sort(found.rbegin(), found.rend());
  return found;
}

void remove_checkpoint(const std::string& folder) noexcept try {
  const fs::path path(folder);
  const fs::path hidden =
      path.parent_path() / fmt::format("{}old-{}-{}", kHiddenName, path.filename().string(), getpid());
  std::error_code error;
  fs::rename(path, hidden, error);
  fs::remove_all(hidden, error);
} catch (const std::exception&) {  // no memory: the folder stays
}

void remove_old_checkpoints(const std::string& dir, const Retention& retention, const std::string& written,
                            const std::string& begun_with) {
  auto all = list_checkpoints(dir);
  const auto is_same = [](const std::string& a, const std::string& b) {
    std::error_code error;
    return a == b || fs::equivalent(a, b, error);
  };
  const auto last = std::find_if(all.begin(), all.end(), [&](const auto& one) { return is_same(one.second, written); });
  all.erase(all.begin(), last);
  std::string best;
  if (retention.best) {
    double least = INFINITY;
    for (const auto& [step, folder] : all) try {
        const std::optional<double> loss = read_facts(folder).loss;
        if (loss && *loss < least) least = *loss, best = folder;
      } catch (const Error&) {  // a damaged one is not the best
      }
  }
  for (std::size_t i = retention.newest; i < all.size(); ++i)
    if (all[i].second != best && !is_same(all[i].second, begun_with)) remove_checkpoint(all[i].second);
}

CheckpointDir::CheckpointDir(const std::string& path) { claim_folder(folder_, path, "checkpoints"); }

}  // namespace ps_shm::persistence
