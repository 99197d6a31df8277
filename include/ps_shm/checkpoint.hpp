/// @file
/// A job's state in files: all variables at one moment, the state of their optimizers, and the training's progress.
/// @code{.unparsed}
///   DIR/step-N/model.safetensors      each variable under its name; torch and safetensors load it
///              optimizer.safetensors  the optimizer slots, as VARIABLE.SLOT
///              ema.safetensors        moving averages under the variables' names, if the optimizer keeps them
///              tables-*.safetensors   of each table by key TABLE.keys, TABLE.rows, and its slots, as TABLE.SLOT
///              checkpoint.json        written last: the files, their sizes and hashes (XXH3), and the rest
/// @endcode
/// A checkpoint appears complete or not at all. If the tensors of one kind of file exceed max_file_bytes in all, they
/// are in several files, beside an index that torch's tools know.
///
/// A job begins with a checkpoint if JobConfig::restore names it:
/// @code
///   if (const auto found = ps_shm::Checkpoint::latest("runs")) config.restore = found->folder();
///   ps_shm::Server server(config);
///   // ...
///   ps_shm::Checkpoint::save(ps_shm::JobView(config.job), "runs");
/// @endcode
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/export.hpp"
#include "ps_shm/types.hpp"
#include "ps_shm/variable_spec.hpp"

namespace PS_SHM_API ps_shm {

class JobView;  // job_view.hpp

/// Options of Checkpoint::save().
struct CheckpointOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  ///< bytes of tensors per file; a larger tensor gets a file of its own
  std::optional<double> loss{};                  ///< training loss to note in the checkpoint
  std::string group{};                           ///< Unix group whose users' job it may be, as JobConfig::group
  WaitLimit wait = Seconds(60);                  ///< as SnapshotOptions::wait
  std::uint64_t at_step = 0;                     ///< as SnapshotOptions::at_step
  /// Polled while the snapshot waits for `at_step` and while files are written; if true, save() throws Interrupted.
  std::function<bool()> stop_requested{};
};

/// A variable in a checkpoint.
struct StoredVariable {
  std::string name;                  ///< as in the job
  DType dtype = DType::kFloat32;     ///< type of its elements
  std::vector<std::uint64_t> shape;  ///< extents; empty: a scalar
  std::uint64_t updates = 0;         ///< updates that it has had, as Snapshot::updates() counts them
  bool is_point_in_time = true;      ///< see Snapshot::is_point_in_time()
  std::vector<std::string> slots{};  ///< names of its optimizer slots; a moving average is called "ema"
};

/// A table by key in a checkpoint. Each of its rows is a key's throughout; rows are of different moments.
struct StoredTable {
  std::string name;                  ///< as in the job
  DType dtype = DType::kFloat32;     ///< type of its elements: float32 or bfloat16
  std::uint64_t row_size = 1;        ///< elements in a row
  std::uint64_t rows = 0;            ///< that are stored
  std::string rule;                  ///< the name of its update rule
  std::vector<std::string> slots{};  ///< names of its optimizer slots
  std::uint64_t row_slots = 0;       ///< how many of them, the last ones, have one float for each row

  /// Floats of the optimizer's state in a row.
  std::uint64_t state_size() const noexcept { return (slots.size() - row_slots) * row_size + row_slots; }
};

/// A checkpoint in a folder, open for reading; save() writes one.
class Checkpoint {
 public:
  /// Opens a checkpoint: reads its description, and checks that its files exist with their sizes. (verify() reads
  /// them.)
  ///
  /// @throws Error with kDamaged if `folder` holds no checkpoint or a file has another size, kIncompatible if this
  /// build does not know the format; and if a file is missing.
  explicit Checkpoint(const std::string& folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  /// The folder, as it was given.
  const std::string& folder() const noexcept;
  /// The number of global steps that the job had done.
  std::uint64_t global_step() const noexcept;
  std::optional<double> loss() const noexcept;  ///< CheckpointOptions::loss
  /// The settings of the job, as text, by their names.
  const std::map<std::string, std::string>& settings() const noexcept;
  /// How many examples each rank had trained on, by rank.
  const std::vector<std::uint64_t>& examples() const noexcept;
  /// The variables, in the order of their names.
  const std::vector<StoredVariable>& variables() const noexcept;

  /// The tables by key, in the order of their names.
  const std::vector<StoredTable>& tables() const noexcept;

  /// Reads all files and compares them with their hashes.
  ///
  /// @throws Error (kDamaged), which names the file whose bytes are not those that were written.
  void verify() const;

  /// Reads a variable, or one of its optimizer slots, as bytes.
  ///
  /// @throws Error (kNotFound), which lists those that there are, if there is no such variable or slot; Error if
  /// out.size() is not its size in bytes, or if the file cannot be read.
  void read(const std::string& variable, std::span<std::byte> out, const std::string& slot = "") const;

  /// Reads keys.size() rows of a table, from row `first` on: their keys, values and state, as Table::dump() gives them.
  ///
  /// @throws Error (kNotFound) if there is no such table; Error if a size does not fit, or if a file cannot be read.
  void read_rows(const std::string& table, std::uint64_t first, std::span<std::uint64_t> keys, std::span<float> values,
                 std::span<float> state = {}) const;

  /// Checks that the checkpoint has all these variables.
  ///
  /// @throws Error (kIncompatible), which lists all variables that are missing or have another shape or dtype, and
  /// those that the checkpoint has besides.
  void require(std::span<const VariableSpec> variables) const;

  /// Takes a snapshot of the job, and writes the folder step-N in `dir` from it while the job goes on. Returns that
  /// folder. The data is copied once. Rows of tables by key are not of the snapshot's moment: they are copied while
  /// pushes go on.
  ///
  /// @throws Error as JobView::snapshot(); kInvalidState if no variable is initialised and there is no table, or in
  /// mode sync if all workers died while a step was applied; Interrupted; or if files cannot be written, of which none
  /// stays.
  static std::string save(const JobView& job, const std::string& dir, const CheckpointOptions& options = {});

  /// Opens the newest checkpoint in `dir` that verify() finds intact; std::nullopt if there is no checkpoint. `log`
  /// (log callback) gets a line for each one that is not intact.
  ///
  /// @throws Error with kDamaged if there are checkpoints but none is intact; and if `dir` cannot be read.
  static std::optional<Checkpoint> latest(const std::string& dir,
                                          const std::function<void(const std::string&)>& log = {});

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
