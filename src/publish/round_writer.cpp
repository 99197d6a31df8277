#include "publish/round_writer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "ps_shm/errors.hpp"
#include "publish/copy.hpp"
#include "publish/slices.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "update/bfloat16.hpp"

namespace ps_shm {

void Publisher::SliceOutput::write(std::span<const std::byte> bytes) {
  const std::size_t size = bytes_of(tensor_.dtype), wanted = element_count(slice_) * size;
  if (bytes.size() != wanted)
    throw Error(fmt::format("a slice of tensor '{}' has {} bytes, not {}", tensor_.name, wanted, bytes.size()));
  const std::byte* from = bytes.data();
  for_each_run(tensor_, slice_, [&](std::uint64_t first, std::uint64_t count) {
    copy_tensor(out_ + first * size, from, count * size, generation_bytes_);
    from += count * size;
  });
  is_written_ = true;
}

void Publisher::SliceOutput::write_floats(std::span<const float> values) {
  if (const std::uint64_t wanted = element_count(slice_); values.size() != wanted)
    throw Error(fmt::format("a slice of tensor '{}' has {} elements, not {}", tensor_.name, wanted, values.size()));
  require_floats(tensor_, values.size(), 0);
  if (tensor_.dtype == DType::kFloat32) return write(std::as_bytes(values));
  const float* from = values.data();
  for_each_run(tensor_, slice_, [&](std::uint64_t first, std::uint64_t count) {
    auto* const to = reinterpret_cast<update::BFloat16Bits*>(out_ + first * bytes_of(DType::kBFloat16));
    update::round_to_nearest(to, from, count);
    from += count;
  });
  is_written_ = true;
}

struct RoundWriter::Call {
  const Publisher::WriteSlice& write;
  std::uint64_t step;
  WaitLimit timeout;
  Polling polling;
  std::optional<shm::Round::Attempt> attempt{};  // that this writer has done, and that is not over yet

