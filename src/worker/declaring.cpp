#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/events.hpp"
#include "update/bytes.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

std::uint64_t Worker::Impl::slots_of(const VariableSpec& spec) const {
  const VariableSpec whole = shm::resolved(spec, config);
  if (*whole.layout == Layout::kInplace) return update::slots_per_element(*whole.rule, false, true);
  return update::slots_per_element(update::settings_of(config.optimizer, *whole.rule, spec.regularize));
}

VariableState& Worker::Impl::state_at(const std::vector<std::uint32_t>& positions) {
  VariableState*& state = states[positions.front()];
  if (state == nullptr) {
    const auto number = static_cast<std::uint32_t>(variables.size());
    variables.push_back(VariableState::make(job, directory, positions, rank, threads.count(), recording.get(), number));
    state = variables.back().get();
  }
  return *state;
}

// The checkpoint that the job started from. Requires: there is one.
const Checkpoint& Worker::Impl::begun_with() {
  if (checkpoint) return *checkpoint;
  Checkpoint found(config.restore);
  if (found.global_step() != config.first_step)
    throw Error(fmt::format("checkpoint {} is now of step {}, but the job started from step {}", config.restore,
                            found.global_step(), config.first_step),
                ErrorCode::kInvalidState);
  return checkpoint.emplace(std::move(found));
}

// What the checkpoint that the job started from holds of the variable; nothing if the job started without one.
std::optional<FirstState> Worker::Impl::restored(const VariableState& state, std::span<float> values) {
  if (config.restore.empty()) return std::nullopt;
  const Checkpoint& from = begun_with();
  from.read(state.name, std::as_writable_bytes(values).first(state.element_count * bytes_of(state.dtype)));
  const std::vector<StoredVariable>& all = from.variables();
  const auto stored = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == state.name; });
  FirstState first{.updates = stored->updates, .slots = {}};
  const std::vector<VariableState::Slot> wanted = state.slots();
  std::vector<std::string> missing;
  for (const VariableState::Slot& slot : wanted) {
    std::vector<float>& numbers = first.slots.emplace_back();
    if (std::find(stored->slots.begin(), stored->slots.end(), slot.name) == stored->slots.end()) {
      if (slot.name == update::kUpdateCount && missing.empty()) {
        numbers.assign(slot.floats, float(stored->updates));
        continue;
      }
      missing.push_back(slot.name);
      continue;
    }
    numbers.resize(slot.floats);
    from.read(state.name, std::as_writable_bytes(std::span(numbers)), slot.name);
  }
  // State that starts fresh has had no updates. An average is the exception: it starts from the values.
  if (std::any_of(missing.begin(), missing.end(), [](const std::string& slot) { return slot != "ema"; }))
    first.updates = 0;
  if (!missing.empty() && slots_missed.insert(missing).second)
    Wait(options, std::nullopt, 1)
        .log(fmt::format("worker {}: the checkpoint has no {} of variable '{}' and similar ones: they start fresh",
                         rank, fmt::join(missing, ", "), state.name));
  return first;
}

void Worker::Impl::initialise(VariableState& state, const Initializer& initialize) {
  const std::uint64_t bytes = state.element_count * bytes_of(state.dtype);
  std::vector<float> values(update::floats_for(bytes));
  shm::fault_point(shm::FaultPoint::kInitClaimed);
  const std::optional<FirstState> first = restored(state, values);
  if (!first) initialize(values);
  const update::TakenBytes given(std::as_bytes(std::span(values)).first(bytes), state.dtype, state.array_dtype);
  state.set_values(given.floats(), live.settings.lr, first ? *first : FirstState());
  shm::fault_point(shm::FaultPoint::kInitValues);
  // (directory.D6) The first part comes last: it stands for all parts. Pairs with wait_initialised: words, stamps and
  // values.
  for (auto part = state.parts.rbegin(); part != state.parts.rend(); ++part) {
    if (part->accumulator_record != nullptr)
      part->accumulator_record->init.store_release(shm::kInitialised);  // (directory.D6)
    shm::fault_point(shm::FaultPoint::kInitPart);
    part->record.init.store_release(shm::kInitialised);  // (directory.D6)
  }
  shm::fault_point(shm::FaultPoint::kInitDone);
  shm::record_event(job, {.kind = shm::EventKind::kInitialised,
                          .rank = rank,
                          .step = job.steps_done(),
                          .first = state.parts.front().position});
  shm::fault_point(shm::FaultPoint::kInitRecorded);
  shm::futex_announce(job.state().activity);
}

