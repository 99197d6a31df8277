// Event files: the contents of histograms, and what happens to a file when its disk is full or its folder is removed.
// That TensorBoard reads them is checked by test_summaries.py.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "persistence/event_file.hpp"
#include "persistence/summary.hpp"
#include "ps_shm/errors.hpp"
#include "support/folder.hpp"

using namespace ps_shm;
using persistence::EventFile;
using persistence::Histogram;
using persistence::histogram_of;
using persistence::Summary;
namespace fs = std::filesystem;

namespace {

Summary loss(double value) {
  Summary summary;
  summary.add_scalar("loss", value);
  return summary;
}

// While a limit is in place, files of this process cannot grow beyond it.
class FullDisk {
 public:
  explicit FullDisk(std::uint64_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit small{bytes, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  rlimit limit_{};
  void (*before_)(int);
};

}  // namespace

TEST_CASE("event files: a histogram counts each finite value in the bucket that contains it") {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0F);
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  const Histogram all = histogram_of(values);
  CHECK(all.least == 0);
  CHECK(all.most == 999);
  CHECK(all.count == 1000);
  CHECK(all.sum == 499500);
  CHECK(all.squares == 332833500);
  REQUIRE(all.limits.size() == all.counts.size());
  CHECK(all.limits.back() == 999);
  double sum = 0;
  for (std::size_t i = 0; i < all.counts.size(); ++i) {
    CHECK(all.counts[i] == doctest::Approx(1000.0 / double(all.counts.size())).epsilon(0.08));
    if (i != 0) CHECK(all.limits[i] > all.limits[i - 1]);
    sum += all.counts[i];
  }
  CHECK(sum == 1000);
}

TEST_CASE("event files: histograms of one value, of none, and of the widest range") {
  const Histogram one = histogram_of(std::vector<float>(7, 2.0F));
  CHECK(one.count == 7);
  CHECK(one.counts == std::vector<double>{7});
  CHECK(one.least < 2);
  CHECK(one.limits[0] > 2);
  CHECK(histogram_of(std::span<const float>()).count == 0);
  const Histogram widest = histogram_of(std::vector<double>{-1.7e308, 0.0, 1.7e308});
  CHECK(widest.limits.size() == 64);
  CHECK(widest.counts.front() == 1);
  CHECK(widest.counts[32] == 1);
  CHECK(widest.counts.back() == 1);
  CHECK(histogram_of(std::vector<float>(3, std::nanf(""))).count == 0);
  const float most = std::numeric_limits<float>::max();
  const Histogram wide = histogram_of(std::vector<float>{-most, 0, most});
  CHECK(wide.counts.front() == 1);
  CHECK(wide.counts.back() == 1);
  CHECK(std::isfinite(wide.squares));
  Summary summary;
  summary.add_histogram("none", histogram_of(std::vector<float>{}));
  CHECK(summary.is_empty());
}

TEST_CASE("event files: the folder is created, and a writer without records leaves no file") {
  const test::Folder folder;
  {
    EventFile file(folder.path("a/b"));
    file.write(1, {});
    CHECK(folder.files().empty());
    file.write(1, loss(0.5));
    file.write(2, loss(0.25));
  }
  CHECK(fs::is_directory(folder.path("a/b")));
}

TEST_CASE("event files: on a full disk the existing records stay intact, and later records follow them") {
  const test::Folder folder;
  EventFile file(folder.path(), loss(1));
  file.write(1, loss(0.5));
  REQUIRE(folder.files().size() == 1);
  const fs::path path = folder.path(folder.files()[0]);
  const auto size = fs::file_size(path);
  {
    const FullDisk full(size + 20);
    CHECK_THROWS_WITH_AS(file.write(2, loss(0.4)), doctest::Contains(path.c_str()), Error);
    CHECK(fs::file_size(path) == size);
    CHECK_THROWS_AS(file.write(3, loss(0.3)), Error);
  }
  CHECK(fs::file_size(path) == size);
  file.write(4, loss(0.2));
  CHECK(fs::file_size(path) > size);
  CHECK(folder.files().size() == 1);
}

TEST_CASE("event files: a file that cannot be created leaves nothing, and the next write creates it") {
  const test::Folder folder;
  EventFile file(folder.path(), loss(1));
  {
    const FullDisk full(30);
    CHECK_THROWS_AS(file.write(1, loss(0.5)), Error);
    CHECK(folder.files().empty());
  }
  file.write(2, loss(0.5));
  CHECK(folder.files().size() == 1);
}

TEST_CASE("event files: a folder that vanishes is created again as soon as its path is free") {
  const test::Folder folder;
  EventFile file(folder.path());
  file.write(1, loss(0.5));
  fs::remove_all(folder.path());
  std::ofstream(folder.path()) << "in the way";
  CHECK_THROWS_WITH_AS(file.write(2, loss(0.4)), doctest::Contains(folder.path().c_str()), Error);
  fs::remove(folder.path());
  file.write(3, loss(0.3));
  CHECK(folder.files().size() == 1);
}

TEST_CASE("event files: a new file comes last in its folder, even if the clock was set back") {
  const test::Folder folder;
  folder.write("events.out.tfevents.90000000000.000001.host.3", "of no time that a name can exceed");
  for (const char* later :
       {"events.out.tfevents.7000000000.000005.host.1", "events.out.tfevents.7000000000.999999.host.2",
        "events.out.tfevents.7000000003.host.77.0"}) {  // TensorFlow's
    folder.write(later, "an earlier run");
    EventFile(folder.path()).write(1, loss(0.5));
    std::vector<std::string> names = folder.files();
    std::erase_if(names, [](const std::string& name) { return name.find("90000000000") != name.npos; });
    CHECK(*std::find(names.begin(), names.end(), later) == *(names.end() - 2));
  }
}
