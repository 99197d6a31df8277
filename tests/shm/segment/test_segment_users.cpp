// Segments and jobs of other users: what is used, refused and removed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "ps_shm/errors.hpp"
#include "shm/segment/job_segments.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::JobName;

namespace {

constexpr std::size_t kBytes = 8192, kReserved = 1 << 20;

Segment published(const JobName& name, const Sharing& sharing = {}) {
  Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, kBytes, kReserved, sharing);
  REQUIRE(segment.link(name.control()));
  segment.publish();
  return segment;
}

constexpr uid_t kSomebody = 54321, kSomebodyElse = 54322;
constexpr gid_t kTheirGroup = 1;  // "daemon"

// Whether this process may become these users: root may, except in a namespace that has no other users.
bool can_be_somebody() {
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t first, outside, count;
  bool has_them = false;
  while (map >> first >> outside >> count) has_them = has_them || (first <= kSomebody && first + count > kSomebodyElse);
  return geteuid() == 0 && has_them;
}

// The result of `body` in a process of that user, in the group or not.
template <class Body>
int as_user(uid_t user, bool in_group, Body&& body) {
  test::Child child([&] {
    const gid_t group = kTheirGroup;
    if (setgroups(in_group ? 1 : 0, &group) != 0 || setgid(user) != 0 || setuid(user) != 0) return 98;
    return body();
  });
  return child.join();
}

}  // namespace

TEST_CASE("segment: another user's is used only if we are given the group that shares it" *
          doctest::skip(!can_be_somebody())) {
  const JobName name;
  const auto outcome_in_group = [&](bool in_group, const Trust& trust = {.group = kTheirGroup}) {
    return static_cast<AttachOutcome>(as_user(kSomebody, in_group, [&] {
      return static_cast<int>(Segment().open(name.control(), Access::kReadWrite, trust));
    }));
  };
  Segment segment = published(name);
  CHECK(outcome_in_group(true) == AttachOutcome::kNoPermission);
  REQUIRE(fchmod(segment.descriptor(), 0666) == 0);  // accessible, and yet not ours
  CHECK(outcome_in_group(false) == AttachOutcome::kNoPermission);
  unlink_segment(name.control());
  const Sharing sharing = shared_with_group("daemon");
  segment = published(name, sharing);
  CHECK(outcome_in_group(true) == AttachOutcome::kReady);
  CHECK(outcome_in_group(true, {}) == AttachOutcome::kNoPermission);
  CHECK(outcome_in_group(true, {.group = kTheirGroup + 1}) == AttachOutcome::kNoPermission);
  CHECK(outcome_in_group(true, kTrustAnybody) == AttachOutcome::kReady);
  CHECK(outcome_in_group(false) == AttachOutcome::kNoPermission);
  CHECK(segment.sharing().group == std::optional<std::uint32_t>(kTheirGroup));
}

TEST_CASE("segment: root uses another user's only to inspect or remove it" * doctest::skip(!can_be_somebody())) {
  const JobName name;
  Segment theirs = published(name, {kSomebody, {}});
  for (const Access access : {Access::kReadOnly, Access::kReadWrite}) {
    CHECK(Segment().open(name.control(), access) == AttachOutcome::kNoPermission);
    CHECK(Segment().open(name.control(), access, kTrustAnybody) == AttachOutcome::kReady);
  }
  CHECK_THROWS_WITH_AS(remove_job(name.text()), doctest::Contains("54321"), Error);
  CHECK(remove_job(name.text(), -1, {}, kTrustAnybody) == RemoveOutcome::kRemoved);
}

TEST_CASE("segment: another user's sparse file is damage" * doctest::skip(!can_be_somebody())) {
  const JobName name;
  Segment theirs = published(name, {kSomebody, {}});
  REQUIRE(ftruncate(theirs.descriptor(), kReserved) == 0);
  CHECK(Segment().open(name.control(), Access::kReadOnly, kTrustAnybody) == AttachOutcome::kDamaged);
}

TEST_CASE("segment: a group that does not exist is an error") {
  CHECK_THROWS_WITH_AS(shared_with_group("no-such-group"), doctest::Contains("no-such-group"), Error);
}

TEST_CASE("job segments: what another user has left of a group's job is emptied and named" *
          doctest::skip(!can_be_somebody())) {
  const JobName name;
  const std::string left = gradient_name(name.text(), 0, 1);
  {
    Segment theirs =
        Segment::create(SegmentKind::kGradient, 0, name.text(), 5, kBytes, kReserved, {kSomebodyElse, kTheirGroup});
    REQUIRE(theirs.link(left));
  }
  CHECK(as_user(kSomebody, true, [&] {
          JobConfig config = test::with_name({}, name.text());
          config.group = "daemon";
          std::string told;
          const JobSegments job = JobSegments::create(config);
          const auto removed =
              remove_job(name.text(), job.control().descriptor(), [&](const std::string& line) { told = line; });
          return removed == RemoveOutcome::kRemoved && told.find("54322") != std::string::npos ? 0 : 1;
        }) == 0);
  struct stat status;
  REQUIRE(stat(path_of(left).c_str(), &status) == 0);
  CHECK(status.st_size == 0);
  CHECK(name.segments() == std::vector<std::string>{left});
}

TEST_CASE("job segments: a dead job of another user is reported with its owner" * doctest::skip(!can_be_somebody())) {
  const JobName name;
  {
    Segment theirs =
        Segment::create(SegmentKind::kControl, 0, name.text(), 5, kBytes, kReserved, {kSomebodyElse, kTheirGroup});
    REQUIRE(theirs.link(name.control()));
  }
  CHECK(as_user(kSomebody, true, [&] {
          try {
            JobSegments::create(test::with_name({}, name.text()));
          } catch (const Error& error) {
            return std::string(error.what()).find("54322") != std::string::npos ? 0 : 1;
          }
          return 2;
        }) == 0);
}
