// How a worker opens a table by key: what is refused, and the rows that a checkpoint has of it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "config/eviction.hpp"
#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/table/table_segment.hpp"
#include "update/elements.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {
namespace {

using shm::TableCounter;

constexpr std::uint64_t kMinRows = 64;  // of a part

[[noreturn]] void refuse(const TableSpec& spec, const std::string& why) {
  throw Error(fmt::format("table '{}': {}", spec.name, why));
}

void check(const TableSpec& spec, const JobConfig& config, UpdateRule rule) {
  shm::check_spec({.name = spec.name, .rule = rule, .regularize = spec.regularize, .lr_scale = spec.lr_scale});
  if (update::find_rule(static_cast<std::uint32_t>(rule)) == nullptr)
    refuse(spec, fmt::format("there is no update rule {}", static_cast<std::uint32_t>(rule)));
  const update::Traits& traits = update::traits_of(rule);
  if (traits_of(config.mode).needs_versioned)
    refuse(spec, "rows are updated in place, and sync mode needs versioned chunks; use mode async or ssp");
  if (config.optimizer.ema > 0 && !traits.is_sum) refuse(spec, "its rows have no moving average; use no ema");
  if (traits.reads_by_rate && !config.optimizer.schedule.is_constant())
    refuse(spec, fmt::format("{} computes its values from the learning rate; use `lr-schedule` constant", traits.name));
  if (traits.reads_by_rate && spec.lr_scale == 0)
    refuse(spec, fmt::format("the factor of its learning rate must be greater than 0, because {} divides by the rate",
                             traits.name));
  if (!update::takes_gradients(spec.dtype))
    refuse(spec, fmt::format("its dtype is {}, and rows are of float32 or bfloat16", to_string(spec.dtype)));
  if (spec.dtype == DType::kFloat32 && update::slots_per_element(rule, false, true) == 3 && !shm::kHas16ByteExchange)
    refuse(spec,
           fmt::format("{} needs a compare-exchange of 16 bytes, which this build lacks; use bfloat16", traits.name));
  if (config.optimizer.lr_staleness && !traits.is_sum)
    refuse(spec, "lr-staleness needs the staleness of every row, which is not measured; start the job without it");
  if (spec.row_size == 0 || spec.row_size > shm::kMaxTableRowSize)
    refuse(spec, fmt::format("a row has 1 to {} elements, not {}", shm::kMaxTableRowSize, spec.row_size));
  const std::uint64_t parts = shm::parts_of_tables(config), least = kMinRows * parts, most = shm::kMaxTableRows * parts;
  if (spec.max_rows < least || spec.max_rows > most)
    refuse(spec, fmt::format("max_rows must be from {} to {}{}, not {}", least, most,
                             parts == 1 ? "" : fmt::format(" for {} parts", parts), spec.max_rows));
  constexpr double kMaxTtl = 30.0 * 24 * 3600;
  if (!(spec.ttl >= 0) || spec.ttl > kMaxTtl)
    refuse(spec, fmt::format("ttl must be from 0 to {} (30 days), not {}", kMaxTtl, spec.ttl));
  if (spec.admit_after == 0 || spec.admit_after > 255)
    refuse(spec, fmt::format("admit_after must be from 1 to 255, not {}", spec.admit_after));
  if (!(spec.initial_range >= 0) || !std::isfinite(spec.initial_range))
    refuse(spec, fmt::format("initial_range must be at least 0, not {}", spec.initial_range));
  if (find_eviction(static_cast<std::uint32_t>(spec.evict)) == nullptr)
    refuse(spec, "there is no such way to evict rows");
}

// The loader's byte (data.D1), while it exists: at most one process of the job has it. Throws JobFinished, Interrupted.
class LoaderTurn {
 public:
  explicit LoaderTurn(WorkerCore& core) : locks_(core.job.locks()) {
    constexpr std::uint64_t kPauseNs = 1'000'000;
    Wait wait(core.options, std::nullopt, 1.0);
    const WaitMark mark(core.entry, shm::WaitingFor::kData, 0);
    while (!locks_.try_take(shm::kLoaderByte)) {
      if (core.job.is_over()) throw JobFinished(fmt::format("job {} was ended", core.job.job()));
      static_cast<void>(
          wait.slice([&] { return fmt::format("worker {}: waiting for a table to be restored", core.rank); }));
      shm::sleep_ns(kPauseNs);
    }
  }
  ~LoaderTurn() { locks_.release(shm::kLoaderByte); }
  LoaderTurn(const LoaderTurn&) = delete;
  LoaderTurn& operator=(const LoaderTurn&) = delete;

 private:
  shm::TaskLocks locks_;
};

}  // namespace

