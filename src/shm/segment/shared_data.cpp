#include "shm/segment/shared_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ps_shm/errors.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/attach_outcome.hpp"

namespace ps_shm::shm {

std::optional<SharedData> SharedData::try_attach(const JobSegments& job) {
  const std::string name = data_name(job.job());
  Segment segment;
  const AttachOutcome found = segment.open(name, Access::kReadOnly, job.trust());
  if (found == AttachOutcome::kAbsent) return std::nullopt;
  if (found != AttachOutcome::kReady) throw attach_error(found, name);
  if (segment.header().instance != job.instance()) return std::nullopt;  // data.D3
  if (!segment.is_of(SegmentKind::kData, 0, job.job(), job.instance()))
    fail_damaged(name, "it is not the shared data of that job");
  SharedData data(std::move(segment));
  const std::size_t usable = data.segment_.usable_bytes();
  if (usable < kSharedDataOffset || data.record().bytes != usable - kSharedDataOffset ||
      data.segment_.header().initial_bytes != usable)
    fail_damaged(name, "its size is not the one it was created with");
  return data;
}

void SharedData::make(JobSegments& job, const std::string& content, const std::function<void(const Allocate&)>& load) {
  const std::string name = data_name(job.job());
  Segment segment;
  load([&](std::size_t bytes) {
    const std::size_t all = kSharedDataOffset + bytes;
    segment = Segment::create(SegmentKind::kData, 0, job.job(), job.instance(), all, all, job.control().sharing());
    fault_point(FaultPoint::kDataMade);
    auto& record = *reinterpret_cast<SharedDataShm*>(segment.data() + kSharedRecordOffset);
    record.bytes = bytes;
    record.content_bytes = content.size();
    content.copy(record.content, sizeof record.content);
    return std::span(segment.data() + kSharedDataOffset, bytes);
  });
  if (!segment.is_mapped())
    throw Error(fmt::format("no data was loaded for /dev/shm/{}", name), ErrorCode::kInvalidState);
  fault_point(FaultPoint::kDataFilled);
  segment.publish();  // before it has a name: no process finds it incomplete
  fault_point(FaultPoint::kDataPublished);
  unlink_segment(name);  // data.D3
  fault_point(FaultPoint::kDataCleared);
  if (!segment.link(name))
    throw Error(
        fmt::format("cannot name /dev/shm/{}: something that belongs to {} has the name; remove it, or choose another "
                    "job name",
                    name, owner_of(name)),
        ErrorCode::kAlreadyExists);
  fault_point(FaultPoint::kDataNamed);
  futex_announce(job.state().activity);
  fault_point(FaultPoint::kDataAnnounced);
}

bool SharedData::is_of(const std::string& content) const noexcept {
  const SharedDataShm& found = record();
  return found.content_bytes == content.size() &&
         std::memcmp(found.content, content.data(), std::min(content.size(), sizeof found.content)) == 0;
}

std::string SharedData::content() const { return std::string(text_of(record().content)); }

std::span<const std::byte> SharedData::bytes() const noexcept {
  return {segment_.data() + kSharedDataOffset, segment_.usable_bytes() - kSharedDataOffset};
}

}  // namespace ps_shm::shm
