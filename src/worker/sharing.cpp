// The data that the workers of a job share read-only (shared_data.hpp): which worker loads it, and how the others wait.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/shared_data.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

void Worker::Impl::try_load(const std::string& content, const SharedLoader& load) {
  if (!job.locks().try_take(shm::kLoaderByte)) return;
  shm::fault_point(shm::FaultPoint::kDataTaken);
  try {
    if (!shm::SharedData::try_attach(job)) shm::SharedData::make(job, content, load);  // else another was faster
  } catch (...) {
    job.locks().release(shm::kLoaderByte);  // the next one may try
    throw;
  }
  job.locks().release(shm::kLoaderByte);
  shm::fault_point(shm::FaultPoint::kDataReleased);
}

SharedBytes Worker::shared_data(const std::string& content, const SharedLoader& load) {
  Impl& impl = owned();
  std::optional<shm::SharedData> found = shm::SharedData::try_attach(impl.job);
  if (!found) {
    Wait wait(impl.options, std::nullopt, 1.0);
    const WaitMark mark(impl.entry, shm::WaitingFor::kData, 0);
    impl.try_load(content, load);
    const auto is_there = [&] {
      found = shm::SharedData::try_attach(impl.job);
      return found.has_value();
    };
    const auto each_slice = [&] {
      impl.try_load(content, load);  // its loader has died or failed
      if (impl.job.is_over()) throw JobFinished(fmt::format("job {} was ended", impl.job.job()));
      (void)wait.slice([&] { return fmt::format("worker {}: waiting for the shared data to be loaded", impl.rank); });
    };
    // Loading takes long, and each poll is a system call: no spinning.
    shm::wait_for_fact(impl.job.state().activity, is_there, each_slice, {.spins = 0, .yields = 0});
  }
  if (!found->is_of(content))
    throw Error(fmt::format("the workers of job '{}' already share {}, not {}; give all of them the same data",
                            impl.job.job(), found->content(), content),
                ErrorCode::kInvalidState);
  const auto kept = std::make_shared<const shm::SharedData>(std::move(*found));
  return {kept, kept->bytes()};
}

}  // namespace ps_shm