TableState::TableState(WorkerCore& worker, const std::unique_ptr<StepMode>& steps, const TableSpec& given,
                       const std::function<const Checkpoint&()>& begun_with)
    : core(worker), mode(steps), spec(given), sums(worker.job.key_hash(), given.row_size, RowSums::kUnbounded) {
  const UpdateRule rule = spec.rule.value_or(core.config.optimizer.rule);
  check(spec, core.config, rule);
  settings = update::settings_of(core.config.optimizer, rule, spec.regularize, DType::kFloat32, spec.lr_scale);
  rounding = update::rounding_seed(config::seed_of(core.config), spec.name);
  const shm::TableForm form{spec, rule, static_cast<std::uint32_t>(update::slots_per_element(rule, false, true)),
                            update::traits_of(rule).has_row_state()};
  const auto owner_of = [&worker](std::uint32_t lane) -> std::uint32_t {
    const std::uint32_t rank = lane / worker.config.threads;
    if (rank != worker.rank && !worker.job.is_alive(rank)) return 0;  // locks.L1: never queries its own byte
    return static_cast<std::uint32_t>(worker.job.worker(rank).holders.load_acquire());  // (ranks.J4) behind that
  };
  if (core.config.restore.empty() || shm::has_table(core.job, spec.name)) {
    parts = shm::open_table(core.job, form, owner_of);
  } else {
    const LoaderTurn turn(core);  // so that no two workers fill the same table
    parts = shm::open_table(core.job, form, owner_of, [&](shm::TablePart& part) { restore(part, begun_with()); });
  }
  version_tag = shm::mixed(core.job.instance() + parts.front()->segment().header().number) & 0xffffffff;
  for (const auto& part : parts)
    for (std::vector<shm::TableLane>& own = lanes.emplace_back(); own.size() < core.threads.count();)
      own.push_back(part->begin(core.job.lane(core.rank, static_cast<std::uint32_t>(own.size()))));
}

void TableState::restore(shm::TablePart& part, const Checkpoint& from) {
  const std::vector<StoredTable>& all = from.tables();
  const auto log = [&](const std::string& line) {
    Wait(core.options, std::nullopt, 1).log(fmt::format("worker {}: {}", core.rank, line));
  };
  const auto stored =
      std::find_if(all.begin(), all.end(), [&](const StoredTable& one) { return one.name == spec.name; });
  if (stored == all.end()) {
    if (part.record().part == 0) log(fmt::format("the checkpoint has no table '{}': it begins empty", spec.name));
    return;
  }
  const shm::RowForm form(part.record());
  const std::string rule = update::traits_of(settings.rule).name;
  if (stored->row_size != spec.row_size || stored->rule != rule || stored->slots != form.slots())
    throw Error(
        fmt::format("checkpoint {}: table '{}' has rows of {} by rule {} there, and of {} by rule {} here; declare "
                    "it as it was, or choose another checkpoint",
                    from.folder(), spec.name, stored->row_size, stored->rule, spec.row_size, rule),
        ErrorCode::kIncompatible);
  constexpr std::uint64_t kBlock = 4096;  // rows that are read at once
  const shm::TableShm& record = part.record();
  shm::TableLane lane = part.begin(core.job.lane(core.rank, 0));
  std::vector<std::uint64_t> keys(kBlock), own;
  std::vector<float> values(kBlock * form.width()), state(kBlock * form.state_size()), raw(form.raw_size());
  std::vector<std::size_t> places;
  std::uint64_t missed = 0, restored = 0;
  for (std::uint64_t first = 0; first < stored->rows; first += kBlock) {
    const std::uint64_t count = std::min(kBlock, stored->rows - first);
    from.read_rows(spec.name, first, std::span(keys).first(count), std::span(values).first(count * form.width()),
                   std::span(state).first(count * form.state_size()));
    own.clear(), places.clear();
    for (std::uint64_t i = 0; i < count; ++i)
      if (shm::part_of(part.hash(), keys[i], record.parts) == record.part) own.push_back(keys[i]), places.push_back(i);
    for (std::size_t at = 0; at < own.size(); at += shm::kPins) {
      const std::size_t wanted = std::min<std::size_t>(shm::kPins, own.size() - at);
      // What is full stays as it is, instead of evicting rows that were restored just before.
      const std::size_t fitting = std::min<std::uint64_t>(wanted, record.max_rows - restored);
      missed += wanted - fitting;
      if (fitting == 0) continue;
      std::array<float*, shm::kPins> rows;
      const auto batch = part.ask(std::span<const std::uint64_t>(own).subspan(at, fitting));
      part.pin(lane, batch, *this, true, rows.data());
      for (std::size_t i = 0; i < fitting; ++i) {
        if (rows[i] == nullptr) continue;  // counted as refused
        ++restored;
        const std::size_t place = places[at + i];
        form.compose(settings, core.live.settings.lr, values.data() + place * form.width(),
                     state.data() + place * form.state_size(), raw.data());
        shm::racing_copy(rows[i], raw.data(), raw.size());
      }
    }
  }
  part.unpin(lane);
  missed += part.counted(TableCounter::kRefused) + part.counted(TableCounter::kEvicted);  // /dev/shm is full
  if (missed != 0)
    log(fmt::format("table '{}': {} of {} rows of the checkpoint do not fit (part {} of {})", spec.name, missed,
                    stored->rows, record.part + 1, record.parts));
}

}  // namespace ps_shm
