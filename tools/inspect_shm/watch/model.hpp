// The data shown by inspect_shm watch: facts of a job at one moment, and rates between two moments.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inspect_shm/bridge.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/types.hpp"

namespace ps_shm::watch {

enum class Phase { kComputing, kPulling, kPushing, kWaiting, kStopped, kDead, kLeft };
inline constexpr std::size_t kLivePhases = 4;  // the phases of a running worker
const char* to_string(Phase phase) noexcept;

struct WorkerRow {
  std::uint32_t rank = 0, pid = 0;
  std::string device;  // "cpu", "gpu 0"; empty: /proc does not show the process here
  Phase phase = Phase::kComputing;
  double phase_seconds = 0;                  // time spent waiting or stopped
  bool is_since_before = false;              // the phase began before it was first observed: this is a lower bound
  std::string waiting_for;                   // whom, or what
  std::array<double, kLivePhases> shares{};  // fraction of recent polls in each phase
  double silent_seconds = 0;                 // without any progress
  std::uint64_t steps = 0, retries = 0, dropped = 0;
  double steps_per_second = 0, retries_per_second = 0;
  StalenessSummary staleness;
  std::optional<double> loss;
};

// Facts from a sample of a variable's values.
struct ValueFacts {
  double norm = 0, min = 0, max = 0;
  std::uint64_t nans = 0, infs = 0;
  double share = 0;                        // fraction of the elements that were read
  std::optional<double> update_to_weight;  // norm of one update of a chunk, divided by the chunk's norm
};

struct VariableRow {
  std::size_t number = 0;  // in the order of declaration
  std::string name, dtype, shape, layout, shards, nodes;
  std::uint64_t bytes = 0;
  std::uint64_t version = 0;  // updates per chunk, on average
  double updates_per_second = 0;
  bool is_initialised = false;
  bool has_rows = false;
  std::optional<ValueFacts> values;  // for variables on the page
};

// A range of neighbouring chunks of the chosen variable.
struct PieceRow {
  std::uint64_t piece = 0;
  std::uint64_t first_row = 0, rows = 0;  // for variables with rows
  double updates_per_second = 0, retries_per_second = 0;
};

// A row of a table that changed while it was observed.
struct HotRow {
  std::uint64_t row = 0;
  double touches_per_second = 0;
  bool is_at_least = false;  // it changed between any two polls: a lower bound
  std::string values;
};

struct TableFacts {  // of a table by key
  std::string name;
  std::uint64_t rows = 0, max_rows = 0, bytes = 0;
  double made_per_second = 0, evicted_per_second = 0;
  std::optional<double> hit_rate;  // of the pulls in the last seconds
};

struct Model {
  std::string job, state;  // "live", "orphaned", "dead", "removed"
  bool is_finished = false;
  Mode mode = Mode::kAsync;
  LiveSettings live;
  std::uint64_t global_step = 0, target_steps = 0;
  std::uint32_t wanted_workers = 0;
  double steps_per_second = 0;
  double age_seconds = 0;
  std::optional<double> seconds_left;
  std::optional<double> loss;
  std::vector<double> losses;  // since the view began, evenly spaced
  std::vector<double> speeds;  // the same, steps a second
  double seen_seconds = 0;     // the time that these cover
  std::vector<StalenessCount> staleness;
  StalenessSummary staleness_summary;
  ByteCount bytes;
  std::uint64_t shm_bytes = 0, shm_free_bytes = 0;
  std::vector<TaskInfo> tasks;
  std::vector<WorkerRow> workers;
  std::vector<std::string> alerts;  // conditions that need attention, in sentences
  std::vector<TableFacts> tables;
  std::optional<inspect::BridgeInfo> bridge;
  std::vector<VariableRow> variables;
  std::size_t chosen = 0;            // index into `variables`, for the next two
  std::vector<PieceRow> pieces;      // those that were read, in order
  std::uint64_t piece_count = 0;     // of the chosen variable
  std::vector<HotRow> hot_rows;      // hottest first
  double row_pushes_per_second = 0;  // pushes of rows, counted by block
  std::vector<Event> events;         // oldest first
};

enum class Page { kOverview, kWorkers, kVariables, kChunks, kRows, kEvents };
inline constexpr std::size_t kPages = 6;
const char* to_string(Page page) noexcept;

struct PageState {
  std::size_t selected = 0, first = 0;  // positions in what the page lists
  std::size_t sorted_by = 0;            // of the page's columns
  bool is_reversed = false;
};

// The user's choices at the terminal.
struct ViewState {
  Page page = Page::kOverview;
  PageState pages[kPages] = {};
  std::string filter;
  std::string prompt;   // shown instead of the keys: a question, and the input so far
  std::string message;  // the outcome of the last action
  bool is_paused = false;
  bool has_help = false;  // shown instead of the page
  bool has_utf8 = true;

  PageState& here() { return pages[static_cast<std::size_t>(page)]; }
  const PageState& here() const { return pages[static_cast<std::size_t>(page)]; }
};

}  // namespace ps_shm::watch
