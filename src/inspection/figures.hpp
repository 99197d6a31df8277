// What is shown of a job's records (ps_shm/job_view.hpp): a row for each figure, in the order in which they are shown.
// --json, tables of text, the metrics and the attributes of ps_shm.View's records come from these rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "ps_shm/job_view.hpp"

namespace ps_shm::inspection {

enum class Unit { kNone, kBytes, kAverage };

struct Shown {
  const char* metric = nullptr;  // its name for Prometheus; a counter if it ends in _total
  const char* title = nullptr;   // of its column in a table of text
  bool is_common = false;        // the column is also shown where there is little space
  Unit unit = Unit::kNone;
  bool is_attribute = true;  // of the record in Python
};

template <class Read>
struct Figure {
  const char* name;            // in JSON and in Python
  Read read;                   // a member of the record, or a function of it
  const char* help = nullptr;  // of the attribute in Python and of the metric
  Shown shown = {};
};
template <class Read>
Figure(const char*, Read) -> Figure<Read>;
template <class Read>
Figure(const char*, Read, const char*) -> Figure<Read>;
template <class Read>
Figure(const char*, Read, const char*, Shown) -> Figure<Read>;

// The figures of a record: a tuple of Figure.
template <class Record>
inline constexpr std::nullptr_t kFigures{};

template <class Record>
inline constexpr bool kHasFigures = !std::is_same_v<decltype(kFigures<Record>), const std::nullptr_t>;

// Calls `use` with each figure of a record.
template <class Record, class Use>
constexpr void for_each_figure(Use&& use) {
  std::apply([&](const auto&... figures) { (use(figures), ...); }, kFigures<Record>);
}

// For members whose -1 means: none.
inline std::optional<int> node_of(int node) { return node < 0 ? std::nullopt : std::optional(node); }

// A figure of staleness; none where nothing was measured.
template <auto kMember>
inline constexpr auto kMeasured = [](const StalenessSummary& staleness) {
  return staleness.count != 0 ? std::optional(staleness.*kMember) : std::nullopt;
};

template <>
inline constexpr auto kFigures<StalenessSummary> =
    std::tuple(Figure{"mean",
                      kMeasured<&StalenessSummary::mean>,
                      "The mean; None: nothing was measured.",
                      {.title = "STALENESS", .is_common = true, .unit = Unit::kAverage}},
               Figure{"p50", kMeasured<&StalenessSummary::p50>,
                      "The median: exact up to 63; above, rounded down to a power of two. None: as mean."},
               Figure{"p99",
                      kMeasured<&StalenessSummary::p99>,
                      "The 99th percentile, rounded as p50; None: as mean.",
                      {.title = "P99", .is_common = true}},
               Figure{"max", kMeasured<&StalenessSummary::max>, "The maximum; None: as mean.", {.title = "MAX"}});

template <>
inline constexpr auto kFigures<GpuUse> = std::tuple(
    Figure{
        "uuid", &GpuUse::uuid, "As nvidia-smi prints it, without 'GPU-' or 'MIG-'; empty: unknown.", {.title = "UUID"}},
    Figure{"pci_address", &GpuUse::pci_address, "Such as '0000:1b:00.0'; empty: unknown.", {.title = "GPU"}},
    Figure{"node",
           [](const GpuUse& gpu) { return node_of(gpu.node); },
           "The memory node next to it; None: unknown.",
           {.title = "NODE"}},
    Figure{"registered_bytes",
           &GpuUse::registered_bytes,
           "The bytes of shared memory registered with CUDA.",
           {.title = "REGISTERED", .unit = Unit::kBytes}},
    Figure{"pulls",
           &GpuUse::pulls,
           "'kernel', 'copy engine' (small chunks by a kernel), 'through host' or 'bfloat16'.",
           {.title = "PULLED BY"}},
    Figure{"pushes", &GpuUse::pushes, "'staged' or 'through host'.", {.title = "PUSHED"}},
    Figure{"native_adds", &GpuUse::native_adds, "Whether the GPU itself adds to in-place variables."});

template <>
inline constexpr auto kFigures<WorkerInfo> = std::tuple(
    Figure{"rank", &WorkerInfo::rank, "The worker's number in the job, from 0.", {.title = "RANK", .is_common = true}},
    Figure{
        "state",
        &WorkerInfo::state,
        "The state of the rank's last owner: 'alive', 'left', or 'dead' (it died without leaving). A stopped process "
        "is alive; inspect_shm, which reads /proc as well, shows it as 'stopped'.",
        {.title = "STATE", .is_common = true}},
    Figure{"pid", &WorkerInfo::pid, "The process of the rank's last owner.", {.title = "PID", .is_common = true}},
    Figure{"owners", &WorkerInfo::owners, "The number of processes that have owned the rank.", {.title = "OWNERS"}},
    Figure{"steps",
           &WorkerInfo::steps,
           "The number of steps, without those whose gradient was dropped.",
           {.metric = "ps_shm_worker_steps_total", .title = "STEPS", .is_common = true}},
    Figure{"pushes",
           &WorkerInfo::pushes,
           "The number of pushes, counted per variable.",
           {.metric = "ps_shm_worker_pushes_total", .title = "PUSHES"}},
    Figure{"pulls",
           &WorkerInfo::pulls,
           "The number of pulls, counted per variable.",
           {.metric = "ps_shm_worker_pulls_total", .title = "PULLS"}},
    Figure{"push_retries",
           &WorkerInfo::push_retries,
           "The number of repeated pushes of chunks.",
           {.metric = "ps_shm_worker_push_retries_total", .title = "PUSH RETRIES"}},
    Figure{"pull_retries",
           &WorkerInfo::pull_retries,
           "The number of repeated pulls of chunks.",
           {.metric = "ps_shm_worker_pull_retries_total", .title = "PULL RETRIES"}},
    Figure{"dropped",
           &WorkerInfo::dropped,
           "The number of gradients that came too late: in mode sync for their step, in the others for the age limit "
           "`stale`.",
           {.metric = "ps_shm_worker_dropped_gradients_total", .title = "DROPPED", .is_common = true}},
    Figure{"clock", &WorkerInfo::clock, "Mode ssp: the number of steps done since the mode began.", {.title = "CLOCK"}},
    Figure{"max_clock_skew",
           &WorkerInfo::max_clock_skew,
           "Mode ssp: the most steps by which the worker was ahead of the slowest when it began one.",
           {.title = "MAX CLOCK SKEW"}},
    Figure{"examples",
           &WorkerInfo::examples,
           "The number of examples processed in this job, as reported.",
           {.metric = "ps_shm_worker_examples_total"}},
    Figure{"training_loss",
           [](const WorkerInfo& worker) { return worker.examples != 0 ? std::optional(worker.loss) : std::nullopt; },
           "The last reported loss.",
           {.metric = "ps_shm_worker_training_loss", .title = "LOSS", .is_common = true, .is_attribute = false}},
    Figure{"seconds", &WorkerInfo::seconds,
           "The seconds from the moment that the owner joined until now, or until it left."},
    Figure{"staleness", &WorkerInfo::staleness, "The Staleness of its pushes."},
    Figure{"gpu", &WorkerInfo::gpu, "The GpuUse of the rank's last owner; None: it uses none."},
    Figure{"waiting_for",
           [](const WorkerInfo&
                  worker) { return worker.waiting_for.empty() ? std::nullopt : std::optional(worker.waiting_for); },
           "What the worker is blocked on, as text.",
           {.title = "WAITING FOR", .is_common = true, .is_attribute = false}});

template <>
inline constexpr auto kFigures<PartInfo> = std::tuple(
    Figure{"shard", &PartInfo::shard}, Figure{"node", [](const PartInfo& part) { return node_of(part.node); }},
    Figure{"first_row", &PartInfo::first_row}, Figure{"rows", &PartInfo::rows}, Figure{"bytes", &PartInfo::bytes},
    Figure{"slot_bytes", &PartInfo::slot_bytes}, Figure{"chunks", &PartInfo::chunks},
    Figure{"chunk_elements", &PartInfo::chunk_elements});

template <>
inline constexpr auto kFigures<VariableInfo> = std::tuple(
    Figure{"name", &VariableInfo::name, "The variable's name."},
    Figure{"dtype", &VariableInfo::dtype, "The type of the elements, such as 'float32'."},
    Figure{"shape", &VariableInfo::shape, "The extents of the axes; () for a scalar.", {.is_attribute = false}},
    Figure{"rule", &VariableInfo::rule, "The update rule, such as 'adam'."},
    Figure{"layout", &VariableInfo::layout, "'versioned', 'inplace' or 'single-writer'."},
    Figure{"lr_scale", &VariableInfo::lr_scale, "The factor of the job's learning rate."},
    Figure{"regularize", &VariableInfo::regularize, "The factor of the job's l2, l1 and weight_decay."},
    Figure{"element_count", &VariableInfo::element_count, "The number of elements."},
    Figure{
        "bytes", &VariableInfo::bytes, "The size of the values alone, in bytes.", {.metric = "ps_shm_variable_bytes"}},
    Figure{"slots", &VariableInfo::slots, "The names of the arrays of its optimizer state."},
    Figure{"parts", &VariableInfo::parts, "Where its parts lie.", {.is_attribute = false}},
    Figure{
        "updates",
        &VariableInfo::updates,
        "The average number of changes of a chunk (in-place: of a block): pushes, adds and assigns; in mode sync the "
        "steps that changed it.",
        {.metric = "ps_shm_variable_updates_total"}},
    Figure{"initialised", &VariableInfo::initialised, "Whether it has its initial values."});

// Reports of the programs have these names, too, and are read back by them.
template <>
inline constexpr auto kFigures<TableStatistics> = std::tuple(
    Figure{"rows",
           &TableStatistics::rows,
           "The rows that there are now, roughly: a killed worker may leave one uncounted.",
           {.metric = "ps_shm_table_rows"}},
    Figure{"max_rows",
           &TableStatistics::max_rows,
           "The most rows that there may be.",
           {.metric = "ps_shm_table_max_rows"}},
    Figure{"rows_with_room",
           &TableStatistics::rows_with_room,
           "Roughly the rows that there may be with the memory that /dev/shm has now: max_rows, or fewer.",
           {.metric = "ps_shm_table_rows_with_room"}},
    Figure{"bytes",
           &TableStatistics::bytes,
           "The memory of /dev/shm that the table takes, in bytes.",
           {.metric = "ps_shm_table_bytes"}},
    Figure{"made", &TableStatistics::made, "Rows made.", {.metric = "ps_shm_table_rows_made_total"}},
    Figure{"evicted",
           &TableStatistics::evicted,
           "Rows evicted, for whatever reason.",
           {.metric = "ps_shm_table_rows_evicted_total"}},
    Figure{"expired",
           &TableStatistics::expired,
           "Rows evicted because they were too old.",
           {.metric = "ps_shm_table_rows_expired_total"}},
    Figure{"spared",
           &TableStatistics::spared,
           "Rows not evicted, because they were being pushed.",
           {.metric = "ps_shm_table_rows_spared_total"}},
    Figure{"rescued",
           &TableStatistics::rescued,
           "Rows that were pushed while they were being evicted, and so kept.",
           {.metric = "ps_shm_table_rows_rescued_total"}},
    Figure{"unadmitted",
           &TableStatistics::unadmitted,
           "Pushes of keys that had no row yet.",
           {.metric = "ps_shm_table_unadmitted_total"}},
    Figure{"refused",
           &TableStatistics::refused,
           "Pushes of keys for which there was no room.",
           {.metric = "ps_shm_table_refused_total"}},
    Figure{"hits", &TableStatistics::hits, "Pulled keys with a row.", {.metric = "ps_shm_table_hits_total"}},
    Figure{"misses", &TableStatistics::misses, "Pulled keys without a row.", {.metric = "ps_shm_table_misses_total"}},
    Figure{"restarts",
           &TableStatistics::restarts,
           "Searches that were restarted because other workers had changed the list of rows.",
           {.metric = "ps_shm_table_restarts_total"}});

// Without those of its statistics.
template <>
inline constexpr auto kFigures<TableInfo> = std::tuple(
    Figure{"name", [](const TableInfo& table) { return table.spec.name; }, "The table's name."},
    Figure{"dtype", [](const TableInfo& table) { return table.spec.dtype; },
           "The type of the elements: 'float32' or 'bfloat16'."},
    Figure{"row_size", [](const TableInfo& table) { return table.spec.row_size; }, "The number of elements in a row."},
    Figure{"row_bytes", &TableInfo::row_bytes, "The size of a row in bytes, with its key and the optimizer's state."},
    Figure{"rule", [](const TableInfo& table) { return table.spec.rule.value_or(UpdateRule::kSgd); },
           "The update rule, such as 'adam'."},
    Figure{"evict", [](const TableInfo& table) { return table.spec.evict; }, "'lfu', 'lru', 'age' or 'none'."},
    Figure{"ttl", [](const TableInfo& table) { return table.spec.ttl; },
           "The seconds after its last push at which a row may be evicted; 0: never for its age."},
    Figure{"admit_after", [](const TableInfo& table) { return table.spec.admit_after; },
           "The push of a key with which it gets a row."},
    Figure{"parts", &TableInfo::parts, "The number of segments that it is divided over."},
    Figure{"buckets", &TableInfo::buckets, "The number of buckets of its index that are in use."},
    Figure{"load", [](const TableInfo& table) { return double(table.statistics.rows) / double(table.buckets); },
           "Rows per bucket."});

template <>
inline constexpr auto kFigures<TaskInfo> =
    std::tuple(Figure{"served", &TaskInfo::is_alive}, Figure{"pid", &TaskInfo::pid},
               Figure{"node", [](const TaskInfo& task) { return node_of(task.node); }},
               Figure{"huge_pages", &TaskInfo::huge_pages}, Figure{"variables", &TaskInfo::variables},
               Figure{"used_bytes", &TaskInfo::used_bytes}, Figure{"file_bytes", &TaskInfo::file_bytes},
               Figure{"reserved_bytes", &TaskInfo::reserved_bytes});

// The title is that of `watch`, which shows the larger ones.
template <>
inline constexpr auto kFigures<ByteCount> =
    std::tuple(Figure{"values", &ByteCount::values, nullptr, {.title = "values"}},
               Figure{"optimizer_slots", &ByteCount::slots, nullptr, {.title = "slots"}},
               Figure{"accumulators", &ByteCount::accumulators},
               Figure{"reserves", &ByteCount::reserves, nullptr, {.title = "reserves"}},
               Figure{"gradients", &ByteCount::gradients, nullptr, {.title = "gradients"}},
               Figure{"shared_data", &ByteCount::shared_data, nullptr, {.title = "data"}},
               Figure{"tables", &ByteCount::tables, nullptr, {.title = "tables"}},
               Figure{"bridge", &ByteCount::bridge, nullptr, {.title = "bridge"}},
               Figure{"free_buffers", &ByteCount::free_buffers, nullptr, {.title = "free buffers"}},
               Figure{"chunk_words", &ByteCount::chunk_words}, Figure{"padding", &ByteCount::padding},
               Figure{"control", &ByteCount::control});

}  // namespace ps_shm::inspection
