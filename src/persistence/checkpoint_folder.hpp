// The folder of a checkpoint: the contents of checkpoint.json, how the folder appears, and which one is the newest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "persistence/tensor_files.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_config.hpp"
#include "shm/base/open_file.hpp"

namespace ps_shm::persistence {

struct StoredFile {
  std::string name;
  FileFacts facts;
};

// The contents of checkpoint.json.
struct CheckpointFacts {
  std::string job;
  std::uint64_t global_step = 0;
  std::optional<double> loss;
  std::map<std::string, std::string> settings;
  double lr = 0.0;                // of the next step, as scheduled
  std::vector<std::uint64_t> examples;       // of each rank
  std::vector<std::uint32_t> partial_ranks;  // as Snapshot::partial_ranks() returns them
  std::vector<StoredVariable> variables;
  std::vector<StoredTable> tables;
  std::vector<StoredFile> files;
};

// All arrays of a checkpoint, grouped by the kind of file that they belong to.
class CheckpointArrays {
 public:
  using Read = std::function<void(std::uint64_t begin, std::span<std::byte> out)>;

  void add(StoredVariable variable, Read read);                                         // followed by its slots
  void add_slot(const std::string& slot, std::vector<std::uint64_t> shape, Read read);  // a slot of the last variable

  // A table by key: dump(append) calls append(key, values, state) for each of its rows, whose number is found out so.
  using AppendRow = std::function<void(std::uint64_t key, std::span<const float> values, std::span<const float> state)>;
  struct Table {
    StoredTable stored;
    std::function<void(const AppendRow& append)> dump;
  };
  void add_table(Table table) { tables_.push_back(std::move(table)); }

  const std::vector<StoredVariable>& variables() const noexcept { return variables_; }
  const std::vector<Table>& tables() const noexcept { return tables_; }
  // The tensors of each kind: model, optimizer, ema.
  const std::map<std::string, std::vector<Tensor>>& groups() const noexcept { return groups_; }

 private:
  std::vector<StoredVariable> variables_;
  std::vector<Table> tables_;
  std::map<std::string, std::vector<Tensor>> groups_;
};

// The kind of file that a variable (empty slot) or one of its slots is stored in, and its name there.
struct TensorPlace {
  std::string group, name;
};
TensorPlace place_of(const std::string& variable, const std::string& slot);

// The settings that a control segment stores, by name.
std::map<std::string, std::string> settings_as_text(const JobConfig& config);

// Throws Error if it is not a checkpoint, has another format or version, or has invalid contents.
CheckpointFacts read_facts(const std::string& folder);

// Writes DIR/step-N and replaces an existing one; fills in facts.variables, facts.tables and facts.files. Returns the folder. Throws
// Error that says what cannot be written, and why. Nothing of the checkpoint stays then.
std::string write_checkpoint(const std::string& dir, CheckpointFacts facts, const CheckpointArrays& arrays,
                             std::uint64_t max_file_bytes);

// All folders DIR/step-N, the highest number first, without a check whether they are complete. Empty if there is no
// such folder. Throws Error if the folder cannot be read.
std::vector<std::pair<std::uint64_t, std::string>> list_checkpoints(const std::string& dir);

// Removes DIR/step-N. Renames it first, so that nobody takes a partly removed folder for a checkpoint.
void remove_checkpoint(const std::string& folder) noexcept;

// Which checkpoints are kept.
struct Retention {
  std::uint64_t newest = 5;
  bool best = false;  // also keep the one with the lowest loss
};

// Removes checkpoints of steps up to that of `written`, the last one, except the newest ones, the best one, and
// `begun_with`, which workers that join late may want to read. Those of later steps stay: this run has not reached
// them.
void remove_old_checkpoints(const std::string& dir, const Retention& retention, const std::string& written,
                            const std::string& begun_with);

// Lets one process at a time write checkpoints to a folder. Removes what dead processes have left incomplete.
class CheckpointDir {
 public:
  // Creates the folder if there is none, and removes what dead processes have left half-written. Throws Error if it
  // cannot be created or written to, or if another process writes to it.
  explicit CheckpointDir(const std::string& path);
  CheckpointDir(const CheckpointDir&) = delete;
  CheckpointDir& operator=(const CheckpointDir&) = delete;

 private:
  shm::OpenFile folder_;  // locked; a forked child does not have it
};

}  // namespace ps_shm::persistence
