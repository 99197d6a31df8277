#include "inspect_shm/watch/rates.hpp"

#include <algorithm>
#include <utility>

namespace ps_shm::watch {

void Rates::add(double seconds, std::vector<std::uint64_t> counts) {
  if (!looks_.empty() && looks_.back().counts.size() != counts.size()) looks_.clear();
  looks_.push_back({seconds, std::move(counts)});
  while (looks_.size() > 2 && looks_[1].seconds <= seconds - window_seconds_) looks_.pop_front();
}

double Rates::per_second(std::size_t which) const {
  if (looks_.size() < 2) return 0;
  const Look &first = looks_.front(), &last = looks_.back();
  const double seconds = last.seconds - first.seconds;
  if (which >= last.counts.size() || seconds <= 0 || last.counts[which] < first.counts[which]) return 0;
  return double(last.counts[which] - first.counts[which]) / seconds;
}

void History::add(double value) {
  sum_ += value;
  if (++pending_ < each_) return;
  values_.push_back(sum_ / double(pending_));
  sum_ = 0, pending_ = 0;
  if (values_.size() < kMost) return;
  for (std::size_t i = 0; i < kMost / 2; ++i) values_[i] = (values_[2 * i] + values_[2 * i + 1]) / 2;
  values_.resize(kMost / 2);
  each_ *= 2;
}

bool PhaseWatch::is_pulling(const RankLook& rank) {
  constexpr std::size_t kRecent = 64;  // polls, some two seconds: loops may pull a little more now and then
  if (counts_.empty() || counts_.back().steps != rank.steps) begins_.push_back({rank.steps, rank.pulls});
  counts_.push_back({rank.steps, rank.pulls});
  if (counts_.size() > kRecent) counts_.pop_front();
  if (begins_.size() > kRecent) begins_.pop_front();
  if (begins_.size() < 3) return false;
  const Count &first = begins_[1], &last = begins_.back();  // the first poll may have been in the middle of a step
  const std::uint64_t steps = last.steps - first.steps;
  const std::uint64_t each = (last.pulls - first.pulls + steps / 2) / steps;  // pulls per step
  const auto ahead = [&](const Count& count) {
    return static_cast<std::int64_t>(count.pulls - last.pulls - each * (count.steps - last.steps));
  };
  std::int64_t most = ahead(counts_.back());
  for (const Count& count : counts_) most = std::max(most, ahead(count));
  return ahead(counts_.back()) < most;
}

void PhaseWatch::look(double seconds, const RankLook& rank) {
  const bool is_same = has_last_ && rank.holders == last_.holders;
  if (!is_same) counts_.clear(), begins_.clear(), progress_ = seconds;
  const bool is_pulling_now = rank.state == WorkerState::kAlive && is_pulling(rank);
  const Phase now = rank.state == WorkerState::kDead            ? Phase::kDead
                    : rank.state == WorkerState::kLeft          ? Phase::kLeft
                    : rank.waiting != shm::WaitingFor::kNothing ? Phase::kWaiting
                    : rank.is_pushing || rank.has_arrived       ? Phase::kPushing
                    : is_pulling_now                            ? Phase::kPulling
                                                                : Phase::kComputing;
  const bool has_moved =
      !is_same || rank.steps != last_.steps || rank.pulls != last_.pulls || rank.pushes != last_.pushes;
  const bool is_new = !has_last_ || now != phase_ || has_moved || rank.waiting_on != last_.waiting_on;
  if (is_new) {
    is_since_before_ = !has_last_;
    since_ = seconds;
  }
  if (has_moved || now != phase_) progress_ = seconds;
  phase_ = now, last_ = rank, has_last_ = true;
  if (static_cast<std::size_t>(now) < kLivePhases) looks_[static_cast<std::size_t>(now)] += 1;
}

std::array<double, kLivePhases> PhaseWatch::take_shares() {
  constexpr double kFading = 0.8;
  std::array<double, kLivePhases> shares{};
  double all = 0;
  for (const double count : looks_) all += count;
  for (std::size_t i = 0; i < kLivePhases && all > 0; ++i) shares[i] = looks_[i] / all;
  for (double& count : looks_) count *= kFading;
  return shares;
}

}  // namespace ps_shm::watch
