#include "record/replayer.hpp"

#include <fmt/format.h>

#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/base/futex.hpp"

namespace ps_shm::record {

using What = Event::What;

namespace {

// Versions are modular (slot.V1). A version that has passed is no reason to wait: it shows that the replay differs.
bool has_come(std::uint64_t version, std::uint64_t wanted) noexcept {
  return ((version - wanted) & shm::kVersionMask) <= shm::kVersionMask / 2;
}

}  // namespace

Records::Records(const std::string& folder) {
  for (const Life& one : lives_in(folder)) {
    const std::string path = file_of(folder, one.rank, one.life);
    if (!has_begun(files_.emplace_back(path).bytes())) {
      files_.pop_back();
      continue;
    }
    lives_.push_back(one);
    recorded_.push_back({path, files_.back().bytes()});
    if (const Header header = Cursor(path, files_.back().bytes()).header();
        header.rank != one.rank || header.life != one.life)
      throw Error(fmt::format("recording {}: it belongs to life {} of worker {}", path, header.life, header.rank),
                  ErrorCode::kIncompatible);
    if (one.rank >= shm::kMaxRanks) throw Error(fmt::format("recording {}: there is no such rank", path));
  }
  order_.emplace(recorded_);
}

Cursor Records::cursor(std::uint32_t record) const { return {recorded_.at(record).name, recorded_.at(record).bytes}; }

std::uint32_t Records::lives_of(std::uint32_t rank) const noexcept {
  std::uint32_t count = 0;
  for (const Life& one : lives_) count += one.rank == rank;
  return count;
}

std::optional<std::uint32_t> Records::find(std::uint32_t rank, std::uint32_t life) const noexcept {
  for (std::uint32_t i = 0; i < lives_.size(); ++i)
    if (lives_[i].rank == rank && --life == 0) return i;
  return std::nullopt;
}

Replayer::Replayer(const std::string& folder, const std::string& coordinator, shm::JobSegments& job, std::uint32_t rank,
                   ReplayWaits waits)
    : rank_(rank),
      job_(job),
      waits_(std::move(waits)),
      records_(folder),
      coordinator_(coordinator, records_.order().chunks()) {
  life_ = coordinator_.state().begun[rank].load_relaxed() + 1;  // relaxed: only the owner of the rank writes it
  const std::optional<std::uint32_t> record = records_.find(rank, life_);
  if (!record)
    throw Error(fmt::format("recording {}: it has no life {} of worker {}", folder, life_, rank), ErrorCode::kNotFound);
  record_ = *record;
  cursor_.emplace(records_.cursor(record_));
  coordinator_.state().begun[rank].store_release(life_);  // (replay.L1)
}

std::string Replayer::place() const {
  const Event& event = cursor_->peek();
  const bool has_variable = event.what == What::kBeginPull || event.what == What::kPull ||
                            event.what == What::kBeginPush || event.what == What::kPush || event.what == What::kDropped;
  return fmt::format("push {}{}", cursor_->pushes(),
                     has_variable ? fmt::format(" (variable '{}')", cursor_->variables()[event.variable].name) : "");
}

std::uint64_t Replayer::chunk() const {
  const Event& event = cursor_->peek();
  return records_.order().chunk(cursor_->variables()[event.variable].name, event.piece);
}

void Replayer::differ(const std::string& how) {
  coordinator_.state().differs.store_release(rank_ + 1);  // (replay.L1)
  shm::futex_announce(coordinator_.state().futex);
  throw Error(fmt::format("worker {}: the replay differs from its recording at {}, global step {}: {}", rank_, place(),
                          facts_.step, how),
              ErrorCode::kIncompatible);
}

void Replayer::differ_in_values() {
  differ("the pushed values differ from the recorded ones: other data, other settings, or another build");
}

void Replayer::end_life() {
  const What what = cursor_->peek().what;
  const bool has_left = what == What::kLeft, is_told = what == What::kFinished;
  if (is_told) {  // the program's actions after that follow it
    cursor_->next();
    was_finished_ = true;
  } else {
    has_ended_ = true;
  }
  if (is_told || (was_finished_ && has_left))
    throw JobFinished(fmt::format("worker {}: the recorded job was finished here", rank_));
  const std::string line =
      fmt::format("worker {}: its recording ends here, {} push {}: it {}", rank_, what == What::kPush ? "in" : "after",
                  cursor_->pushes(), has_left ? "was asked to leave" : "was killed");
  waits_.log(line);
  throw JobFinished(line);
}

bool Replayer::expect(What what, const char* does, std::uint32_t variable) {
  if (has_ended_) return false;
  const Event& event = cursor_->peek();
  if (event.what == What::kEnd || event.what == What::kLeft || event.what == What::kFinished) end_life();
  if (event.what == what && event.variable == variable) return true;
  differ(fmt::format("the program {}, but the recording does not: another program, or other settings", does));
}

void Replayer::look_at_others() {
  if (const std::uint32_t who = coordinator_.state().differs.load_acquire(); who != 0)  // (replay.L2)
    throw JobFinished(fmt::format("worker {}: the replay ends: worker {} differs from its recording", rank_, who - 1));
  const CoordinatorState& lives = coordinator_.state();
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const std::uint32_t begun = lives.begun[rank].load_acquire();  // (replay.L2)
    if (rank == rank_ || begun == 0 || job_.is_alive(rank)) continue;
    // (replay.L2) Its next life may have begun in the meantime.
    if (lives.ended[rank].load_acquire() < begun && lives.begun[rank].load_acquire() == begun)
      throw Error(fmt::format("worker {}: the replay cannot go on: worker {} has died", rank_, rank),
                  ErrorCode::kInvalidState);
  }
}

