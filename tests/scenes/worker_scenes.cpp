// Updates in place, age limits, and pulls of several variables as one state.
#include <array>
#include <memory>
#include <optional>

#include "scenes/slot_scene.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "update/elements.hpp"
#include "worker/core.hpp"
#include "worker/free_steps.hpp"

namespace ps_shm::test {
namespace {

// Two exact pushes to one block, and a reader. Elements are no words of the model: a push is interrupted between its load
// of an element and its exchange, and a pull in the middle of its copy.
class InplaceScene : public Scene {
 public:
  explicit InplaceScene(std::uint64_t floats)
      : floats_(floats),
        record_(job_.declare("v", floats, 0, Layout::kInplace)),
        variable_(job_.segments.shard_data(0), record_) {
    explorer.model(&job_.word(record_, 0));  // a single element lies in this word, too
    explorer.name(&job_.word(record_, 0), "pushes");
    if (!variable_.is_scalar()) explorer.remember(variable_.elements(), floats);
    explorer.remember(&log_);
    explorer.at_start([this] {
      running_ = this;
      g_fault_hooks.before_access = [](const void* place, bool) { running_->pause_at(place); };
    });
    for (std::uint32_t rank = 0; rank < 2; ++rank) explorer.add([this, rank] { push(rank); });
    explorer.add([this] { pull(); });
    explorer.at_end([this] { check(); });
  }
  ~InplaceScene() override { g_fault_hooks.before_access = nullptr; }

 private:
  static constexpr std::size_t kMost = 8;

  void pause_at(const void* place) {
    const auto* const first = reinterpret_cast<const std::byte*>(variable_.elements());
    if (place >= first && place < first + floats_ * sizeof(float) && !variable_.is_scalar()) explorer.pause();
  }
  void push(std::uint32_t rank) {
    std::array<float, kMost> gradient;
    gradient.fill(float(1U << rank));
    const auto add = [&](float value, float delta) {
      explorer.saw(std::bit_cast<std::uint32_t>(value));
      explorer.pause();
      return value + delta;
    };
    log_.before[rank] = 1 + variable_.push_block(0, gradient.data(), Adds::kExact, add);
  }
  void pull() {
    log_.counted = variable_.pull_block(0, log_.room.data(), update::FirstFloat{});
    for (std::size_t i = 0; i < floats_; ++i)
      if (std::uint64_t(std::popcount(std::uint32_t(log_.room[i]))) < log_.counted)
        explorer.fail("counted and not there");
  }
  void check() {
    for (std::size_t i = 0; i < floats_; ++i)
      if (variable_.elements()[i] != 3) explorer.fail("an update is lost or doubled");
    if (variable_.pushes(0) != 2 || log_.before[0] + log_.before[1] != 3) explorer.fail("the counter is wrong");
  }

  static inline InplaceScene* running_ = nullptr;

  std::uint64_t floats_;
  TestJob job_{SlotScene::config({})};
  VariableShm& record_;
  InplaceVariable variable_;
  struct {
    std::uint64_t before[2], counted;
    std::array<float, kMost> room;
  } log_ = {};
};

// Workers with an age limit, as FreeSteps has it, each of which makes some steps and pushes to two variables in each
// (steps.D1 to steps.D3). In a step it may use the values of its last pull again.
class AgeScene : public SlotScene {
 public:
  struct Limits {
    std::uint32_t workers = 2, steps = 2, limit = 1;
    bool pulls_always = true, has_values = true;
  };
  explicit AgeScene(const Limits& limits)
      : SlotScene({.floats = 1, .variables = 2, .ranks = limits.workers}), limits_(limits) {
    explorer.model(&job_.segments.global_step());
    explorer.name(&job_.segments.global_step(), "global step");
    explorer.remember(&ages_);
    for (std::uint32_t rank = 0; rank < limits.workers; ++rank) {
      cores_[rank] = std::make_unique<WorkerCore>(WorkerOptions{}, job_.attach(), rank);
      cores_[rank]->live.settings.stale_limit = limits.limit;
      cores_[rank]->note_limits();
      explorer.alias(&cores_[rank]->job.global_step(), &job_.segments.global_step());
      explorer.add([this, rank] { make_steps(rank); });
    }
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < limits_.workers; ++rank) steps_[rank].emplace(*cores_[rank]);
    });
  }
  bool has_happened() const override { return has_dropped_; }

 private:
  static constexpr std::uint32_t kMostWorkers = 3;

  std::uint32_t counted_by_others(std::uint32_t rank) const {
    std::uint32_t counted = 0;
    for (std::uint32_t other = 0; other < limits_.workers; ++other) counted += other == rank ? 0 : ages_.counted[other];
    return counted;
  }
  void make_steps(std::uint32_t rank) {
    FreeBuffers free_buffers(job_.segments, rank);
    FreeSteps& mode = *steps_[rank];
    std::uint32_t since_pull = 0, since_drop = 0;  // steps of others
    bool may_pull_again = true;
    for (std::uint32_t step = 0; step < limits_.steps; ++step) {
      if (limits_.pulls_always || step == 0 || may_pull_again || explorer.pick(2) == 0) {
        mode.note_pull();
        since_pull = counted_by_others(rank);
        explorer.saw(since_pull);
        float value = 0;
        if (limits_.has_values) static_cast<void>(pull_once(0, &value));
      }
      const bool drops = mode.drops_pushes();
      const std::uint32_t counted = counted_by_others(rank);
      explorer.saw(counted);
      // On weak memory the step that it reads may be an old one.
      if (explorer.is_sequential() && !drops && counted - since_pull >= limits_.limit)
        explorer.fail("a gradient that is too old is applied");
      const std::uint32_t number = limits_.steps * rank + step;
      for (const std::uint32_t variable : {0U, 1U}) {
        if (mode.drops_pushes() != drops) return explorer.fail("a step is applied in part");
        if (drops) continue;
        ages_.pushed[variable] |= 1U << number;
        if (limits_.has_values) push_once(rank, free_buffers, variable, number);
      }
      static_cast<void>(mode.step());
      if (drops) {
        ++ages_.dropped[rank];
        if (explorer.is_sequential() && counted_by_others(rank) <= since_drop)
          explorer.fail("dropped, and no other worker has come forward");
        since_drop = counted_by_others(rank);
        explorer.saw(since_drop);
      } else {
        ++ages_.counted[rank];
      }
      may_pull_again = drops;
    }
  }
  void check() override {
    std::uint64_t counted = 0, dropped = 0;
    for (std::uint32_t rank = 0; rank < limits_.workers; ++rank)
      counted += ages_.counted[rank], dropped += ages_.dropped[rank];
    for (const std::uint32_t variable : {0U, 1U}) {
      float value = 0;
      const std::uint64_t version = pull_once(variable, &value);
      if (limits_.has_values && value != float(ages_.pushed[variable]))
        explorer.fail("a dropped push has left something, or another one is missing");
      if (limits_.has_values && version != counted) explorer.fail("a step is in one variable alone");
      if (std::uint64_t(std::popcount(ages_.pushed[variable])) != counted) explorer.fail("a dropped step is counted");
    }
    if (job_.segments.steps_done() != counted) explorer.fail("a dropped step is counted");
    if (counted + dropped != limits_.workers * limits_.steps || (explorer.is_sequential() && counted < limits_.steps))
      explorer.fail("all drop");
    has_dropped_ |= dropped != 0;
  }

  struct {
    std::uint32_t counted[kMostWorkers], dropped[kMostWorkers], pushed[2];
  } ages_ = {};
  Limits limits_;
  std::array<std::unique_ptr<WorkerCore>, kMostWorkers> cores_;
  std::array<std::optional<FreeSteps>, kMostWorkers> steps_;
  bool has_dropped_ = false;
};

