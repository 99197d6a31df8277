#include "record/order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "ps_shm/errors.hpp"

namespace ps_shm::record {

using What = Event::What;

namespace {

constexpr std::uint32_t kMostRecords = std::numeric_limits<std::uint16_t>::max() - 1;

}  // namespace

Order::Order(const std::vector<Recorded>& records) {
  if (records.size() > kMostRecords)
    throw Error(fmt::format("{} recordings are too many", records.size()), ErrorCode::kExhausted);
  number(records);
  note_pushes(records);
  note_steps(records);
  note_pulls(records);
  require_no_circle(records);
}

void Order::number(const std::vector<Recorded>& records) {
  std::map<std::string, RecordedVariable> all;
  for (const Recorded& record : records) {
    Cursor cursor(record.name, record.bytes);
    for (; cursor.peek().what != What::kEnd && cursor.peek().what != What::kLeft; cursor.next()) {
      if (cursor.peek().what != What::kVariable) continue;
      const RecordedVariable& one = cursor.variables().back();
      const RecordedVariable& known = all.emplace(one.name, one).first->second;
      if (known.pieces != one.pieces || known.elements != one.elements)
        throw Error(
            fmt::format("recording {}: variable '{}' has {} elements in {} chunks, but {} in {} in another recording",
                        record.name, one.name, one.elements, one.pieces, known.elements, known.pieces),
            ErrorCode::kIncompatible);
    }
  }
  std::uint64_t next = 0;
  for (const auto& [name, one] : all) {
    first_[name] = next;
    next += one.pieces;
  }
  if (next > kMaxPieces)
    throw Error(fmt::format("the recordings have {} chunks, which are too many", next), ErrorCode::kExhausted);
  chunks_.resize(next);
}

// A push whose swap succeeded says so. One that was only tried has succeeded if no other push made its version, and a
// worker has seen that version: the versions of a chunk have no gaps.
void Order::note_pushes(const std::vector<Recorded>& records) {
  std::vector<std::uint64_t> counts(chunks_.size());
  const auto for_all = [&](auto&& use) {
    for (std::uint32_t i = 0; i < records.size(); ++i)
      for (Cursor cursor(records[i].name, records[i].bytes);
           cursor.peek().what != What::kEnd && cursor.peek().what != What::kLeft; cursor.next())
        use(i, cursor);
  };
  for_all([&](std::uint32_t i, const Cursor& cursor) {
    const Event& event = cursor.peek();
    if (event.what == What::kPush) ++counts[chunk_of(cursor)];
    if (event.what == What::kPush && event.is_tried) tried_.push_back({chunk_of(cursor), event.version, i});
  });
  for (std::uint64_t chunk = 0; chunk < counts.size(); ++chunk) chunks_[chunk].makers.resize(counts[chunk]);
  const auto note = [&](std::uint64_t chunk, std::uint64_t version, std::uint32_t i) {
    auto& makers = chunks_[chunk].makers;
    if (version >= makers.size() || makers[version] != 0) return false;
    makers[version] = static_cast<std::uint16_t>(i + 1);
    return true;
  };
  for_all([&](std::uint32_t i, const Cursor& cursor) {
    const Event& event = cursor.peek();
    if (event.what == What::kPush && !event.is_tried && !note(chunk_of(cursor), event.version, i))
      throw Error(fmt::format("recording {}: version {} of a chunk of variable '{}' was made twice, or never",
                              records[i].name, event.version, cursor.variables()[event.variable].name),
                  ErrorCode::kDamaged);
  });
  std::sort(tried_.begin(), tried_.end(), [](const Tried& a, const Tried& b) { return a.version < b.version; });
  for (const Tried& one : tried_) static_cast<void>(note(one.chunk, one.version, one.record));
  for (Chunk& chunk : chunks_) {
    while (!chunk.makers.empty() && chunk.makers.back() == 0) chunk.makers.pop_back();
    if (std::find(chunk.makers.begin(), chunk.makers.end(), 0) != chunk.makers.end())
      throw Error("the recordings do not belong together: a push is in none of them", ErrorCode::kDamaged);
    all_pushes_ += chunk.makers.size();
  }
}

// The counted steps have no gaps either. A step with which a recording ends may fill a gap between steps that its rank
// has counted before and after it. If it fills none, it was not counted, or was the last step. Only a rank's last life
// takes it for the last step, since its next life did not wait for it.
void Order::note_steps(const std::vector<Recorded>& records) {
  struct Open {
    std::uint32_t record;
    std::uint64_t from, before;  // its rank has counted other steps there
    bool is_last;                // of the rank's lives
  };
  std::vector<std::uint64_t> counted;
  std::vector<Open> open;
  std::size_t of_rank = 0;
  std::uint64_t rank = 0, from = 0;
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    Cursor cursor(records[i].name, records[i].bytes);
    if (const std::uint64_t own = cursor.header().rank; std::exchange(rank, own) != own) {
      of_rank = open.size();
      from = 0;
    }
    for (std::size_t k = of_rank; k < open.size(); ++k) open[k].is_last = false;
    for (; cursor.peek().what != What::kEnd && cursor.peek().what != What::kLeft; cursor.next()) {
      const Event& event = cursor.peek();
      if (event.what != What::kStep) continue;
      if (event.is_tried) {
        open.push_back({i, from, std::numeric_limits<std::uint64_t>::max(), true});
        continue;
      }
      for (std::size_t k = of_rank; k < open.size(); ++k) open[k].before = std::min(open[k].before, event.step);
      counted.push_back(event.step);
      from = event.step + 1;
    }
  }
  std::sort(counted.begin(), counted.end());
  std::uint64_t next = 0;
  const auto fill = [&] {
    const Open* best = nullptr;
    for (const Open& one : open)
      if (one.from <= next && next < one.before && !last_step(one.record) &&
          (best == nullptr || one.before < best->before))
        best = &one;
    if (best != nullptr) last_steps_[best->record] = next++;
    return best != nullptr;
  };
  for (const std::uint64_t step : counted) {
    while (next < step && fill()) {
    }
    if (step != next++)
      throw Error("the recordings do not belong together: a step is in none of them, or in two", ErrorCode::kDamaged);
  }
  for (const Open& one : open)
    if (one.is_last && !last_step(one.record)) last_steps_[one.record] = next++;
}

