// The stores of a job: a table by key, and rows by number with a dictionary.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "store.hpp"

namespace ps_shm::bench {
namespace {

JobConfig config_of(const Shape& shape) {
  static int number = 0;
  JobConfig config;
  config.job = fmt::format("bench-{}-{}", getpid(), number++);
  config.workers = static_cast<std::uint32_t>(shape.processes);
  config.max_workers = static_cast<std::uint32_t>(shape.processes);
  config.optimizer.rule = UpdateRule::kSgd;
  config.optimizer.lr = kRate;
  return config;
}

WorkerOptions options_of(const JobConfig& config, int number) {
  WorkerOptions options;
  options.job = config.job;
  options.rank = static_cast<std::uint32_t>(number);
  options.log = [](const std::string&) {};  // large variables take their time to be initialised
  return options;
}

class TableAccess final : public Access {
 public:
  TableAccess(const WorkerOptions& options, const TableSpec& spec) : worker_(options), table_(worker_.table(spec)) {}

  std::uint64_t lookup(std::span<const std::uint64_t> keys) override {
    if (found_size_ < keys.size()) found_ = std::make_unique<bool[]>(found_size_ = keys.size());
    return table_.contains(keys, {found_.get(), keys.size()});
  }
  void pull(std::span<const std::uint64_t> keys, std::span<float> out) override { table_.pull(keys, out); }
  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) override {
    table_.push(keys, gradients);
  }
  TableStatistics statistics() const { return table_.statistics(); }

 private:
  Worker worker_;
  Table table_;
  std::unique_ptr<bool[]> found_;
  std::size_t found_size_ = 0;
};

class TableStore final : public Store {
 public:
  explicit TableStore(const Shape& shape, DType dtype = DType::kFloat32) : config_(config_of(shape)), server_(config_) {
    spec_.dtype = dtype;
    spec_.name = "rows";
    spec_.row_size = shape.width;
    spec_.max_rows = shape.rows;
  }
  std::unique_ptr<Access> open(int number) override {
    return std::make_unique<TableAccess>(options_of(config_, number), spec_);
  }
  std::uint64_t bytes() const override {
    return TableAccess(options_of(config_, 0), spec_).statistics().bytes;  // while nobody has the rank
  }

 private:
  JobConfig config_;
  Server server_;
  TableSpec spec_;
};

using Dictionary = std::unordered_map<std::uint64_t, std::uint32_t>;

class DictionaryAccess final : public Access {
 public:
  DictionaryAccess(const WorkerOptions& options, const VariableSpec& spec, const Dictionary& dictionary)
      : worker_(options),
        variable_(worker_.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.5F); })),
        dictionary_(dictionary) {}

  std::uint64_t lookup(std::span<const std::uint64_t> keys) override {
    std::uint64_t found = 0;
    for (const std::uint64_t key : keys) found += dictionary_.contains(key);
    return found;
  }
  void pull(std::span<const std::uint64_t> keys, std::span<float> out) override {
    worker_.pull_rows(variable_, ids_of(keys), out);
  }
  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) override {
    worker_.push_rows(variable_, ids_of(keys), gradients);
  }

 private:
  std::span<const std::uint32_t> ids_of(std::span<const std::uint64_t> keys) {
    ids_.clear();
    for (const std::uint64_t key : keys) ids_.push_back(dictionary_.find(key)->second);
    return ids_;
  }

  Worker worker_;
  Variable variable_;
  const Dictionary& dictionary_;
  std::vector<std::uint32_t> ids_;
};

class DictionaryStore final : public Store {
 public:
  explicit DictionaryStore(const Shape& shape) : config_(config_of(shape)), server_(config_) {
    spec_.name = "rows";
    spec_.shape = {shape.keys, shape.width};
    spec_.layout = Layout::kInplace;
    dictionary_.reserve(shape.keys);
    for (std::uint64_t i = 0; i < shape.keys; ++i)
      dictionary_.emplace(key_of(id_in_order(i, shape.keys)), static_cast<std::uint32_t>(i));
  }
  std::unique_ptr<Access> open(int number) override {
    return std::make_unique<DictionaryAccess>(options_of(config_, number), spec_, dictionary_);
  }
  // The dictionary's of one process: a node with its key, number and successor in a block of malloc, and a bucket.
  std::uint64_t bytes() const override {
    constexpr std::uint64_t kNode = 32;
    return dictionary_.size() * (kNode + spec_.shape[1] * sizeof(float)) + dictionary_.bucket_count() * sizeof(void*);
  }

 private:
  JobConfig config_;
  Server server_;
  VariableSpec spec_;
  Dictionary dictionary_;
};

}  // namespace

std::unique_ptr<Store> make_table(const Shape& shape) { return std::make_unique<TableStore>(shape); }
std::unique_ptr<Store> make_bfloat16(const Shape& shape) {
  return std::make_unique<TableStore>(shape, DType::kBFloat16);
}
std::unique_ptr<Store> make_dictionary(const Shape& shape) { return std::make_unique<DictionaryStore>(shape); }

}  // namespace ps_shm::bench
