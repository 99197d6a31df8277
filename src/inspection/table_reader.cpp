#include "inspection/table_reader.hpp"

#include <optional>
#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/segment/live_settings.hpp"

namespace ps_shm {

shm::JobSegments TableReader::attached(const std::string& job) {
  shm::AttachOutcome outcome;
  std::optional<shm::JobSegments> found =
      shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
  if (!found) throw shm::attach_error(outcome, shm::control_name(job));
  return std::move(*found);
}

TableReader::TableReader(const std::string& job, const std::string& table)
    : job_(attached(job)), table_(open_table_named(job_, table)) {}

std::vector<KeyedRow> TableReader::rows(std::vector<std::uint32_t>& marks) const {
  std::vector<KeyedRow> found = copy_rows(job_, table_, shm::read_live(job_).settings.learning_rate, 0, &marks);
  require_whole(table_);
  return found;
}

}  // namespace ps_shm
