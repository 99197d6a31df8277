// Segment on files in /dev/shm: what attaching finds, growing, names, modes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/segment/liveness.hpp"
#include "support/job.hpp"
#include "support/own_shm.hpp"
#include "support/processes.hpp"
#include "support/unnamed_files.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::check_in_own_shm;
using test::Child;
using test::JobName;

namespace {

constexpr std::size_t kBytes = 8192, kReserved = 1 << 20;

std::string path(const std::string& name) { return "/dev/shm/" + name; }

Segment linked(const JobName& name, bool published = true) {
  Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, kReserved);
  REQUIRE(segment.link(name.control()));
  if (published) segment.publish();
  return segment;
}

AttachOutcome outcome_of(const JobName& name, Access access = Access::kReadWrite) {
  return Segment().open(name.control(), access);
}

void write_file(const JobName& name, const std::string& content) {
  const int file = ::open(path(name.control()).c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(::write(file, content.data(), content.size()) == ssize_t(content.size()));
  ::close(file);
}

}  // namespace

TEST_CASE("segment: an unused name is absent") {
  const JobName name;
  CHECK(outcome_of(name) == AttachOutcome::kAbsent);
}

TEST_CASE("segment: without a name nobody finds it") {
  const JobName name;
  const Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, kReserved);
  CHECK(name.segments().empty());
}

TEST_CASE("segment: one that is linked but not published is being created") {
  const JobName name;
  const Segment segment = linked(name, false);
  CHECK(outcome_of(name) == AttachOutcome::kBeingCreated);
}

TEST_CASE("segment: a published one is ready, with its creator's header and bytes") {
  const JobName name;
  Segment segment = linked(name);
  segment.data()[kBytes - 1] = std::byte{42};
  Segment other;
  REQUIRE(other.open(name.control(), Access::kReadOnly) == AttachOutcome::kReady);
  CHECK(other.data() != segment.data());
  CHECK(other.header().instance == 77);
  CHECK(other.header().job == name.text());
  CHECK(other.header().creator_pid == std::uint32_t(getpid()));
  CHECK(other.data()[kBytes - 1] == std::byte{42});
}

