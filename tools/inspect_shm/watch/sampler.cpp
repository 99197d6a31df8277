#include "inspect_shm/watch/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "common/value_statistics.hpp"
#include "inspect_shm/bridge.hpp"
#include "inspect_shm/watch/text.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::watch {
namespace {

// How much of a large job is read per sample, which limits the cost of watching (docs/inspector.md).
constexpr std::uint64_t kElements = 1 << 17;  // values
constexpr std::uint64_t kVersions = 8192;     // chunk words, over all variables
constexpr std::uint64_t kPiecesOfOne = 4096;  // chunks or blocks of the chosen variable
constexpr std::size_t kHotBlocks = 4;         // blocks whose rows are compared
constexpr std::size_t kHotRows = 200;

std::string joined(const auto& numbers, const char* mark) {
  const bool are_same = std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
  return are_same && !numbers.empty() ? fmt::to_string(numbers.front()) : fmt::format("{}", fmt::join(numbers, mark));
}

double norm_of(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += double(value) * double(value);
  return std::sqrt(squares);
}

double distance(std::span<const float> a, std::span<const float> b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
  return std::sqrt(squares);
}

}  // namespace

Sampler::Sampler(const std::string& job) : view_(job), probe_(job), began_(now()) { model_.job = job; }

double Sampler::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Sampler::look(const Wanted& wanted) {
  const double seconds = now();
  for (const RankLook& rank : probe_.ranks()) phases_[rank.rank].look(seconds, rank);
  if (wanted.page == Page::kRows) look_at_rows(wanted.chosen);
}

const Model& Sampler::sample(const Wanted& wanted) {
  ++turn_;
  probe_.require_whole();
  if (info_age_-- <= 0) read_job();
  read_state();
  read_workers();
  read_tables();
  if (wanted.page == Page::kVariables || wanted.page == Page::kChunks || wanted.page == Page::kRows)
    read_variables(wanted);
  if (wanted.page == Page::kOverview || wanted.page == Page::kEvents) model_.events = view_.events();
  find_alerts();
  return model_;
}

// Figures that change rarely, or take long to determine.
void Sampler::read_job() {
  const JobInfo info = view_.info();
  constexpr int kSoon = 1, kLate = 8;  // in samples
  constexpr std::uint64_t kMany = 1000;
  model_.tasks = info.tasks;
  model_.bytes = info.bytes;
  model_.live = info.live;
  model_.mode = info.live.mode;
  model_.is_finished = info.finished;
  model_.target_steps = info.config.steps;
  model_.wanted_workers = info.config.workers;
  model_.age_seconds =
      std::max(0.0, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
                        double(info.created_unix_ns) * 1e-9);
  model_.bridge = inspect::bridge_of(model_.job, info.instance);
  if (model_.bridge && !model_.bridge->error.empty()) model_.bridge.reset();
  model_.shm_bytes = shm::shm_capacity_bytes(), model_.shm_free_bytes = shm::shm_free_bytes();
  std::uint64_t variables = 0;
  for (const TaskInfo& task : info.tasks) variables += task.variables;
  info_age_ = variables < kMany ? kSoon : kLate;
  model_.state = info.served ? "live" : "dead";  // read_workers() knows the workers
}

void Sampler::read_state() {
  const double seconds = now();
  model_.global_step = view_.global_step();
  steps_.add(seconds, {model_.global_step});
  model_.steps_per_second = steps_.per_second(0);
  model_.seconds_left.reset();
  if (model_.target_steps > model_.global_step && model_.steps_per_second > 0)
    model_.seconds_left = double(model_.target_steps - model_.global_step) / model_.steps_per_second;
  model_.staleness = view_.staleness_counts();
  model_.staleness_summary = view_.staleness();
}

void Sampler::read_tables() {
  const double seconds = now();
  model_.tables.clear();
  for (const TableInfo& table : view_.tables()) {
    const TableStatistics& counts = table.statistics;
    Rates& rates = table_rates_[table.spec.name];
    rates.add(seconds, {counts.made, counts.evicted, counts.hits, counts.misses});
    TableFacts facts{table.spec.name,     counts.rows, counts.max_rows, counts.bytes, rates.per_second(0),
                     rates.per_second(1), {}};
    const double pulled = rates.per_second(2) + rates.per_second(3);
    if (pulled > 0) facts.hit_rate = rates.per_second(2) / pulled;
    model_.tables.push_back(std::move(facts));
  }
}

