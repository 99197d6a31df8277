#include "common/summaries.hpp"

#include <fmt/format.h>

#include <utility>

#include "common/repeating.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

SummaryWriter::SummaryWriter(const SummarySettings& settings, const std::string& folder, persistence::Summary opening,
                             LogCallback log)
    : every_(settings.every), file_(settings.dir + "/" + folder, std::move(opening)), log_(std::move(log)) {}

bool SummaryWriter::is_due(std::uint64_t step) const { return !due_ || due_->is_now(steady_seconds(), step); }

void SummaryWriter::write(std::uint64_t step, const persistence::Summary& summary) {
  if (!due_) due_.emplace(every_, steady_seconds(), step);
  due_->move_past(steady_seconds(), step);
  written_ = step;
  try {
    file_.write(step, summary);
    if (std::exchange(is_failing_, false)) log_("summaries are being written again");
  } catch (const Error& error) {
    if (!std::exchange(is_failing_, true))
      log_(fmt::format("cannot write summaries: {}; training continues", error.what()));
  }
}

std::optional<double> Speed::per_second(double seconds, std::uint64_t count) {
  std::optional<double> speed;
  if (seconds_ && seconds > *seconds_ && count >= count_) speed = double(count - count_) / (seconds - *seconds_);
  seconds_ = seconds, count_ = count;
  return speed;
}

std::string summaries_line(const std::string& dir) {
  return fmt::format("the summaries are in {0}; tensorboard --logdir {0} shows them", dir);
}

}  // namespace ps_shm::tools
