#include "publishing.hpp"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "ps/publisher.hpp"
#include "update/traits.hpp"

namespace ps::tools {
namespace {

// The job's variables as a bundle, and how they get there.
class Bundle {
 public:
  Bundle(JobView& view, const std::string& group, const PublishSettings& settings) : view_(view), settings_(settings) {
    BundleSpec spec{.name = settings.name, .tensors = {}};
    for (const VariableInfo& variable : view.variables()) {
      if (!variable.initialised) continue;
      const bool has_average = settings.averages && !update::traits_of(variable.rule).is_sum;
      spec.tensors.push_back({.name = variable.name, .dtype = variable.dtype, .shape = variable.shape});
      arrays_.push_back(has_average ? variable.slots.size() : 0);  // the last slot
    }
    PublisherOptions options;
    options.group = group;
    publisher_.emplace(spec, options);
  }

  // False: subscribers have leases on all that there is room for.
  bool publish() {
    const Snapshot snapshot = view_.snapshot();
    return publisher_
        ->publish(
            [&](std::uint32_t tensor, std::span<std::byte> out) {
              snapshot.copy(publisher_->spec().tensors[tensor].name, out, arrays_[tensor]);
            },
            snapshot.global_step())
        .has_value();
  }

 private:
  JobView& view_;
  const PublishSettings& settings_;
  std::vector<std::uint64_t> arrays_;  // which one of each variable: its values, or its average
  std::optional<Publisher> publisher_;
};

}  // namespace

Publishing::Publishing(std::string job, std::string group, PublishSettings settings, Notice notice)
    : job_(std::move(job)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      notice_(std::move(notice)),
      thread_([this] { run(); }) {}

Publishing::~Publishing() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

bool Publishing::waits() {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return is_over_; });
}

void Publishing::run() {
  std::optional<JobView> view;
  std::optional<Bundle> bundle;
  std::uint64_t published = 0, next = 1;  // the model is known at the first step's end
  std::string said;
  for (bool goes_on = true; goes_on;) {
    goes_on = waits();
    try {
      if (!view) view.emplace(job_);
      const std::uint64_t step = view->global_step();
      if (step == published || (goes_on && step < next)) continue;
      if (!bundle) bundle.emplace(*view, group_, settings_);
      if (!bundle->publish()) throw Error("its subscribers hold every generation that there is room for");
      published = step;
      next = (step / settings_.every + 1) * settings_.every;
    } catch (const Error& error) {  // training goes on; the next one may come about
      next = view ? view->global_step() + settings_.every : next;
      if (said == error.what()) continue;
      said = error.what();
      notice_(fmt::format("publication {}: {}", settings_.name, said));
    }
  }
}

}  // namespace ps::tools
