#include "ps/job_control.hpp"

#include <fmt/format.h>

#include <utility>

#include "ps/errors.hpp"
#include "shm/live_settings.hpp"

namespace ps {

struct JobControl::Impl {
  shm::JobSegments job;
  JobConfig config;
};

JobControl::JobControl(const std::string& name) {
  check_job_name(name);
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach(name, shm::Access::kReadWrite, outcome);
  if (!job) throw Error(shm::describe(outcome, shm::control_name(name)));
  if (!job->locks().is_in_use_by_other())
    throw Error(fmt::format("job '{}' is dead: nobody would take notice of a change", name));
  JobConfig config = job->settings();
  impl_ = std::make_unique<Impl>(Impl{std::move(*job), std::move(config)});
}

JobControl::~JobControl() = default;
JobControl::JobControl(JobControl&&) noexcept = default;

const JobConfig& JobControl::config() const noexcept { return impl_->config; }
LiveSettings JobControl::current() const noexcept { return shm::read_live(impl_->job).settings; }

void JobControl::change(const LiveSettings& settings) {
  check(settings, impl_->config);
  if (impl_->job.is_over()) throw Error(fmt::format("job '{}' is over: nothing is changed", impl_->job.job()));
  if (!shm::try_change_live(impl_->job, settings))
    throw Error(
        fmt::format("somebody else is changing the settings of job '{}' at this moment; try again", impl_->job.job()));
}

}  // namespace ps