void Sampler::read_workers() {
  const double seconds = now();
  const std::vector<RankLook> looks = probe_.ranks();
  const std::vector<WorkerInfo> infos = view_.workers();
  model_.workers.clear();
  double losses = 0, living_losses = 0;
  std::uint32_t count = 0, living_count = 0, living = 0;
  for (const WorkerInfo& info : infos) {
    const auto look =
        std::find_if(looks.begin(), looks.end(), [&](const RankLook& each) { return each.rank == info.rank; });
    if (look == looks.end()) continue;
    WorkerRow& row = model_.workers.emplace_back();
    row.rank = info.rank, row.pid = info.pid;
    row.steps = info.steps, row.retries = info.push_retries + info.pull_retries, row.dropped = info.dropped;
    row.staleness = info.staleness;
    if (info.examples != 0) row.loss = info.loss;
    Rates& rates = worker_rates_[info.rank];
    rates.add(seconds, {row.steps, row.retries});
    row.steps_per_second = rates.per_second(0), row.retries_per_second = rates.per_second(1);
    PhaseWatch& phase = phases_[info.rank];
    phase.look(seconds, *look);
    row.phase = phase.phase(), row.phase_seconds = phase.phase_seconds(seconds);
    row.is_since_before = phase.is_since_before();
    row.silent_seconds = phase.silent_seconds(seconds);
    row.shares = phase.take_shares();
    if (row.phase == Phase::kWaiting) row.waiting_for = info.waiting_for;
    if (look->state == WorkerState::kAlive) {
      ++living;
      const ProcessFacts facts = processes_.facts_of(probe_, *look);
      row.device = facts.device;
      if (facts.is_stopped) {
        const auto since = stopped_since_.emplace(info.rank, seconds).first->second;
        row.phase = Phase::kStopped, row.phase_seconds = seconds - since;
      } else {
        stopped_since_.erase(info.rank);
      }
    }
    if (!row.loss) continue;
    losses += *row.loss, ++count;
    if (look->state == WorkerState::kAlive) living_losses += *row.loss, ++living_count;
  }
  model_.loss.reset();
  if (living_count != 0)
    model_.loss = living_losses / living_count;
  else if (count != 0)
    model_.loss = losses / count;
  if (model_.state != "live") model_.state = living != 0 ? "orphaned" : "dead";
  if (probe_.is_gone()) model_.state = "removed";
  if (living != 0) {
    losses_.add(model_.loss.value_or(NAN));
    if (turn_ > 1) speeds_.add(model_.steps_per_second);
    model_.losses = losses_.values(), model_.speeds = speeds_.values();
    model_.seen_seconds = seconds - began_;
  }
}

void Sampler::read_variables(const Wanted& wanted) {
  const std::vector<VariableFacts>& all = probe_.variables();
  if (model_.variables.size() != all.size()) {
    model_.variables.clear();
    for (const VariableFacts& facts : all) {
      VariableRow& row = model_.variables.emplace_back();
      row.number = model_.variables.size() - 1;
      row.name = facts.name, row.dtype = ps_shm::to_string(facts.dtype), row.layout = ps_shm::to_string(facts.layout);
      row.shape = fmt::format("[{}]", fmt::join(facts.shape, ","));
      row.shards = joined(facts.shards, ",");
      row.nodes = facts.nodes.front() < 0 ? "-" : joined(facts.nodes, ",");
      row.bytes = facts.bytes, row.has_rows = facts.rows != 0;
    }
  }
  if (all.empty()) return;
  const std::uint64_t each = std::clamp<std::uint64_t>(kVersions / all.size(), 1, 64);
  std::vector<std::uint64_t> counts, looked;
  for (std::size_t i = 0; i < all.size(); ++i) {
    model_.variables[i].is_initialised = all[i].is_initialised;
    const std::uint64_t pieces = std::min(each, all[i].pieces);
    std::uint64_t sum = 0;
    for (std::uint64_t k = 0; k < pieces && all[i].is_initialised; ++k)
      sum += probe_.updates(i, k * all[i].pieces / pieces);
    counts.push_back(sum), looked.push_back(pieces);
  }
  variables_.add(now(), counts);
  for (std::size_t i = 0; i < all.size(); ++i) {
    model_.variables[i].version = counts[i] / looked[i];
    model_.variables[i].updates_per_second = variables_.per_second(i) / double(looked[i]);
    model_.variables[i].values.reset();
  }
  model_.chosen = std::min(wanted.chosen, all.size() - 1);
  if (wanted.page != Page::kVariables) return read_pieces(model_.chosen);
  std::uint64_t left = kElements;
  for (std::size_t k = 0; k < wanted.variables.size() && left != 0; ++k) {
    const std::size_t number = wanted.variables[(k + turn_) % wanted.variables.size()];
    if (number >= all.size() || !all[number].is_initialised) continue;
    left -= std::min(left, read_values(number, std::max(left / (wanted.variables.size() - k), std::uint64_t{1})));
  }
  for (const std::size_t number : wanted.variables)
    if (const auto found = known_.find(number); found != known_.end() && number < all.size())
      model_.variables[number].values = found->second.facts;
}

