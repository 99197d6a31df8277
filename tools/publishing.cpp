#include "publishing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ps/errors.hpp"
#include "ps/publisher.hpp"
#include "update/traits.hpp"

namespace ps::tools {

// The job's variables as a bundle, and how they get there.
class Publishing::Bundle {
 public:
  Bundle(JobView& view, const std::string& group, const PublishSettings& settings) : view_(view) {
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

  // Whether the newest generation has the job's values of this moment, bit for bit.
  bool is_up_to_date() {
    const Snapshot snapshot = view_.snapshot();
    std::vector<std::byte> now;
    for (std::uint32_t tensor = 0; tensor < arrays_.size(); ++tensor) {
      const std::span<const std::byte> newest = publisher_->tensor(tensor);
      now.resize(newest.size());
      snapshot.copy(publisher_->spec().tensors[tensor].name, now, arrays_[tensor]);
      if (!std::equal(now.begin(), now.end(), newest.begin())) return false;
    }
    return true;
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
  std::vector<std::uint64_t> arrays_;  // which one of each variable: its values, or its average
  std::optional<Publisher> publisher_;
};

Publishing::Publishing(std::string job, std::string group, PublishSettings settings, Notice notice)
    : job_(std::move(job)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      notice_(std::move(notice)),
      repeating_([this](bool is_last) { look(is_last); }) {}

Publishing::~Publishing() = default;

void Publishing::look(bool is_last) try {
  if (!view_) view_.emplace(job_);
  const std::uint64_t step = view_->global_step();
  const double now = steady_seconds();
  // A push may have come behind the last step: what is published last is what the job has come to.
  if (step == published_ && (!is_last || !bundle_ || bundle_->is_up_to_date())) return;
  if (!is_last && due_ && !due_->is_now(now, step)) return;
  if (!due_) due_.emplace(settings_.every, now, step);
  due_->move_past(now, step);  // whatever comes of it: training goes on, and the next one may come about
  if (!bundle_) bundle_ = std::make_unique<Bundle>(*view_, group_, settings_);
  if (!bundle_->publish()) throw Error("its subscribers hold every generation that there is room for");
  published_ = step;
} catch (const Error& error) {
  if (said_ == error.what()) return;
  said_ = error.what();
  notice_(fmt::format("publication {}: {}", settings_.name, said_));
}

}  // namespace ps::tools