SceneCase age_scene(std::string name, const AgeScene::Limits& limits, Size size = Size::kMedium) {
  return {std::move(name), [limits] { return std::make_unique<AgeScene>(limits); }, size};
}

// Workers add the same to both variables, announced under their rank. One more pulls both as one state, and tries once
// (state.R1 to state.R3).
class StateScene : public SlotScene {
 public:
  StateScene(std::uint32_t writers, std::uint32_t pushes)
      : SlotScene({.floats = 1, .variables = 2, .ranks = writers + 1}) {
    for (std::uint32_t rank = 0; rank < writers; ++rank) {
      explorer.model(&job_.segments.worker(rank).pushing);
      explorer.name(&job_.segments.worker(rank).pushing, fmt::format("pushing {}", rank));
      explorer.add([this, rank, pushes] {
        FreeBuffers free_buffers(job_.segments, rank);
        for (std::uint32_t i = 0; i < pushes; ++i) {
          begin_push(job_.segments, rank, job_.segments.worker(rank));
          for (const std::uint32_t variable : {0U, 1U}) push_once(rank, free_buffers, variable, rank * pushes + i);
          end_push(job_.segments.worker(rank));
        }
      });
    }
    for (std::uint32_t& of_variable : pushes_of_) of_variable = (1U << writers * pushes) - 1;
    certain_ = pushes_of_[0];
    explorer.add([this, writers] { pull_both(writers); });
  }
  bool has_happened() const override { return has_pulled_; }

 private:
  void pull_both(std::uint32_t own) {
    float out[2] = {};
    std::uint64_t versions[2];
    for (const std::uint32_t variable : {0U, 1U}) versions[variable] = pull_once(variable, out + variable);
    if (is_any_pushing(job_.segments, own, false)) return;
    for (const std::uint32_t variable : {0U, 1U})
      if (variables_[variable].version(0) != versions[variable]) return;
    has_pulled_ = true;
    if (out[0] != out[1]) explorer.fail("a part of a push");
  }

  bool has_pulled_ = false;
};

SceneCase inplace_scene(std::uint64_t floats) {
  return {fmt::format("in place: two pushes and a pull of {} floats", floats),
          [floats] { return std::make_unique<InplaceScene>(floats); }};
}

}  // namespace

std::vector<SceneCase> scenes_in_place() {
  return {inplace_scene(1), inplace_scene(2), inplace_scene(4), inplace_scene(7)};  // exchanges of 4, 8 and 16 bytes
}

std::vector<SceneCase> scenes_of_workers() {
  return {
      age_scene("ages: two workers with a limit of one step", {}),
      age_scene("ages: two workers that make three steps, not all of them with a pull",
                {.steps = 3, .pulls_always = false, .has_values = false}),
      age_scene("ages: two workers with a limit of two steps",
                {.steps = 3, .limit = 2, .pulls_always = false, .has_values = false}),
      age_scene("ages: three workers", {.workers = 3, .pulls_always = false, .has_values = false}),
      {"state: a pull of two variables beside two pushes", [] { return std::make_unique<StateScene>(1, 2); },
       Size::kMedium},
      {"state: a pull of two variables beside two workers", [] { return std::make_unique<StateScene>(2, 1); },
       Size::kMedium},
  };
}

}  // namespace ps_shm::test