// Reads about so many elements, at least one chunk; returns how many it has read.
std::uint64_t Sampler::read_values(std::size_t number, std::uint64_t elements) {
  const VariableFacts& facts = probe_.variables()[number];
  const std::uint64_t size = facts.elements * bytes_of(facts.array_dtype);
  const std::uint64_t floats = (size + 3) / 4, of_piece = std::max<std::uint64_t>(floats / facts.pieces, 1);
  const std::uint64_t pieces = std::clamp<std::uint64_t>(elements / of_piece, 1, facts.pieces);
  std::vector<float> values, piece;
  for (std::uint64_t k = 0; k < pieces; ++k) {
    // Different ones of a large variable each time.
    if (!probe_.read(number, (k * facts.pieces / pieces + (pieces == facts.pieces ? 0 : turn_)) % facts.pieces, piece))
      continue;
    values.insert(values.end(), piece.begin(), piece.end());
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  const inspect::ValueStatistics found =
      inspect::statistics_of(facts.array_dtype, bytes.first(std::min<std::size_t>(bytes.size(), size)), facts.elements);
  ValueFacts& known = known_[number].facts;
  known.norm = found.norm, known.min = inspect::as_double(found.min), known.max = inspect::as_double(found.max);
  known.nans = found.nans, known.infs = found.infinites;
  known.share = found.elements == 0 ? 0 : double(found.sampled) / double(found.elements);
  if (facts.array_dtype == DType::kFloat32) read_ratio(number);
  return values.size();
}

// How far an update moves one chunk of the variable. Two polls within a fraction of a millisecond mostly see one
// update; if updates are rare, the polls of two samples do.
void Sampler::read_ratio(std::size_t number) {
  constexpr double kPatience = 100e-6;
  Known& known = known_[number];
  const std::uint64_t piece = probe_.variables()[number].pieces / 2;
  std::vector<float> values;
  const double end = now() + kPatience;
  do {
    const std::uint64_t updates = probe_.updates(number, piece);
    if (!probe_.read(number, piece, values) || probe_.updates(number, piece) != updates) continue;
    if (values.size() == known.piece.size() && updates > known.updates) {
      const double norm = norm_of(values);
      if (norm > 0)
        known.facts.update_to_weight = distance(values, known.piece) / double(updates - known.updates) / norm;
    }
    const bool has_moved = known.piece.size() == values.size() && updates == known.updates + 1;
    known.updates = updates, known.piece = values;
    if (has_moved) return;
  } while (now() < end);
}

void Sampler::read_pieces(std::size_t chosen) {
  const VariableFacts& facts = probe_.variables()[chosen];
  if (pieces_of_ != chosen) pieces_.clear(), lost_.clear(), row_looks_.clear(), pieces_of_ = chosen;
  model_.piece_count = facts.pieces;
  model_.pieces.clear(), model_.hot_rows.clear(), model_.row_pushes_per_second = 0;
  if (!facts.is_initialised) return;
  const std::uint64_t count = std::min(facts.pieces, kPiecesOfOne);
  std::vector<std::uint64_t> updates, lost;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::uint64_t piece = k * facts.pieces / count;
    updates.push_back(probe_.updates(chosen, piece));
    lost.push_back(probe_.retries(chosen, piece));
  }
  pieces_.add(now(), std::move(updates)), lost_.add(now(), std::move(lost));
  for (std::uint64_t k = 0; k < count; ++k) {
    PieceRow& row = model_.pieces.emplace_back();
    row.piece = k * facts.pieces / count;
    row.updates_per_second = pieces_.per_second(k), row.retries_per_second = lost_.per_second(k);
    model_.row_pushes_per_second += row.updates_per_second;
  }
  if (facts.rows != 0) read_hot_rows(chosen);
}

