#include "ps_shm/job_control.hpp"

#include <fmt/format.h>

#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/segment/live_settings.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN JobControl::Impl {
  shm::JobSegments job;
};

JobControl::JobControl(const std::string& name, const std::string& group) {
  check_job_name(name);
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach(name, shm::Access::kReadWrite, outcome,
                                          {.group = shm::shared_with_group(group).group});
  if (!job) throw shm::attach_error(outcome, shm::control_name(name));
  if (!job->locks().is_in_use_by_other())
    throw Error(fmt::format("job '{}' is dead: no process would apply the change", name), ErrorCode::kInvalidState);
  impl_ = std::make_unique<Impl>(Impl{std::move(*job)});
}

JobControl::~JobControl() = default;
JobControl::JobControl(JobControl&&) noexcept = default;

const JobConfig& JobControl::config() const noexcept { return impl_->job.config(); }

LiveSettings JobControl::current() const {
  impl_->job.refuse_inherited("control of the job");
  return shm::read_live(impl_->job).settings;
}

void JobControl::change(const std::function<void(LiveSettings&)>& edit) {
  impl_->job.refuse_inherited("control of the job");
  if (impl_->job.is_over())
    throw Error(fmt::format("job '{}' is over: nothing is changed", impl_->job.job()), ErrorCode::kInvalidState);
  const auto checked = [&](LiveSettings& settings) {
    edit(settings);
    check(settings, impl_->job.config());
  };
  if (!shm::try_change_live(impl_->job, checked))
    throw Error(
        fmt::format("another process is changing the settings of job '{}' right now; try again", impl_->job.job()),
        ErrorCode::kUnavailable);
}

}  // namespace ps_shm