TEST_CASE("segment: a new one is zero after its header") {
  const JobName name;
  const Segment segment = Segment::create(SegmentKind::kShard, 3, name.text(), 77, kBytes, kReserved);
  CHECK(std::all_of(segment.data() + sizeof(HeaderShm), segment.data() + kBytes,
                    [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_CASE("segment: another layout version is refused") {
  const JobName name;
  const Segment segment = linked(name);
  segment.header().layout_version.store_release(kLayoutVersion + 1);
  CHECK(outcome_of(name) == AttachOutcome::kOtherVersion);
}

TEST_CASE("segment: another build's structures are refused") {
  const JobName name;
  const Segment segment = linked(name);
  segment.header().fingerprint ^= 1;
  CHECK(outcome_of(name) == AttachOutcome::kOtherBuild);
}

TEST_CASE("segment: a wrong magic number is damage, even before the version is there") {
  const JobName name;
  const Segment segment = linked(name, false);
  segment.header().magic ^= 1;
  CHECK(outcome_of(name) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: an empty file is damage") {
  const JobName name;
  write_file(name, "");
  CHECK(outcome_of(name) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: a file shorter than a header is damage") {
  const JobName name;
  write_file(name, std::string(sizeof(HeaderShm) - 1, 'x'));
  CHECK(outcome_of(name) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: a file shorter than its initial size is damage") {
  const JobName name;
  const Segment segment = linked(name);
  REQUIRE(ftruncate(segment.descriptor(), kBytes - 1) == 0);
  CHECK(outcome_of(name) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: sizes that contradict each other are damage") {
  const JobName name;
  const Segment segment = linked(name);
  SUBCASE("reserved size below the initial size") { segment.header().reserved_bytes = kBytes - 1; }
  SUBCASE("initial size below a header") { segment.header().initial_bytes = sizeof(HeaderShm) - 1; }
  SUBCASE("reserved size beyond the address space") { segment.header().reserved_bytes = std::uint64_t{1} << 60; }
  CHECK(outcome_of(name) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: a symbolic link is damage, whatever its target") {
  const JobName name, target;
  const Segment segment = linked(target);
  REQUIRE(symlink(path(target.control()).c_str(), path(name.control()).c_str()) == 0);
  CHECK(outcome_of(name) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: a FIFO is damage and blocks nobody") {
  const JobName name;
  REQUIRE(mkfifo(path(name.control()).c_str(), 0600) == 0);
  CHECK(outcome_of(name, Access::kReadOnly) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: another user's segment is reported as missing permission" * doctest::skip(geteuid() == 0)) {
  const JobName name;
  const Segment segment = linked(name);
  REQUIRE(fchmod(segment.descriptor(), 0) == 0);
  CHECK(outcome_of(name) == AttachOutcome::kNoPermission);
}

TEST_CASE("segment: every outcome but ready has a message that names the segment, or the job that does not exist") {
  for (const AttachOutcome outcome :
       {AttachOutcome::kBeingCreated, AttachOutcome::kOtherVersion, AttachOutcome::kOtherBuild, AttachOutcome::kDamaged,
        AttachOutcome::kNoPermission})
    CHECK(describe(outcome, "ps_shm.some").find("/dev/shm/ps_shm.some") != std::string::npos);
  CHECK(describe(AttachOutcome::kAbsent, "ps_shm.some.1") == "there is no segment /dev/shm/ps_shm.some.1");
  const JobName name;
  const Segment segment = linked(name);
  std::string mistyped = name.control();
  mistyped.back() = 'x';
  const std::string said = describe(AttachOutcome::kAbsent, mistyped);
  CHECK(said.find("there is no job '" + mistyped.substr(7) + "'") == 0);
  CHECK(said.find("did you mean test-") != std::string::npos);  // this job, or that of a test beside this one
  CHECK(describe(AttachOutcome::kAbsent, "ps_shm_publication.some").find("there is no publication 'some'") == 0);
  CHECK(describe(AttachOutcome::kReady, "ps_shm.some").empty());
}

TEST_CASE("segment: one that is not ready keeps its descriptor for locks and maps nothing") {
  const JobName name;
  const Segment segment = linked(name, false);
  Segment other;
  REQUIRE(other.open(name.control(), Access::kReadWrite) == AttachOutcome::kBeingCreated);
  CHECK(other.descriptor() >= 0);
  CHECK_FALSE(other.is_mapped());
}

TEST_CASE("segment: a name can be used only once") {
  const JobName name;
  const Segment segment = linked(name);
  Segment late = Segment::create(SegmentKind::kControl, 0, name.text(), 78, kBytes, kReserved);
  CHECK_FALSE(late.link(name.control()));
  CHECK(segment.is_named(name.control()));
  CHECK_FALSE(late.is_named(name.control()));
}

TEST_CASE("segment: the file is accessible to its owner only, whatever the umask") {
  const JobName name;
  const mode_t before = umask(0777);
  const Segment segment = linked(name);
  umask(before);
  struct stat status;
  REQUIRE(stat(path(name.control()).c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
}

TEST_CASE("segment: its descriptor does not survive exec") {
  const JobName name;
  const Segment segment = linked(name);
  Segment other;
  REQUIRE(other.open(name.control(), Access::kReadOnly) == AttachOutcome::kReady);
  CHECK((fcntl(segment.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((fcntl(other.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("segment: a raised descriptor has one of the highest numbers, and the locks that it had") {
  const JobName name;
  const Segment segment = linked(name);
  Child child([&] {
    rlimit limit{64, 64};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    Segment opened, second, third;
    for (Segment* one : {&opened, &second, &third})
      if (one->open(name.control(), Access::kReadWrite) != AttachOutcome::kReady) return 2;
    const int before = opened.descriptor(), low = third.descriptor();
    if (!TaskLocks(before).try_take(kRankByte)) return 3;
    opened.raise_descriptor();
    second.raise_descriptor();
    if (opened.descriptor() != 48 || second.descriptor() != 49 || fcntl(before, F_GETFD) != -1) return 4;
    if ((fcntl(opened.descriptor(), F_GETFD) & FD_CLOEXEC) == 0) return 5;
    if (!TaskLocks(second.descriptor()).is_held_by_other(kRankByte)) return 6;
    opened.raise_descriptor();
    if (opened.descriptor() != 48) return 7;
    for (int number = 50; number < 64; ++number)
      if (dup2(0, number) != number) return 8;
    third.raise_descriptor();
    return third.descriptor() == low && third.is_named(name.control()) ? 0 : 9;
  });
  CHECK(child.join() == 0);
}

TEST_CASE("segment: a raised descriptor does not need a large table where there is no limit to speak of") {
  const JobName name;
  const Segment segment = linked(name);
  Child child([&] {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    Segment opened;
    if (opened.open(name.control(), Access::kReadWrite) != AttachOutcome::kReady) return 3;
    opened.raise_descriptor();
    return opened.descriptor() < 4096 ? 0 : 4;
  });
  CHECK(child.join() == 0);
}

TEST_CASE(
    "segment: where files cannot be without a name, a new one has a hidden one, which the next creator removes if it "
    "is "
    "of a dead process") {
  const JobName name, other;
  const std::string left = ".ps_shm_new.left";
  ::close(::open(path(left).c_str(), O_CREAT | O_WRONLY, 0600));
  const auto hidden = [] { return list_segments(".ps_shm_new.").size(); };
  Child child([&] {
    if (!test::refuse_unnamed_files()) return 1;
    if (::open("/dev/shm", O_TMPFILE | O_RDWR, 0600) >= 0) return 2;
    Segment made = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, kReserved);
    if (!list_segments(left).empty() || hidden() != 1) return 3;
    {
      Segment another = Segment::create(SegmentKind::kControl, 0, name.text(), 78, kBytes, kReserved);
      if (hidden() != 2 || !name.segments().empty()) return 4;
      if (!made.link(name.control()) || another.link(name.control())) return 5;
      if (!another.link(other.control())) return 6;
      const Segment unused = Segment::create(SegmentKind::kControl, 0, name.text(), 79, kBytes, kReserved);
      if (hidden() != 1) return 7;
    }
    made.publish();
    return hidden() == 0 && made.is_named(name.control()) ? 0 : 8;
  });
  CHECK(child.join() == 0);
  CHECK(outcome_of(name) == AttachOutcome::kReady);
}

TEST_CASE("segment: growing gives bytes that are reserved, zero and visible to earlier attachments") {
  const JobName name;
  Segment segment = linked(name);
  Segment other;
  REQUIRE(other.open(name.control(), Access::kReadWrite) == AttachOutcome::kReady);
  segment.grow(16 * kBytes);
  CHECK(segment.file_bytes() == 16 * kBytes);
  struct stat status;
  REQUIRE(fstat(segment.descriptor(), &status) == 0);
  CHECK(std::size_t(status.st_blocks) * 512 >= 16 * kBytes);
  CHECK(other.data()[16 * kBytes - 1] == std::byte{0});
}

TEST_CASE("segment: growing to less than its size changes nothing") {
  const JobName name;
  Segment segment = linked(name);
  segment.grow(1);
  CHECK(segment.file_bytes() == kBytes);
}

TEST_CASE("segment: growing beyond the reserved size is an error that changes nothing") {
  const JobName name;
  Segment segment = linked(name);
  segment.grow(kReserved);
  CHECK_THROWS_AS(segment.grow(kReserved + 1), Error);
  CHECK(segment.file_bytes() == kReserved);
}

TEST_CASE("segment: a full /dev/shm is an error, and the existing bytes stay usable") {
  check_in_own_shm("size=16m", [] {  // with a small one of its own: that of the machine may be larger than its memory
    const JobName name;
    const std::size_t too_much = shm_free_bytes() + (std::size_t{64} << 20);
    Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, 2 * too_much);
    const auto is_refused = [](auto&& call) {
      try {
        call();
        return false;
      } catch (const Error& error) {
        return std::string(error.what()).find("/dev/shm has") != std::string::npos;
      }
    };
    if (!is_refused([&] { segment.grow(too_much); })) return 1;
    if (segment.file_bytes() != kBytes) return 2;
    segment.data()[kBytes - 1] = std::byte{1};
    const auto create = [&] { Segment::create(SegmentKind::kControl, 0, name.text(), 77, too_much, too_much); };
    return is_refused(create) ? 0 : 3;
  });
}

TEST_CASE("segment: what does not fit into /dev/shm is refused before anything of it is taken") {
  check_in_own_shm("size=512m", [] {
    const JobName name;
    Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, std::size_t{1} << 30);
    const test::Filler filler(std::size_t{256} << 20);
    std::atomic<bool> is_over{false};
    std::size_t least = shm_free_bytes();
    std::thread watcher([&] {
      while (!is_over.load()) least = std::min(least, shm_free_bytes());
    });
    int refused = 0;
    for (int i = 0; i < 5; ++i) try {
        segment.grow(std::size_t{400} << 20);  // less than there is, more than is free
      } catch (const Error& error) {
        refused += error.code() == ErrorCode::kNoSpace;
      }
    is_over = true;
    watcher.join();
    if (refused != 5) return 1;
    return least > (std::size_t{255} << 20) ? 0 : 2;
  });
}

TEST_CASE("segment: two that grow it at once both get what they asked for, where there is room for it once") {
  check_in_own_shm("size=64m", [] {
    for (int round = 0; round < 50; ++round) {
      const JobName name;
      Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, std::size_t{64} << 20);
      constexpr std::size_t kWanted = std::size_t{40} << 20;
      std::atomic<bool> is_refused{false};
      const auto grow = [&] {
        try {
          segment.grow(kWanted);
        } catch (const Error&) {
          is_refused = true;
        }
      };
      std::thread other([&] {
        while (!is_refused && shm_free_bytes() >= kWanted) {
        }
        grow();  // in most rounds the first has not come to its end
      });
      grow();
      other.join();
      if (is_refused) return 1;
    }
    return 0;
  });
}

TEST_CASE("segment: after unlinking it is usable where it is open, and cannot be found") {
  const JobName name;
  const Segment segment = linked(name);
  CHECK_FALSE(segment.is_orphaned());
  unlink_segment(name.control());
  CHECK(segment.is_orphaned());
  CHECK_FALSE(segment.is_named(name.control()));
  CHECK(outcome_of(name) == AttachOutcome::kAbsent);
  segment.data()[kBytes - 1] = std::byte{1};  // its memory remains
}

TEST_CASE("segment: a moved object takes its descriptor and mapping with it") {
  const JobName name;
  Segment segment = linked(name);
  std::byte* const data = segment.data();
  const Segment moved = std::move(segment);
  CHECK(moved.data() == data);
  CHECK(moved.file_bytes() == kBytes);
  CHECK_FALSE(segment.is_mapped());  // NOLINT(bugprone-use-after-move): an empty segment remains
}

TEST_CASE("segment: the list has the names with the prefix, sorted") {
  const JobName b(test::unique_job_name() + "-b"), a(b.text() + "-a");
  const Segment second = linked(a), first = linked(b);
  CHECK(list_segments(b.control()) == std::vector<std::string>{b.control(), a.control()});
}

TEST_CASE("segment: one that every user may open is exposed, and is not mapped") {
  const JobName name;
  const Segment segment = linked(name);
  for (const mode_t mode : {0601, 0602, 0604, 0666}) {
    REQUIRE(fchmod(segment.descriptor(), mode) == 0);
    Segment found;
    CHECK(found.open(name.control(), Access::kReadOnly) == AttachOutcome::kExposed);
    CHECK_FALSE(found.is_mapped());
  }
  const std::string said = describe(AttachOutcome::kExposed, name.control());
  CHECK(said.find("is open to every user of this machine by its mode") != std::string::npos);  // 0604: only to be read
}

TEST_CASE("segment: its second name, and a folder, are damage; the first name remains its name") {
  const JobName name, other;
  const Segment segment = linked(name);
  REQUIRE(::link(path(name.control()).c_str(), path(other.control()).c_str()) == 0);
  CHECK(outcome_of(other) == AttachOutcome::kDamaged);
  CHECK(outcome_of(name) == AttachOutcome::kReady);
  unlink_segment(name.control());
  CHECK(segment.is_orphaned());
  unlink_segment(other.control());
  REQUIRE(mkdir(path(other.control()).c_str(), 0700) == 0);
  CHECK(outcome_of(other) == AttachOutcome::kDamaged);
  rmdir(path(other.control()).c_str());
}
