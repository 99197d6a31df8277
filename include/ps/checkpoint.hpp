// A job's state in files: all variables at one moment, the state of their optimizers, and how far training was.
//
//   DIR/step-N/model.safetensors      each variable under its name; torch and safetensors load it
//              optimizer.safetensors  their slots, as VARIABLE.SLOT
//              ema.safetensors        moving averages, under the variables' names, where the optimizer keeps them
//              checkpoint.json        written last: what the files are, their sizes and hashes (XXH3), and the rest
//
// A checkpoint appears complete or not at all. Large ones are in several files, beside an index that torch's tools know.
// A job begins with one where JobConfig::restore names it.
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

#include "ps/export.hpp"
#include "ps/job_view.hpp"
#include "ps/types.hpp"
#include "ps/variable_spec.hpp"

namespace PS_API ps {

struct CheckpointOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  // of tensors in a file; a larger tensor has a file of its own
  std::optional<double> loss{};                  // of training, that is noted
  std::string group{};                           // whose users' job it is, as in JobConfig
};

struct StoredVariable {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape;
  std::uint64_t updates = 0;         // that it has had, as Snapshot::updates() counts them
  bool is_fuzzy = false;             // its elements may be of different moments, as Snapshot::is_fuzzy() says
  std::vector<std::string> slots{};  // of its optimizer; a moving average is called "ema"
};

class Checkpoint {
 public:
  // Reads what is said of it and looks for its files; verify() reads them. Throws Error: there is none, it is of a format
  // that this build does not know, a file is missing or has another size.
  explicit Checkpoint(const std::string& folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const std::string& folder() const noexcept;
  std::uint64_t global_step() const noexcept;
  std::optional<double> loss() const noexcept;
  const std::map<std::string, std::string>& settings() const noexcept;  // of the job, by their names, as text
  const std::vector<std::uint64_t>& examples() const noexcept;          // how many each rank had trained on
  const std::vector<StoredVariable>& variables() const noexcept;        // in the order of their names

  // Throws Error: names the file whose bytes are not those that were written.
  void verify() const;

  // Copies a variable, or one of its slots. Requires: there is such a one, `out` has its bytes (throws Error, as where the
  // file cannot be read).
  void read(const std::string& variable, std::span<std::byte> out, const std::string& slot = "") const;

  // Throws one Error that lists all variables that this has not, or has with another shape or dtype, and what it has
  // besides; nothing where it has them all.
  void require(std::span<const VariableSpec> variables) const;

  // Takes a snapshot and writes DIR/step-N from it while the job goes on; returns that folder. Copies once, by small
  // pieces. Throws Error as JobView::snapshot() does, and where the files cannot be written: then nothing of them stays.
  static std::string save(const JobView& job, const std::string& dir, const CheckpointOptions& options = {});

  // The newest checkpoint in `dir` that verify() finds whole; `notice` gets a line for each that is not. None: there is no
  // checkpoint. Throws Error: there are some, and none is whole; `dir` cannot be read.
  static std::optional<Checkpoint> latest(const std::string& dir,
                                          const std::function<void(const std::string&)>& notice = {});

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
