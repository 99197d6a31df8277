#include "ps_shm/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "config/error_code.hpp"
#include "config/job_settings.hpp"
#include "config/spelling.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "persistence/tensor_reader.hpp"
#include "ps_shm/errors.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"

namespace ps_shm {
namespace {

std::string shape_text(const std::vector<std::uint64_t>& shape, DType dtype) {
  return fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", "));
}

}  // namespace

struct PS_SHM_HIDDEN Checkpoint::Impl {
  explicit Impl(const std::string& path) : folder(path), facts(persistence::read_facts(path)) {
    for (const persistence::StoredFile& file : facts.files) {
      std::error_code error;
      const std::uint64_t bytes = std::filesystem::file_size(folder + "/" + file.name, error);
      if (error)
        throw Error(fmt::format("{}: cannot read {}: {}", folder, file.name, error.message()),
                    config::code_of(error.value()));
      if (bytes != file.facts.bytes)
        throw Error(fmt::format("{}: {} has {} bytes, and {} were written", folder, file.name, bytes, file.facts.bytes),
                    ErrorCode::kDamaged);
    }
  }

  const StoredVariable* find(const std::string& name) const {
    const auto found = std::find_if(facts.variables.begin(), facts.variables.end(),
                                    [&](const StoredVariable& one) { return one.name == name; });
    return found == facts.variables.end() ? nullptr : &*found;
  }

  const persistence::TensorFile& file(const std::string& name) const {
    std::unique_ptr<persistence::TensorFile>& file = open[name];
    if (!file) file = std::make_unique<persistence::TensorFile>(folder + "/" + name);
    return *file;
  }

  // Calls use(file, tensor) for the tensor of that name in the group, in whichever file of the group it is. Throws
  // Error if there is none.
  template <class Use>
  void with_tensor(const std::string& group, const std::string& name, Use&& use) const {
    for (const persistence::StoredFile& one : facts.files) {
      if (!one.name.ends_with(".safetensors") ||
          !(one.name.starts_with(group + ".") || one.name.starts_with(group + "-")))
        continue;
      const persistence::TensorFile& here = file(one.name);
      if (const auto found = here.tensors().find(name); found != here.tensors().end()) return use(here, found->second);
    }
    throw Error(fmt::format("{}: the files of {} have no tensor {}", folder, group, name), ErrorCode::kDamaged);
  }

  std::string folder;
  persistence::CheckpointFacts facts;
  mutable std::map<std::string, std::unique_ptr<persistence::TensorFile>> open;
};

Checkpoint::Checkpoint(const std::string& folder) : impl_(std::make_unique<Impl>(folder)) {}
Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const std::string& Checkpoint::folder() const noexcept { return impl_->folder; }
std::uint64_t Checkpoint::global_step() const noexcept { return impl_->facts.global_step; }
std::optional<double> Checkpoint::loss() const noexcept { return impl_->facts.loss; }
const std::map<std::string, std::string>& Checkpoint::settings() const noexcept { return impl_->facts.settings; }
const std::vector<std::uint64_t>& Checkpoint::examples() const noexcept { return impl_->facts.examples; }
const std::vector<StoredVariable>& Checkpoint::variables() const noexcept { return impl_->facts.variables; }
const std::vector<StoredTable>& Checkpoint::tables() const noexcept { return impl_->facts.tables; }

void Checkpoint::verify() const {
  for (const persistence::StoredFile& file : impl_->facts.files) {
    const persistence::FileFacts there = persistence::facts_of(impl_->folder + "/" + file.name);
    if (there.bytes != file.facts.bytes || there.hash != file.facts.hash)
      throw Error(fmt::format("{}: the contents of {} are not what was written", impl_->folder, file.name),
                  ErrorCode::kDamaged);
  }
}

void Checkpoint::read(const std::string& variable, std::span<std::byte> out, const std::string& slot) const {
  const auto [group, name] = persistence::place_of(variable, slot);
  const StoredVariable* const stored = impl_->find(variable);
  if (stored == nullptr) {
    std::vector<std::string> names;
    for (const StoredVariable& one : impl_->facts.variables) names.push_back(one.name);
    throw Error(fmt::format("checkpoint {} has no variable '{}'; it has {}", impl_->folder, variable,
                            config::what_there_is(variable, names)),
                ErrorCode::kNotFound);
  }
  if (!slot.empty() && std::find(stored->slots.begin(), stored->slots.end(), slot) == stored->slots.end())
    throw Error(fmt::format("checkpoint {}: variable '{}' has no slot '{}'; it has {}", impl_->folder, variable, slot,
                            config::what_there_is(slot, stored->slots)),
                ErrorCode::kNotFound);
  const DType dtype = slot.empty() ? stored->dtype : DType::kFloat32;
  impl_->with_tensor(
      group, name,
      [&, &tensor_name = name](const persistence::TensorFile& file, const persistence::StoredTensor& tensor) {
        if (tensor.dtype != persistence::safetensors_name(dtype))
          throw Error(fmt::format("{}: {} is of dtype {}", file.path(), tensor_name, tensor.dtype),
                      ErrorCode::kIncompatible);
        file.read(tensor, out);
      });
}

