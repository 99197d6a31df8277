#include "hooks/nan_guard.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "config/modes.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/base/clock.hpp"
#include "update/dtypes.hpp"

namespace ps_shm {
namespace {

using Bytes = std::vector<std::byte>;

struct Rows {
  StoredTable table;
  std::vector<std::uint64_t> keys;
  std::vector<float> values;
};

struct Found {
  std::string folder;
  std::vector<std::pair<const StoredVariable, Bytes>> values;
  std::vector<Rows> tables;
};

// Throws Error if the checkpoint is damaged, was removed meanwhile, or has values that are not finite.
Found read_all(const std::string& folder) {
  const Checkpoint checkpoint(folder);
  checkpoint.verify();
  Found found{folder, {}, {}};
  for (const StoredVariable& variable : checkpoint.variables()) {
    std::size_t bytes = bytes_of(variable.dtype);
    for (const std::uint64_t extent : variable.shape) bytes *= extent;
    Bytes& values = found.values.emplace_back(variable, Bytes(bytes)).second;
    checkpoint.read(variable.name, values);
    if (!update::are_finite(variable.dtype, values))
      throw Error(fmt::format("{}: variable '{}' has values that are not finite", folder, variable.name),
                  ErrorCode::kNotFinite);
  }
  for (const StoredTable& table : checkpoint.tables()) {
    Rows& rows = found.tables.emplace_back();
    rows.table = table, rows.keys.resize(table.rows), rows.values.resize(table.rows * table.row_size);
    checkpoint.read_rows(table.name, 0, rows.keys, rows.values);
    if (!std::all_of(rows.values.begin(), rows.values.end(), [](float value) { return std::isfinite(value); }))
      throw Error(fmt::format("{}: table '{}' has values that are not finite", folder, table.name),
                  ErrorCode::kNotFinite);
  }
  return found;
}

Found newest(const std::string& dir, const LogCallback& log) {
  constexpr int kAttempts = 3;  // a checkpoint may be removed while it is read, for a newer one
  std::string last = "it has none yet";
  for (int attempt = 0; attempt < kAttempts; ++attempt)
    for (const auto& [step, folder] : persistence::list_checkpoints(dir)) try {
        return read_all(folder);
      } catch (const Error& error) {
        last = error.what();
        if (log && attempt == 0) log(fmt::format("skipped a checkpoint: {}", last));
      }
  throw Error(fmt::format("no checkpoint in {} can be restored: {}", dir, last), ErrorCode::kNotFound);
}

// The job's table that a checkpoint has rows of.
Table table_of(Worker& worker, const Found& found, const StoredTable& stored) {
  for (const TableInfo& table : JobView(worker.config().job).tables()) {
    if (table.spec.name != stored.name) continue;
    if (table.spec.row_size != stored.row_size)
      throw Error(fmt::format("{}: table '{}' has rows of {} floats, and the job's of {}", found.folder, stored.name,
                              stored.row_size, table.spec.row_size),
                  ErrorCode::kIncompatible);
    return worker.table(table.spec);
  }
  throw Error(fmt::format("{}: the job has no table '{}'", found.folder, stored.name), ErrorCode::kNotFound);
}

void assign(Table& table, const Rows& rows) {
  const std::set<std::uint64_t> stored(rows.keys.begin(), rows.keys.end());
  std::vector<std::uint64_t> others;
  table.dump(0, [&](const TableRow& row) {
    if (!stored.contains(row.key)) others.push_back(row.key);
  });
  constexpr int kAttempts = 10;  // a row that is being pushed is not evicted
  for (int attempt = 0; attempt < kAttempts && !others.empty(); ++attempt) {
    const auto has_row = std::make_unique<bool[]>(others.size());
    table.evict(others);
    table.contains(others, {has_row.get(), others.size()});
    std::size_t kept = 0;
    for (std::size_t i = 0; i < others.size(); ++i)
      if (has_row[i]) others[kept++] = others[i];
    others.resize(kept);
  }
  table.assign(rows.keys, rows.values);
}

void assign(Worker& worker, const Found& found) {
  constexpr Seconds kWait{1};       // all variables exist, except one that is just being declared
  std::vector<Variable> variables;  // all, and all tables, are checked before the first one is changed
  for (const auto& [stored, values] : found.values) {
    const Variable& variable = variables.emplace_back(worker.variable(stored.name, kWait));
    if (variable.dtype() != stored.dtype || variable.element_count() * bytes_of(stored.dtype) != values.size())
      throw Error(fmt::format("{}: variable '{}' has another type or size than the job's", found.folder, stored.name),
                  ErrorCode::kIncompatible);
  }
  std::vector<Table> tables;
  for (const Rows& rows : found.tables) tables.push_back(table_of(worker, found, rows.table));
  for (std::size_t i = 0; i < tables.size(); ++i) assign(tables[i], found.tables[i]);
  const PushGroup group = worker.group_pushes();  // snapshots contain all of it or nothing
  for (std::size_t i = 0; i < variables.size(); ++i)
    worker.assign(variables[i], std::span<const std::byte>(found.values[i].second), Slots::kReset);
}

// The last restore.
struct Done {
  std::uint64_t instance = 0, step = 0, count = 0;  // step: the global step
  std::int64_t ns = 0;
  std::string folder;
};

// What this process has restored into the job whose checkpoints lie in DIR. If the file cannot be written, other
// processes cannot see this, but `max_restores` still holds for each process.
class OwnRecords {
 public:
  Done of(const std::string& dir) {
    const std::lock_guard lock(mutex_);
    return of_dir_[dir];
  }
  void put(const std::string& dir, const Done& done) {
    const std::lock_guard lock(mutex_);
    of_dir_[dir] = done;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Done> of_dir_;
};
OwnRecords& own_records() {
  static OwnRecords records;
  return records;
}

// The contents of DIR/.restored, locked.
class Record {
 public:
  explicit Record(const std::string& dir)
      : descriptor_(::open((dir + "/.restored").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) return;
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      is_anothers_ = errno == EWOULDBLOCK;
      ::close(std::exchange(descriptor_, -1));  // a file system without locks: as if there were no file
      return;
    }
    std::string text(kBytes, '\0');
    const ssize_t bytes = ::pread(descriptor_, text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    std::istringstream in(text);
    Done read;
    if (in >> read.instance >> read.ns >> read.step >> read.count && in.get() == ' ' && std::getline(in, read.folder) &&
        !in.eof())
      done = std::move(read);
  }
  ~Record() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  // False: another process is restoring at this moment. If the file cannot be opened, nobody is kept from restoring.
  bool is_ours() const { return !is_anothers_; }