// Without an initializer this worker cannot take over from a dead one, so it needs a limit.
void Worker::Impl::wait_initialised(VariableState& state, const Initializer* initialize, WaitLimit limit) {
  shm::VariableShm& record = state.parts.front().record;
  const std::uint64_t holder = entry.holders.load_acquire();  // (ranks.J4) this worker's own
  const std::uint64_t my_claim = shm::make_init_claim(holder, shm::kRankByte + rank);
  const auto is_dead = [&](std::uint64_t claim) {
    const std::uint32_t byte = static_cast<std::uint32_t>(claim & 0xffff) - 1, of = byte - shm::kRankByte;
    // directory.D5: a successor may hold the byte by now, and may wait for others before it declares.
    if (of < job.ranks() && claim >> 16 != job.worker(of).holders.load_acquire()) return true;  // (ranks.J4)
    return of != rank && !job.locks().is_held_by_other(byte);  // locks.L1: never queries its own byte
  };
  const auto try_claim = [&] {
    std::uint64_t claim = record.init.load_acquire();  // (directory.D5)
    if (claim == shm::kInitialised || initialize == nullptr || (claim != 0 && !is_dead(claim))) return;
    if (!record.init.try_exchange_acq_rel(claim, my_claim)) return;  // (directory.D5)
    try {
      this->initialise(state, *initialize);
    } catch (...) {
      record.init.store_release(0);  // (directory.D5) the next one may try
      throw;
    }
  };
  const auto is_initialised = [&] { return record.init.load_acquire() == shm::kInitialised; };  // (directory.D6)
  try_claim();
  if (is_initialised()) return;
  Wait waiting(options, limit, 1.0);
  const WaitMark mark(entry, shm::WaitingFor::kInitialised, state.parts.front().position);
  shm::wait_for_fact(job.state().activity, is_initialised, [&] {
    try_claim();
    if (job.is_over()) throw JobFinished(fmt::format("job {} was ended", job.job()));
    const auto what = [&] {
      return fmt::format("worker {}: waiting for variable '{}' to be initialised", rank, record.name);
    };
    if (!waiting.slice(what))
      throw Timeout(
          fmt::format("variable '{}' of job '{}' was not initialised within {} s; start a worker that "
                      "initialises it",
                      record.name, job.job(), limit->count()));
  });
}

std::vector<std::uint32_t> Worker::Impl::wait_declared(const std::string& name, WaitLimit wait) {
  std::vector<std::uint32_t> positions;
  const auto is_complete = [&] {
    const std::uint32_t first = directory.find(name);
    if (first == shm::kNoVariable) return false;
    positions = directory.parts(first);
    const std::uint32_t last = positions.back();
    return positions.size() == directory.at(first).parts &&
           (config.reduce != Reduce::kAtomic || directory.accumulator(last) != shm::kNoVariable);
  };
  if (is_complete()) return positions;
  Wait waiting(options, wait, 1.0);
  const WaitMark mark(entry, shm::WaitingFor::kVariable, 0);
  shm::wait_for_fact(job.state().activity, is_complete, [&] {
    if (!waiting.slice([&] { return fmt::format("worker {}: waiting for variable '{}' to be declared", rank, name); }))
      throw Error(fmt::format("job '{}' has no variable '{}'; it has {}", job.job(), name,
                              config::what_there_is(name, directory.names())),
                  ErrorCode::kNotFound);
  });
  return positions;
}

// If so, a worker that joins late does not need the checkpoint that the job started from.
bool Worker::Impl::are_initialised(std::span<const VariableSpec> specs) {
  return std::all_of(specs.begin(), specs.end(), [&](const VariableSpec& spec) {
    const std::uint32_t position = directory.find(spec.name);
    return position != shm::kNoVariable &&
           directory.at(position).init.load_acquire() == shm::kInitialised;  // (directory.D6)
  });
}

Variable Worker::variable(const VariableSpec& spec, const Initializer& initialize) {
  return variables(std::span(&spec, 1), [&](std::size_t, std::span<float> out) { initialize(out); }).front();
}

std::vector<Variable> Worker::variables(std::span<const VariableSpec> specs, const IndexedInitializer& initialize) {
  Impl& impl = owned();
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto bytes = [&](std::size_t i) {
    return specs[i].element_count() * bytes_of(specs[i].dtype) * (1 + impl.slots_of(specs[i]));
  };
  if (impl.config.placement == Placement::kGreedy)
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return bytes(a) != bytes(b) ? bytes(a) > bytes(b) : specs[a].name < specs[b].name;
    });
  if (!impl.config.restore.empty() && !impl.are_initialised(specs)) {
    impl.begun_with().require(specs);
  }
  std::vector<VariableState*> states(specs.size());
  for (const std::size_t i : order)
    states[i] = &impl.state_at(impl.directory.declare(specs[i], impl.slots_of(specs[i]), shm::kRankByte + impl.rank));
  std::vector<Variable> handles;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Initializer initialize_one = [&](std::span<float> out) { initialize(i, out); };
    impl.wait_initialised(*states[i], &initialize_one, std::nullopt);
    states[i]->forget_pulls();
    handles.push_back(Variable(states[i]));
  }
  return handles;
}

Variable Worker::variable(const std::string& name, WaitLimit wait) {
  Impl& impl = owned();
  VariableState& state = impl.state_at(impl.wait_declared(name, wait));
  impl.wait_initialised(state, nullptr, wait);
  state.forget_pulls();
  return Variable(&state);
}

}  // namespace ps_shm
