// The folder of a checkpoint: what is said of it in checkpoint.json, how it appears, and which is the newest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "keep/tensor_files.hpp"
#include "ps/checkpoint.hpp"

namespace ps::keep {

struct StoredFile {
  std::string name;
  FileFacts facts;
};

// What checkpoint.json says.
struct CheckpointFacts {
  std::string job;
  std::uint64_t global_step = 0;
  std::optional<double> loss;
  std::map<std::string, std::string> settings;
  double learning_rate = 0.0;           // of the next step, by the schedule
  std::vector<std::uint64_t> examples;  // of each rank
  std::vector<std::uint32_t> split;     // ranks of which a part of a push may be in it, as Snapshot::split() says
  std::vector<StoredVariable> variables;
  std::vector<StoredFile> files;
};

// All arrays of a checkpoint, each in its kind of file.
class CheckpointArrays {
 public:
  using Read = std::function<void(std::uint64_t begin, std::span<std::byte> out)>;

  void add(StoredVariable variable, Read read);                                         // its slots follow
  void add_slot(const std::string& slot, std::vector<std::uint64_t> shape, Read read);  // of the last variable

  const std::vector<StoredVariable>& variables() const noexcept { return variables_; }
  // The tensors of each kind there is: model, optimizer, ema.
  const std::map<std::string, std::vector<Tensor>>& groups() const noexcept { return groups_; }

 private:
  std::vector<StoredVariable> variables_;
  std::map<std::string, std::vector<Tensor>> groups_;
};

// Which kind of file a variable (no slot) or a slot is in, and how it is called there.
struct TensorPlace {
  std::string group, name;
};
TensorPlace place_of(const std::string& variable, const std::string& slot);

// The settings that a control segment has, by their names.
std::map<std::string, std::string> settings_as_text(const JobConfig& config);

// Throws Error: no checkpoint, another format or version, or what it says makes no sense.
CheckpointFacts read_facts(const std::string& folder);

// Writes DIR/step-N in the place of one that is there; facts.variables and facts.files are filled in. Returns the folder.
// Throws Error: what cannot be written, and why; nothing of it stays.
std::string write_checkpoint(const std::string& dir, CheckpointFacts facts, const CheckpointArrays& arrays,
                             std::uint64_t max_file_bytes);

// DIR/step-N of each number there is, the highest first; whether it is whole is not looked at. None: no such folder.
// Throws Error: it cannot be read.
std::vector<std::pair<std::uint64_t, std::string>> list_checkpoints(const std::string& dir);

// Removes DIR/step-N, by another name first, so that nobody takes a half of it for one.
void remove_checkpoint(const std::string& folder) noexcept;

// Which checkpoints stay.
struct Retention {
  std::uint64_t newest = 5;
  bool best = false;  // and the one with the smallest loss
};

// Removes checkpoints of steps up to that of `written`, the last one: all but the newest, the best and `begun_with`, which
// workers that come late may want to read. Those of later steps are left: this run is not there yet.
void remove_old_checkpoints(const std::string& dir, const Retention& retention, const std::string& written,
                            const std::string& begun_with);

// One program at a time writes checkpoints there. What processes that are gone have left half written is removed.
class CheckpointDir {
 public:
  // Makes the folder where there is none. Throws Error: it cannot be made, or another process has it.
  explicit CheckpointDir(std::string path);
  ~CheckpointDir();
  CheckpointDir(const CheckpointDir&) = delete;
  CheckpointDir& operator=(const CheckpointDir&) = delete;

 private:
  int descriptor_;
};

}  // namespace ps::keep