  // Writes all bytes at once, over those that exist: on a disk that has become full, their blocks are allocated
  // already.
  void write() const {
    if (descriptor_ < 0) return;
    std::string text = fmt::format("{} {} {} {} {}\n", done.instance, done.ns, done.step, done.count, done.folder);
    text.resize(std::max(text.size(), kBytes), '\n');
    if (::pwrite(descriptor_, text.data(), text.size(), 0) < 0) return;  // at worst another worker restores, too
  }

  Done done;

 private:
  static constexpr std::size_t kBytes = PATH_MAX + 128;  // the longest folder name and four numbers
  int descriptor_;
  bool is_anothers_ = false;
};

}  // namespace

std::string restore(Worker& worker, const std::string& dir, const LogCallback& log) {
  const Found found = newest(dir, log);
  assign(worker, found);
  return found.folder;
}

namespace hooks {

Moment moment_of(const Worker& worker) { return {static_cast<std::int64_t>(shm::now_ns()), worker.global_step()}; }

Restoration restore_once(Worker& worker, const NanGuardOptions& options, const Moment& pulled) {
  Record record(options.dir);
  if (!record.is_ours()) return {Restored::kByAnother, ""};
  const std::uint64_t instance = JobView(worker.config().job).info().instance;
  Done last = record.done;
  if (const Done own = own_records().of(options.dir);
      own.instance == instance && (last.instance != instance || last.ns < own.ns))
    last = own;
  const bool is_of_job = last.instance == instance;
  const bool with_step = traits_of(worker.live().mode).steps_together();  // sync: step() applies assigned values
  if (is_of_job && (pulled.ns <= last.ns || (with_step && pulled.global_step <= last.step)))
    return {Restored::kByAnother, ""};
  const Found found = newest(options.dir, options.log);
  const bool is_again = is_of_job && last.folder == found.folder;
  if (is_again && last.count >= options.max_restores) return {Restored::kTooOften, found.folder};
  assign(worker, found);
  record.done = {.instance = instance,
                 .step = worker.global_step(),
                 .count = is_again ? last.count + 1 : 1,
                 .ns = static_cast<std::int64_t>(shm::now_ns()),
                 .folder = found.folder};
  record.write();
  own_records().put(options.dir, record.done);
  return {Restored::kHere, found.folder};
}

}  // namespace hooks
}  // namespace ps_shm
