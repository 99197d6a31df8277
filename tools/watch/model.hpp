// What the pages of inspect_shm watch show: plain facts of a job at one moment, and rates between two of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps/job_view.hpp"
#include "ps/types.hpp"

namespace ps::watch {

enum class Phase { kComputing, kPulling, kPushing, kWaiting, kStopped, kDead, kLeft };
inline constexpr std::size_t kLivePhases = 4;  // those that a running worker goes through
const char* to_string(Phase phase) noexcept;

struct WorkerRow {
  std::uint32_t rank = 0, pid = 0;
  std::string device;  // "cpu", "gpu 0"; empty: /proc does not show the process here
  Phase phase = Phase::kComputing;
  double phase_seconds = 0;                  // waiting, stopped: for how long
  bool is_since_before = false;              // that began before anybody looked: it is at least so long
  std::string waiting_for;                   // whom, or what
  std::array<double, kLivePhases> shares{};  // of the last looks, in each phase
  double silent_seconds = 0;                 // without any progress
  std::uint64_t steps = 0, retries = 0, dropped = 0;
  double steps_per_second = 0, retries_per_second = 0;
  std::uint64_t staleness_p50 = 0, staleness_max = 0;
  std::optional<double> loss;
};

// What a sample of a variable's values says.
struct ValueFacts {
  double norm = 0, min = 0, max = 0;
  std::uint64_t nans = 0, infs = 0;
  double share = 0;                        // of the elements, that were looked at
  std::optional<double> update_to_weight;  // norm of one update of a piece, divided by the piece's norm
};

struct VariableRow {
  std::size_t number = 0;  // in the order of declaration
  std::string name, dtype, shape, layout, shards, nodes;
  std::uint64_t bytes = 0;
  std::uint64_t version = 0;  // updates of a piece, on average
  double updates_per_second = 0;
  bool is_initialised = false;
  bool has_rows = false;
  std::optional<ValueFacts> values;  // of those that are on the page
};

// Some neighbouring pieces of the chosen variable.
struct PieceRow {
  std::uint64_t piece = 0;
  std::uint64_t first_row = 0, rows = 0;  // where the variable has rows
  double updates_per_second = 0, retries_per_second = 0;
};

// A row of a table that has changed while it was looked at.
struct HotRow {
  std::uint64_t row = 0;
  double touches_per_second = 0;
  bool is_at_least = false;  // it changed between any two looks
  std::string values;
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
  double seen_seconds = 0;     // how long these are
  std::vector<StalenessCount> staleness;
  StalenessSummary staleness_summary;
  ByteCount bytes;
  std::uint64_t shm_bytes = 0, shm_free_bytes = 0;
  std::vector<TaskInfo> tasks;
  std::vector<WorkerRow> workers;
  std::vector<std::string> alerts;  // what somebody should look at, in sentences
  std::vector<VariableRow> variables;
  std::size_t chosen = 0;            // of `variables`, that the next two are about
  std::vector<PieceRow> pieces;      // those that were looked at, in order
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

// What the person at the terminal has chosen.
struct ViewState {
  Page page = Page::kOverview;
  PageState pages[kPages] = {};
  std::string filter;
  std::string prompt;   // instead of the keys: what is asked, and what has been typed
  std::string message;  // the outcome of the last action
  bool is_paused = false;
  bool has_utf8 = true;

  PageState& here() { return pages[static_cast<std::size_t>(page)]; }
  const PageState& here() const { return pages[static_cast<std::size_t>(page)]; }
};

}  // namespace ps::watch