void Replayer::wait(const std::function<bool()>& fact, const std::function<std::string()>& what) try {
  shm::wait_for_fact(
      coordinator_.state().futex, fact,
      [&] {
        look_at_others();
        if (job_.is_over() && job_.was_ended()) throw JobFinished(fmt::format("job {} was ended", job_.job()));
        waits_.each_slice(
            [&] { return fmt::format("worker {}: replaying {}, waiting for {}", rank_, place(), what()); });
      },
      shm::patience_among(static_cast<std::uint32_t>(records_.lives().size())));
} catch (...) {
  has_ended_ = true;  // from here on the program may do what it likes
  throw;
}

void Replayer::declare(const std::string& name, std::uint64_t pieces, std::uint64_t elements) {
  if (!expect(What::kVariable, fmt::format("declares variable '{}'", name).c_str())) return;
  const RecordedVariable& one = cursor_->variables().back();
  if (one.name != name || one.pieces != pieces || one.elements != elements)
    differ(fmt::format(
        "variable '{}' has {} elements in {} chunks, but the recording has '{}' with {} in {}: other settings", name,
        elements, pieces, one.name, one.elements, one.pieces));
  cursor_->next();
}

void Replayer::begin_pull(std::uint32_t variable) {
  if (expect(What::kBeginPull, "pulls a variable", variable)) cursor_->next();
}

void Replayer::before_pull(const shm::VersionedVariable& part, std::uint64_t chunk) {
  if (has_ended_) return;
  const Event& event = cursor_->peek();
  if (event.what != What::kPull) end_life();
  wait(
      [&] { return has_come(part.version(chunk), event.version); },
      [&] { return fmt::format("version {} of chunk {}, which is at {}", event.version, chunk, part.version(chunk)); });
}

void Replayer::pulled(std::uint64_t version) {
  if (has_ended_) return;
  if (version != cursor_->peek().version) differ("another worker has pushed in the meantime");
  coordinator_.pulls(chunk()).fetch_add_acq_rel(1);  // (replay.P1) the copy is made
  shm::futex_announce(coordinator_.state().futex);
  cursor_->next();
}