void Sampler::read_hot_rows(std::size_t chosen) {
  std::vector<std::size_t> order(model_.pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t hot = std::min(order.size(), kHotBlocks);
  std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(hot), order.end(), [&](std::size_t a, std::size_t b) {
    return model_.pieces[a].updates_per_second > model_.pieces[b].updates_per_second;
  });
  std::map<std::uint64_t, RowLooks> kept;
  for (std::size_t i = 0; i < hot; ++i) {
    const std::uint64_t block = model_.pieces[order[i]].piece;
    const auto known = row_looks_.find(block);
    kept.emplace(block, known != row_looks_.end() ? std::move(known->second) : RowLooks{});
  }
  row_looks_ = std::move(kept);
  const std::uint64_t width = probe_.variables()[chosen].row_floats;
  for (auto& [block, looks] : row_looks_) {
    if (looks.looks == 0) continue;
    const double apart = looks.seconds / looks.looks;
    for (std::size_t i = 0; i < looks.rows.size(); ++i) {
      if (looks.changes[i] == 0) continue;
      HotRow& row = model_.hot_rows.emplace_back();
      row.row = looks.rows[i];
      // For updates at random moments, a fraction exp(-rate * apart) of the polls finds none.
      row.is_at_least = looks.changes[i] == looks.looks;
      const double unchanged = row.is_at_least ? 0.5 : double(looks.looks - looks.changes[i]);
      row.touches_per_second = -std::log(unchanged / double(looks.looks)) / apart;
      const std::span<const float> values =
          std::span(looks.before).subspan(i * width, std::min<std::uint64_t>(width, 4));
      for (const float value : values) row.values += (row.values.empty() ? "" : "  ") + short_number(double(value));
      if (width > values.size()) row.values += "  ...";
    }
    constexpr std::uint32_t kMostLooks = 400;  // some ten seconds
    if (looks.looks < kMostLooks) continue;
    looks.looks /= 2, looks.seconds /= 2;
    for (std::uint32_t& changes : looks.changes) changes /= 2;
  }
  std::stable_sort(model_.hot_rows.begin(), model_.hot_rows.end(),
                   [](const HotRow& a, const HotRow& b) { return a.touches_per_second > b.touches_per_second; });
  model_.hot_rows.resize(std::min(model_.hot_rows.size(), kHotRows));
  for (PieceRow& row : model_.pieces) {
    if (!row_looks_.contains(row.piece)) continue;
    const std::vector<std::uint64_t> rows = probe_.rows(chosen, row.piece);
    if (!rows.empty()) row.first_row = rows.front(), row.rows = rows.size();
  }
}

void Sampler::look_at_rows(std::size_t chosen) {
  if (chosen != pieces_of_) return;
  for (auto& [block, looks] : row_looks_) {
    std::vector<float> values;
    if (looks.rows.empty()) looks.rows = probe_.rows(chosen, block);
    if (looks.rows.empty() || !probe_.read(chosen, block, values)) continue;
    const double seconds = now();
    if (looks.before.size() == values.size()) {
      const std::size_t width = values.size() / looks.rows.size();
      for (std::size_t i = 0; i < looks.rows.size(); ++i)
        looks.changes[i] +=
            !std::equal(values.begin() + std::ptrdiff_t(i * width), values.begin() + std::ptrdiff_t((i + 1) * width),
                        looks.before.begin() + std::ptrdiff_t(i * width));
      ++looks.looks;
      looks.seconds += seconds - looks.last;
    } else {
      looks.changes.assign(looks.rows.size(), 0);
    }
    looks.before = std::move(values), looks.last = seconds;
  }
}

void Sampler::find_alerts() {
  model_.alerts.clear();
  const auto say = [&](std::string text) { model_.alerts.push_back(std::move(text)); };
  if (model_.state == "removed") say("the job has ended: its segments are gone, and this is its last state");
  if (model_.state == "dead" && !model_.is_finished)
    say(fmt::format("no process of the job is alive: inspect_shm rm --job {} removes it", model_.job));
  if (model_.state == "orphaned") say("no ps serves the job: its workers continue");
  for (const WorkerRow& worker : model_.workers) {
    const std::string who = fmt::format("worker {} (process {})", worker.rank, worker.pid);
    constexpr double kSilent = 5;
    if (worker.phase == Phase::kStopped)
      say(fmt::format("{} has been stopped for {}: kill -CONT {} resumes it", who, short_seconds(worker.phase_seconds),
                      worker.pid));
    else if (worker.phase == Phase::kDead)
      say(fmt::format("{} died", who));
    else if (worker.phase < Phase::kWaiting && worker.silent_seconds >= kSilent)
      say(fmt::format("{} has not pulled, pushed or ended a step for {}", who, short_seconds(worker.silent_seconds)));
    if (worker.loss && !std::isfinite(*worker.loss))
      say(fmt::format("{}: its loss is {}", who, short_number(*worker.loss)));
  }
  if (model_.bridge && !model_.bridge->is_alive && !model_.is_finished)
    say("the bridge to other boxes is not running: this box trains on by itself");
  if (model_.bridge)
    for (const inspect::BridgeTable& table : model_.bridge->tables)
      if (table.name && table.keys && table.keys == table.most_keys)
        say(fmt::format("table {}: the boxes exchange as many keys as --table-keys allows, and no others",
                        *table.name));
  constexpr std::uint64_t kLeast = 20;  // a twentieth
  if (model_.shm_free_bytes < model_.shm_bytes / kLeast)
    say(fmt::format("/dev/shm is nearly full: {} of {} are left", short_bytes(model_.shm_free_bytes),
                    short_bytes(model_.shm_bytes)));
}

}  // namespace ps_shm::watch
