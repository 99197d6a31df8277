// Any changes to the segments of a trained job: the inspector reads them and a worker continues training, or both get
// an Error. An input is a list of changes of ten bytes each: segment, width, offset (4), value (4).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "support/hostile.hpp"
#include "support/test_job.hpp"

namespace {

using namespace ps_shm;
using test::Bytes;
using test::SegmentFile;

// Kept to the end of the process; its descriptor holds the ps byte, so that workers find the job alive.
struct Target {
  test::TestJob job;
  std::vector<VariableSpec> specs = {
      {.name = "w", .shape = {40, 30}},
      {.name = "rows", .shape = {3000}, .rule = UpdateRule::kAdd, .layout = Layout::kInplace}};
  std::vector<std::pair<std::string, Bytes>> healthy;

  Target() : job(settings()) {
    job.segments.add_task(1, {});
    test::train_once(job.name.text(), specs);
    for (const std::string& name : job.name.segments()) healthy.emplace_back(name, SegmentFile(name).read());
  }
  static JobConfig settings() {
    JobConfig config;
    config.max_workers = 2;
    config.ps_tasks = 2;
    config.mode = Mode::kSsp;
    config.placement = Placement::kPartition;
    config.step_timeout = Seconds(0.05);
    return config;
  }
};

struct Change {
  std::uint8_t segment, width;
  std::uint32_t where;
  std::uint32_t value;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Target target;
  for (const auto& [name, bytes] : target.healthy) SegmentFile(name).replace(bytes);
  for (; size >= 10; data += 10, size -= 10) {
    Change change;
    change.segment = data[0], change.width = data[1];
    std::memcpy(&change.where, data + 2, 4);
    std::memcpy(&change.value, data + 6, 4);
    const auto& [name, bytes] = target.healthy[change.segment % target.healthy.size()];
    const SegmentFile file(name);
    if (change.width == 0xff) {
      file.cut(change.where % bytes.size());
      break;  // the last one: what follows would make it longer again
    }
    const std::size_t where = change.where % (bytes.size() - 8);
    const std::uint64_t value = change.width % 3 == 2 ? std::uint64_t{change.value} << 32 : change.value;
    file.write(where, &value, change.width % 3 == 0 ? 1 : change.width % 3 == 1 ? 4 : 8);
  }
  try {
    test::inspect_all(target.job.name.text());
  } catch (const Error&) {
  }
  try {
    test::train_once(target.job.name.text(), target.specs);
  } catch (const Error&) {
  }
  return 0;
}