void Order::note_pulls(const std::vector<Recorded>& records) {
  for (Chunk& chunk : chunks_) chunk.pulls.resize(chunk.makers.size() + 1);
  std::vector<bool> was_seen(chunks_.size());  // whether the last version was pulled
  for (const Recorded& record : records)
    for (Cursor cursor(record.name, record.bytes);
         cursor.peek().what != What::kEnd && cursor.peek().what != What::kLeft; cursor.next()) {
      const Event& event = cursor.peek();
      if (event.what != What::kPull) continue;
      const std::uint64_t number = chunk_of(cursor);
      Chunk& chunk = chunks_[number];
      if (event.version >= chunk.pulls.size() || ++chunk.pulls[event.version] == 0)
        throw Error(
            fmt::format("recording {}: it has pulled version {} of a chunk of variable '{}', which no push has made",
                        record.name, event.version, cursor.variables()[event.variable].name),
            ErrorCode::kDamaged);
      was_seen[number] = was_seen[number] || event.version + 1 == chunk.pulls.size();
    }
  // A push that no worker has seen has left no trace in the parameters that others computed from: it is left out.
  for (const Tried& one : tried_) {
    Chunk& chunk = chunks_[one.chunk];
    if (!was_made(one.chunk, one.version, one.record) || one.version + 1 != chunk.makers.size() || was_seen[one.chunk])
      continue;
    chunk.makers.pop_back();
    chunk.pulls.pop_back();
    --all_pushes_;
  }
}

// Advances through all recordings at the same time, as far as the order allows.
void Order::require_no_circle(const std::vector<Recorded>& records) const {
  struct State {
    std::uint64_t version = 0;
    std::uint32_t pulls = 0;             // of this version
    std::vector<std::uint32_t> waiting;  // records that wait for this state
  };
  std::vector<State> states(chunks_.size());
  State steps;
  std::vector<Cursor> cursors;
  std::deque<std::uint32_t> ready;
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    cursors.emplace_back(records[i].name, records[i].bytes);
    if (i == 0 || cursors[i].header().rank != cursors[i - 1].header().rank) ready.push_back(i);
  }
  const auto wake = [&](State& state) {
    ready.insert(ready.end(), state.waiting.begin(), state.waiting.end());
    state.waiting.clear();
  };
  std::size_t over = 0;
  while (!ready.empty()) {
    const std::uint32_t i = ready.front();
    ready.pop_front();
    Cursor& cursor = cursors[i];
    for (;; cursor.next()) {
      const Event& event = cursor.peek();
      if (event.what == What::kEnd || event.what == What::kLeft) {
        ++over;
        if (i + 1 < records.size() && cursors[i + 1].header().rank == cursor.header().rank)
          ready.push_back(i + 1);  // the next owner of the rank
        break;
      }
      if (event.what == What::kStep) {
        const std::optional<std::uint64_t> step = event.is_tried ? last_step(i) : event.step;
        if (!step) continue;
        if (steps.version != *step) {
          steps.waiting.push_back(i);
          break;
        }
        ++steps.version;
        wake(steps);
        continue;
      }
      if (event.what != What::kPull && event.what != What::kPush) continue;
      const std::uint64_t chunk = chunk_of(cursor);
      State& state = states[chunk];
      if (event.what == What::kPush && event.is_tried && !was_made(chunk, event.version, i)) continue;
      if (state.version != event.version || (event.what == What::kPush && state.pulls != pulls(chunk, event.version))) {
        state.waiting.push_back(i);
        break;
      }
      if (event.what == What::kPull) {
        if (++state.pulls == pulls(chunk, event.version)) wake(state);
        continue;
      }
      ++state.version;
      state.pulls = 0;
      wake(state);
    }
  }
  if (over == records.size()) return;
  for (std::uint32_t i = 0; i < records.size(); ++i)
    if (const What what = cursors[i].peek().what; what != What::kEnd && what != What::kLeft)
      throw Error(fmt::format("recording {}: push {} waits for a later event", records[i].name, cursors[i].pushes()),
                  ErrorCode::kDamaged);
}

}  // namespace ps_shm::record