void Checkpoint::read_rows(const std::string& table, std::uint64_t first, std::span<std::uint64_t> keys,
                           std::span<float> values, std::span<float> state) const {
  const std::vector<StoredTable>& all = impl_->facts.tables;
  const auto stored = std::find_if(all.begin(), all.end(), [&](const StoredTable& one) { return one.name == table; });
  if (stored == all.end()) {
    std::vector<std::string> names;
    for (const StoredTable& one : all) names.push_back(one.name);
    throw Error(fmt::format("checkpoint {} has no table '{}'; it has {}", impl_->folder, table,
                            config::what_there_is(table, names)),
                ErrorCode::kNotFound);
  }
  const std::uint64_t width = stored->row_size, per_row = stored->state_size();
  if (values.size() != keys.size() * width || (!state.empty() && state.size() != keys.size() * per_row))
    throw Error(
        fmt::format("read of {} rows of table '{}': a row has {} floats and {} of state, the spans have {} and {}",
                    keys.size(), table, width, per_row, values.size(), state.size()));
  const auto read = [&](const std::string& part, DType dtype, std::uint64_t row, std::span<std::byte> out) {
    const std::string name = table + "." + part;
    impl_->with_tensor(
        "tables", name, [&](const persistence::TensorFile& file, const persistence::StoredTensor& tensor) {
          if (tensor.dtype != persistence::safetensors_name(dtype) || tensor.bytes != stored->rows * row)
            throw Error(fmt::format("{}: {} is not as {} describes it", file.path(), name, impl_->folder),
                        ErrorCode::kDamaged);
          file.read_part(tensor, first * row, out);
        });
  };
  read("keys", DType::kUint64, sizeof(std::uint64_t), std::as_writable_bytes(keys));
  const std::uint64_t row_bytes = width * update::find_dtype(stored->dtype)->bytes;
  // Of bfloat16, they are read to where they are widened.
  const std::size_t to = stored->dtype == DType::kBFloat16 ? values.size() - (values.size() + 1) / 2 : 0;
  read("rows", stored->dtype, row_bytes, std::as_writable_bytes(values.subspan(to)).first(keys.size() * row_bytes));
  if (stored->dtype == DType::kBFloat16) update::widen_in_place(values.data(), values.size());
  if (state.empty()) return;
  std::vector<float> of_slot;
  for (std::size_t slot = 0, at = 0; slot < stored->slots.size(); ++slot) {
    const std::uint64_t floats = slot + stored->row_slots < stored->slots.size() ? width : 1;
    of_slot.resize(keys.size() * floats);
    read(stored->slots[slot], DType::kFloat32, floats * sizeof(float), std::as_writable_bytes(std::span(of_slot)));
    for (std::size_t row = 0; row < keys.size(); ++row)
      std::copy_n(of_slot.data() + row * floats, floats, state.data() + row * per_row + at);
    at += floats;
  }
}

void Checkpoint::require(std::span<const VariableSpec> variables) const {
  std::vector<std::string> wrong, more;
  for (const VariableSpec& variable : variables) {
    const StoredVariable* const stored = impl_->find(variable.name);
    if (stored == nullptr)
      wrong.push_back(fmt::format("it has no {}", variable.name));
    else if (stored->shape != variable.shape || stored->dtype != variable.dtype)
      wrong.push_back(fmt::format("{} is {} there and {} here", variable.name, shape_text(stored->shape, stored->dtype),
                                  shape_text(variable.shape, variable.dtype)));
  }
  if (wrong.empty()) return;
  for (const StoredVariable& stored : impl_->facts.variables)
    if (std::none_of(variables.begin(), variables.end(),
                     [&](const VariableSpec& variable) { return variable.name == stored.name; }))
      more.push_back(stored.name);
  throw Error(fmt::format("checkpoint {} belongs to another model: {}{}{}; choose another folder", impl_->folder,
                          fmt::join(wrong, "; "), more.empty() ? "" : "; it has also ", fmt::join(more, ", ")),
              ErrorCode::kIncompatible);
}

std::optional<Checkpoint> Checkpoint::latest(const std::string& dir,
                                             const std::function<void(const std::string&)>& log) {
  std::string last;
  for (const auto& [step, folder] : persistence::list_checkpoints(dir)) try {
      Checkpoint checkpoint(folder);
      checkpoint.verify();
      return checkpoint;
    } catch (const Error& error) {
      last = error.what();
      if (log) log(fmt::format("skipped a checkpoint: {}", last));
    }
  if (last.empty()) return std::nullopt;
  throw Error(fmt::format("{} has checkpoints, but none is complete: {}", dir, last), ErrorCode::kDamaged);
}

}  // namespace ps_shm