UpdateFacts Replayer::begin_update(const UpdateFacts& now) {
  if (has_ended_) return now;
  if (cursor_->peek().what == What::kRates) {
    facts_ = cursor_->peek().facts;
    cursor_->next();
  }
  if (!expect(What::kUpdate, "pushes")) return now;
  facts_.step = cursor_->peek().step;
  cursor_->next();
  return facts_;
}

void Replayer::begin_push(std::uint32_t variable, std::uint32_t check, std::uint64_t first_piece) {
  if (!expect(What::kBeginPush, "pushes a variable", variable)) return;
  const Event& event = cursor_->peek();
  if (event.check != check) differ_in_values();
  if (event.piece != first_piece) differ("it begins with another chunk: another number of workers");
  cursor_->next();
}

// When all pulls of the version are done, no worker counts here before the next version exists: the count is cleared
// before the swap that makes it.
void Replayer::before_push(const shm::VersionedVariable& part, std::uint64_t chunk_of_part) {
  if (has_ended_) return;
  const Event& event = cursor_->peek();
  if (event.what != What::kPush) end_life();
  const std::uint64_t chunk = this->chunk();
  if (event.is_tried && !records_.order().was_made(chunk, event.version, record_)) end_life();
  auto& pulls = coordinator_.pulls(chunk);
  const std::uint32_t wanted = records_.order().pulls(chunk, event.version);
  // (replay.P2)
  wait([&] { return has_come(part.version(chunk_of_part), event.version) && pulls.load_acquire() >= wanted; },
       [&] {
         return fmt::format("version {} of chunk {}, which is at {}, and its {} pulls, of which {} are done",
                            event.version, chunk_of_part, part.version(chunk_of_part), wanted, pulls.hint());
       });
  if (part.version(chunk_of_part) != event.version) differ("another worker has pushed in the meantime");
  pulls.store_relaxed(0);  // relaxed: the swap publishes it (slot.W6)
}

void Replayer::pushed(std::uint64_t version) {
  if (has_ended_) return;
  if (version != cursor_->peek().version) differ("another worker has pushed in the meantime");
  shm::futex_announce(coordinator_.state().futex);
  cursor_->next();
}

bool Replayer::drops_pushes(bool now) { return has_ended_ ? now : cursor_->peek().what == What::kDropped; }

void Replayer::dropped(std::uint32_t variable, std::uint32_t check) {
  if (!expect(What::kDropped, "pushes a variable", variable)) return;
  if (cursor_->peek().check != check) differ_in_values();
  cursor_->next();
}

void Replayer::before_step() {
  if (!expect(What::kStep, "ends a step")) return;
  const Event& event = cursor_->peek();
  const std::optional<std::uint64_t> step = event.is_tried ? records_.order().last_step(record_) : event.step;
  if (!step) end_life();
  wait([&] { return job_.steps_done() >= *step; }, [&] { return fmt::format("global step {}", *step); });
}

void Replayer::counted(std::uint64_t) {
  if (has_ended_) return;
  shm::futex_announce(coordinator_.state().futex);
  cursor_->next();
}

bool Replayer::is_finished(bool now) noexcept {
  if (has_ended_ || was_finished_) return true;
  if (cursor_->peek().what == What::kFinished) {
    cursor_->next();
    return was_finished_ = true;
  }
  return now && job_.was_ended();
}

void Replayer::leave() noexcept try {
  const What next = cursor_->peek().what;
  if (!has_ended_ && next != What::kEnd && next != What::kLeft && coordinator_.state().differs.load_relaxed() == 0) {
    coordinator_.state().differs.store_release(rank_ + 1);  // (replay.L1)
    waits_.log(fmt::format("worker {}: it leaves at {}, but its recording goes on", rank_, place()));
  }
  coordinator_.state().ended[rank_].store_release(life_);  // (replay.L1)
  shm::futex_announce(coordinator_.state().futex);
} catch (...) {  // no memory for the message
}

}  // namespace ps_shm::record
