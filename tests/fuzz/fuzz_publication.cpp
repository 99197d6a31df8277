// Any changes to the segment of an unused publication: the inspector and a subscriber read it and a publisher takes it
// over, or they get an Error. An input is a list of changes of nine bytes each: width, offset (4), value (4).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ps_shm/errors.hpp"
#include "support/hostile.hpp"
#include "support/test_bundle.hpp"

namespace {

using namespace ps_shm;
using test::Bytes;
using test::SegmentFile;

// Kept to the end of the process.
struct Target {
  test::PublicationName name;
  BundleSpec spec = test::bundle_of(name);
  Bytes healthy;

  Target() {
    spec.records = 4;
    Publisher publisher(spec);
    Subscriber subscriber(name.text());
    for (int i = 0; i < 3; ++i) test::publish_next(publisher);
    const Generation held = subscriber.read();
    test::publish_next(publisher);
    healthy = SegmentFile(name.file()).read();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Target target;
  shm::unlink_segment(target.name.file());
  {
    const SegmentFile file(target.name.file(), O_RDWR | O_CREAT);
    file.replace(target.healthy);
    for (; size >= 9; data += 9, size -= 9) {
      const std::uint8_t width = data[0];
      std::uint32_t where, value;
      std::memcpy(&where, data + 1, 4);
      std::memcpy(&value, data + 5, 4);
      if (width == 0xff) {
        file.cut(where % target.healthy.size());
        break;  // the last one: what follows would make it longer again
      }
      const std::uint64_t wide = width % 3 == 2 ? std::uint64_t{value} << 32 : value;
      file.write(where % (target.healthy.size() - 8), &wide, width % 3 == 0 ? 1 : width % 3 == 1 ? 4 : 8);
    }
  }
  try {
    test::use_publication(target.spec);
  } catch (const Error&) {
  }
  return 0;
}