  // While it waits for a fact. Throws Interrupted, Timeout.
  void check(const RoundWriter& writer) {
    const auto what = [&] {
      return fmt::format("publication {}: waiting to publish step {}: {}", writer.bundle_.spec().name, step,
                         writer.missing(*this));
    };
    polling.check(what);
    if (polling.is_over())
      throw Timeout(fmt::format("publication '{}': step {} was not published within {} s: {}",
                                writer.bundle_.spec().name, step, timeout->count(), writer.missing(*this)));
  }
};

RoundWriter::RoundWriter(const shm::Bundle& bundle, shm::GenerationWriter& generations, const PublisherOptions& options,
                         bool leads)
    : bundle_(bundle), generations_(generations), options_(options), round_(bundle, options.writer), leads_(leads) {}

std::uint64_t RoundWriter::publish(const Publisher::WriteSlice& write, std::uint64_t step, WaitLimit timeout) {
  Call call{.write = write,
            .step = step,
            .timeout = timeout,
            .polling = Polling(options_.stop_requested, options_.log, timeout)};
  for (;;) {
    try_lead();
    if (const auto generation = leads_ ? lead(call) : follow(call)) return *generation;
  }
}

// Nobody removes the publication meanwhile: that takes all bytes (names.N2).
void RoundWriter::try_lead() {
  if (leads_ || !bundle_.locks().try_take(shm::kPublisherByte)) return;
  leads_ = true;
  shm::fault_point(shm::FaultPoint::kLeaderTaken);
  shm::NewestShm& state = bundle_.newest();
  state.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed: diagnostic only
  state.publishers.bump_relaxed(1);
  round_.close();  // (round.R8)
  shm::fault_point(shm::FaultPoint::kLeaderClosed);
}

// Returns nothing if a writer has died: it may have a successor.
std::optional<std::uint64_t> RoundWriter::lead(Call& call) {
  wait_for_all(call);
  wait_for_record(call);
  generations_.begin();
  for (std::uint32_t tensor = 0; tensor < bundle_.tensors(); ++tensor) generations_.place(tensor);
  const shm::Round::Attempt attempt = round_.open(generations_.record(), call.step);
  try {
    write_slices(call, generations_.record());
    round_.note_done(attempt);
    if (!wait_for_done(call, attempt)) {
      round_.close();
      return std::nullopt;
    }
  } catch (...) {
    round_.close();
    throw;
  }
  shm::fault_point(shm::FaultPoint::kRoundComplete);
  const std::uint64_t generation = generations_.commit(call.step);  // (round.R5)
  shm::fault_point(shm::FaultPoint::kRoundCommitted);
  round_.close();
  return generation;
}

// Returns nothing if an attempt was given up, or if this writer leads now.
std::optional<std::uint64_t> RoundWriter::follow(Call& call) {
  shm::Round::Attempt attempt;
  const auto each_slice = [&] {
    call.check(*this);
    try_lead();
  };
  shm::AtomicShm<std::uint32_t>& futex = bundle_.round().writers;
  shm::wait_for_fact(
      futex, [&] { return leads_ || round_.try_enter(call.step, attempt); }, each_slice);
  if (leads_) return std::nullopt;
  shm::fault_point(shm::FaultPoint::kRoundEntered);
  write_slices(call, shm::record_of(attempt.round));
  round_.note_done(attempt);
  call.attempt = attempt;
  shm::wait_for_fact(
      futex, [&] { return round_.is_over(attempt); }, each_slice);  // also where this writer ends it
  call.attempt.reset();
  return round_.committed(attempt);
}

void RoundWriter::wait_for_all(Call& call) {
  const auto are_there = [&] {
    for (std::uint32_t writer = 0; writer < bundle_.writers(); ++writer)
      if (!is_alive(writer)) return false;
    return true;
  };
  while (!are_there()) {
    call.check(*this);
    call.polling.sleep();
  }
}

void RoundWriter::wait_for_record(Call& call) {
  while (!generations_.find_record()) {
    call.check(*this);
    call.polling.sleep();
  }
}

// False: a writer has died before it has done.
bool RoundWriter::wait_for_done(Call& call, const shm::Round::Attempt& attempt) {
  bool has_died = false;
  call.attempt = attempt;
  const auto have_done = [&] {
    for (std::uint32_t writer = 0; writer < bundle_.writers(); ++writer)
      if (!round_.has_done(writer, attempt)) return has_died;
    has_died = false;
    return true;
  };
  shm::wait_for_fact(bundle_.round().leader, have_done, [&] {
    call.check(*this);
    for (std::uint32_t writer = 0; writer < bundle_.writers(); ++writer)
      // The byte first: what the dead have done is visible once it is free.
      has_died = has_died || (!is_alive(writer) && !round_.has_done(writer, attempt));
  });
  call.attempt.reset();
  return !has_died;
}

void RoundWriter::write_slices(const Call& call, std::uint32_t record) const {
  const std::vector<Slice>& slices = options_.plan[options_.writer];
  if (record >= bundle_.records()) shm::fail_damaged(bundle_.segment().name(), "a round names no record");
  for (std::uint32_t number = 0; number < slices.size(); ++number) {
    const std::uint32_t tensor = slices[number].tensor;
    const std::uint32_t slot = bundle_.slots(record)[tensor].load_relaxed();  // relaxed: after round.R2
    if (slot >= bundle_.records()) shm::fail_damaged(bundle_.segment().name(), "a round names no slot");
    Publisher::SliceOutput out(bundle_.spec().tensors[tensor], slices[number], bundle_.slot(tensor, slot),
                               bundle_.generation_bytes());
    call.write(number, out);
    if (!out.is_written_)
      throw Error(fmt::format("publication '{}': slice {} of writer {} was not written", bundle_.spec().name, number,
                              options_.writer));
    shm::fault_point(shm::FaultPoint::kRoundSlice);
  }
}

bool RoundWriter::is_quiet() const {
  const std::uint64_t attempt = shm::attempt_of(bundle_.round().round.load_relaxed());  // relaxed: the leader's own
  for (std::uint32_t writer = 0; writer < bundle_.writers(); ++writer)
    if (writer != options_.writer && is_alive(writer) &&
        bundle_.writer(writer).done.load_acquire() != attempt)  // (round.R4)
      return false;
  return true;
}

// Diagnostic only, so relaxed.
std::string RoundWriter::missing(const Call& call) const {
  std::vector<std::uint32_t> dead, late;
  const std::uint64_t word = bundle_.round().round.load_relaxed();
  for (std::uint32_t writer = 0; writer < bundle_.writers(); ++writer)
    if (!is_alive(writer))
      dead.push_back(writer);
    else if (call.attempt && bundle_.writer(writer).done.load_relaxed() != shm::attempt_of(call.attempt->round))
      late.push_back(writer);
  std::string text;
  if (!dead.empty()) text = fmt::format("writers {} are not alive", fmt::join(dead, ", "));
  if (!late.empty())
    text += fmt::format("{}writers {} have not written their slices", text.empty() ? "" : "; ", fmt::join(late, ", "));
  if (call.attempt && !leads_) text += fmt::format("{}it may still be published", text.empty() ? "" : "; ");
  if (!text.empty()) return text;
  if (!generations_.busy_ranks().empty())
    return fmt::format("subscribers {} hold all records", fmt::join(generations_.busy_ranks(), ", "));
  const std::uint64_t step = bundle_.round().step.load_relaxed();
  if (shm::is_open(word) && step != call.step) return fmt::format("the leader publishes step {}", step);
  return "the leader (process " + std::to_string(bundle_.newest().pid.load_relaxed()) + ") has not begun";
}

}  // namespace ps_shm
