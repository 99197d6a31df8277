#include "record/order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

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
class Order::Walk {
 public:
  Walk(const Order& order, const std::vector<Recorded>& records) : order_(order), states_(order.chunks()) {
    for (std::uint32_t i = 0; i < records.size(); ++i) {
      cursors_.emplace_back(records[i].name, records[i].bytes);
      if (!continues_rank_before(i)) ready_.push_back(i);
    }
    for (; !ready_.empty(); ready_.pop_front()) advance(ready_.front());
  }

  // The first recording that waits for ever; none: all have come to their ends.
  std::optional<std::uint32_t> first_stuck() const {
    for (std::uint32_t i = 0; over_ != cursors_.size() && i < cursors_.size(); ++i)
      if (!is_over(cursors_[i].peek())) return i;
    return std::nullopt;
  }
  std::uint64_t pushes_of(std::uint32_t record) const { return cursors_[record].pushes(); }

 private:
  struct State {
    std::uint64_t version = 0;
    std::uint32_t pulls = 0;             // of this version
    std::vector<std::uint32_t> waiting;  // records that wait for this state
  };

  static bool is_over(const Event& event) { return event.what == What::kEnd || event.what == What::kLeft; }
  // Whether the recording is of a later owner of the rank of the one before.
  bool continues_rank_before(std::uint32_t i) const {
    return i != 0 && cursors_[i].header().rank == cursors_[i - 1].header().rank;
  }

  // Until the recording ends, or waits for others.
  void advance(std::uint32_t i) {
    Cursor& cursor = cursors_[i];
    for (; !is_over(cursor.peek()); cursor.next()) {
      const What what = cursor.peek().what;
      if (what == What::kStep && !try_step(i, cursor.peek())) return;
      if ((what == What::kPull || what == What::kPush) && !try_access(i, cursor)) return;
    }
    ++over_;
    if (i + 1 < cursors_.size() && continues_rank_before(i + 1)) ready_.push_back(i + 1);
  }

  bool try_step(std::uint32_t i, const Event& event) {
    const std::optional<std::uint64_t> step = event.is_tried ? order_.last_step(i) : event.step;
    if (!step) return true;
    if (steps_.version != *step) return wait_for(steps_, i);
    ++steps_.version;
    wake(steps_);
    return true;
  }

  bool try_access(std::uint32_t i, const Cursor& cursor) {
    const Event& event = cursor.peek();
    const bool is_push = event.what == What::kPush;
    const std::uint64_t chunk = order_.chunk_of(cursor);
    State& state = states_[chunk];
    if (is_push && event.is_tried && !order_.was_made(chunk, event.version, i)) return true;
    const std::uint32_t pulls = order_.pulls(chunk, event.version);
    if (state.version != event.version || (is_push && state.pulls != pulls)) return wait_for(state, i);
    if (!is_push) {
      if (++state.pulls == pulls) wake(state);
      return true;
    }
    ++state.version;
    state.pulls = 0;
    wake(state);
    return true;
  }

  bool wait_for(State& state, std::uint32_t record) {
    state.waiting.push_back(record);
    return false;
  }
  void wake(State& state) {
    ready_.insert(ready_.end(), state.waiting.begin(), state.waiting.end());
    state.waiting.clear();
  }

  const Order& order_;
  std::vector<State> states_;  // of the chunks
  State steps_;
  std::vector<Cursor> cursors_;
  std::deque<std::uint32_t> ready_;
  std::size_t over_ = 0;
};

void Order::require_no_circle(const std::vector<Recorded>& records) const {
  const Walk walk(*this, records);
  if (const std::optional<std::uint32_t> i = walk.first_stuck())
    throw Error(fmt::format("recording {}: push {} waits for a later event", records[*i].name, walk.pushes_of(*i)),
                ErrorCode::kDamaged);
}

}  // namespace ps_shm::record
