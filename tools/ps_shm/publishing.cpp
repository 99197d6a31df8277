#include "ps_shm/publishing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "shm/publication/bundle.hpp"
#include "update/traits.hpp"

namespace ps_shm::tools {

// Publishes the job's variables as a bundle.
class Publishing::Bundle {
 public:
  Bundle(JobView& view, const std::string& group, const PublishSettings& settings)
      : view_(view), group_(group), publishes_partial_(settings.partial) {
    BundleSpec spec{.name = settings.name, .tensors = {}};
    for (const VariableInfo& variable : view.variables()) {
      if (!variable.initialised) continue;
      const bool has_average = settings.averages && !update::traits_of(variable.rule).is_sum;
      spec.tensors.push_back(
          {.name = variable.name, .dtype = has_average ? DType::kFloat32 : variable.dtype, .shape = variable.shape});
      slots_.push_back(has_average ? variable.slots.back() : "");
    }
    PublisherOptions options;
    options.group = group;
    publisher_.emplace(spec, options);
  }

  // Whether the newest generation equals the job's current values, bit for bit. Of the last call.
  bool is_up_to_date() {
    const Snapshot snapshot = view_.snapshot({.wait = longest_wait(true)}, group_);
    std::vector<std::byte> now;
    for (std::uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
      const std::span<const std::byte> newest = publisher_->tensor(tensor);
      now.resize(newest.size());
      snapshot.copy(publisher_->spec().tensors[tensor].name, now, slots_[tensor]);
      if (!std::equal(now.begin(), now.end(), newest.begin())) return false;
    }
    return true;
  }

  // False: subscribers hold leases on all generations that fit. Throws Error for a state that has a part of a push,
  // unless such states are asked for: a generation promises complete pushes, so that state is left out.
  bool publish(bool is_last) {
    const Snapshot snapshot = view_.snapshot({.wait = longest_wait(is_last)}, group_);
    const bool is_partial = !snapshot.partial_ranks().empty();
    if (is_partial && !publishes_partial_) {
      ++left_out_;
      throw Error(fmt::format("not published: a push of worker {} is unfinished, and a part of it would be visible",
                              fmt::join(snapshot.partial_ranks(), ", ")),
                  ErrorCode::kUnavailable);
    }
    std::optional<Publisher::Writing> writing = publisher_->begin();
    if (!writing) return false;
    for (std::uint32_t tensor = 0; tensor < slots_.size(); ++tensor)
      snapshot.copy(publisher_->spec().tensors[tensor].name, writing->out(tensor), slots_[tensor]);
    writing->commit(snapshot.global_step(), is_partial);
    return true;
  }

  // How many states have been left out since the last call.
  std::uint64_t take_left_out() noexcept { return std::exchange(left_out_, 0); }

 private:
  JobView& view_;
  const std::string group_;
  const bool publishes_partial_;
  std::vector<std::string> slots_;  // for each variable that of its average; empty: its values
  std::optional<Publisher> publisher_;
  std::uint64_t left_out_ = 0;
};

Publishing::Publishing(std::string job, std::string group, PublishSettings settings, LogCallback log)
    : job_(std::move(job)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      log_(std::move(log)),
      repeating_(
          [this](bool is_last) { return look(is_last); },
          [this](const std::string& what, bool) { log_(fmt::format("publication {}: {}", settings_.name, what)); }) {}

// A job that has published nothing leaves no publication, not even one that a ps before it left behind.
Publishing::~Publishing() {
  repeating_.finish();
  if (bundle_) return;
  try {
    if (shm::remove_bundle(settings_.name, -1, {.group = shm::shared_with_group(group_).group}) ==
        shm::RemoveOutcome::kRemoved)
      log_(fmt::format("publication {}: removed what a dead publisher had left", settings_.name));
  } catch (const Error& error) {
    log_(error.what());
  }
}

bool Publishing::look(bool is_last) {
  if (!view_) {
    view_.emplace(job_);
    published_ = view_->info().config.first_step;  // also of a job that resumes the model is unknown until then
  }
  const std::uint64_t step = view_->global_step();
  const double now = steady_seconds();
  // There may be pushes after the last step: the last generation has the final state of the job.
  if (step == published_ && (!is_last || !bundle_ || bundle_->is_up_to_date())) return false;
  if (!is_last && due_ && !due_->is_now(now, step)) return false;
  if (!due_) due_.emplace(settings_.every, now, step);
  due_->move_past(now, step);  // even after a failure: training continues, and the next attempt may succeed
  if (!bundle_) bundle_ = std::make_unique<Bundle>(*view_, group_, settings_);
  if (!bundle_->publish(is_last)) throw Error("its subscribers hold every generation that fits");
  if (const std::uint64_t left_out = bundle_->take_left_out(); left_out != 0)
    log_(fmt::format("publication {}: published again; left out: {} {} with an unfinished push", settings_.name,
                     left_out, left_out == 1 ? "state" : "states"));
  published_ = step;
  return true;
}

}  // namespace ps_shm::tools
