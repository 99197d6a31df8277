#include "train/data/sparse/sparse_forms.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "support/environment.hpp"
#include "support/processes.hpp"
#include "support/sparse_texts.hpp"
#include "support/unnamed_files.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;
using train::FirstIndex;
using train::SparseData;
using train::SparseSourceOptions;

constexpr const char* kText = "1 1:0.5 7:2\n-1 3:1\n";

// A source, a cache, and the messages of reading through it.
struct Scene {
  Folder folder;
  std::string path, cache = folder.path("cache");
  std::vector<std::string> notices;

  explicit Scene(const std::string& text = kText) : path(folder.write("data", text)) {}

  SparseSourceOptions options() {
    SparseSourceOptions chosen;
    chosen.cache = cache;
    chosen.log = [this](const std::string& line) { notices.push_back(line); };
    return chosen;
  }
  std::vector<PlainExample> read() { return examples_of(SparseData::read(path, options())); }

  // The files of the cache with this suffix.
  std::vector<std::string> files(const std::string& end) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(cache))
      if (entry.path().string().ends_with(end)) found.push_back(entry.path());
    return found;
  }
  std::string form() const {
    const auto found = files(".sparse");
    REQUIRE(found.size() == 1);
    return found.front();
  }
};

std::uint64_t inode_of(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

void overwrite(const std::string& path, std::streamoff at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file << bytes;
}

// Changes a byte, whatever it was: parts of the header are a time and the number of an inode.
void damage(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char other = static_cast<char>(~file.get());
  file.seekp(at);
  file.put(other);
}

// Whether this process uses a cache file that another one has since replaced.
bool maps_a_deleted_form() {
  std::ifstream maps("/proc/self/maps");
  int forms = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(".sparse") == line.npos && line.find(".new") == line.npos) continue;
    ++forms;
    if (line.ends_with("(deleted)")) return true;
  }
  return forms != 1;
}

std::string many_rows(int rows) {
  std::string text;
  for (int row = 1; row <= rows; ++row) text += "1 " + std::to_string(row % 1000 + 1) + ":1\n";
  return text;
}

}  // namespace

TEST_CASE("sparse cache: the form is made once, then used as long as source and options stay the same") {
  Scene scene;
  const auto expected = examples_of(parse(kText));
  CHECK(scene.read() == expected);
  const std::string form = scene.form();
  const std::uint64_t first = inode_of(form);
  CHECK(form.find("/data.") != std::string::npos);
  CHECK(scene.read() == expected);
  CHECK(inode_of(form) == first);
  CHECK(scene.notices.empty());
  CHECK(scene.files(".new").empty());

  SparseSourceOptions hashed = scene.options();
  hashed.hash_bits = 4;
  CHECK(SparseData::read(scene.path, hashed).info().features == 16);
  CHECK(scene.files(".sparse").size() == 2);
  CHECK(inode_of(form) == first);
}

TEST_CASE("sparse cache: each option that changes the result has a form of its own") {
  Scene scene;
  std::vector<SparseSourceOptions> all(5, scene.options());
  all[1].hash_bits = 8;
  all[2].first_index = FirstIndex::kZero;
  all[3].features = 100;
  all[4].format = SparseSourceOptions::Format::kLibsvm;
  for (std::size_t i = 0; i < all.size(); ++i) {
    SparseData::read(scene.path, all[i]);
    CHECK(scene.files(".sparse").size() == i + 1);
  }
}

TEST_CASE("sparse cache: names of users and items are kept, and data read with other names has its own form") {
  const SparseData one = parse("a,x,1\nb,y,2\n"), other = parse("b,x,1\na,y,2\n"), longer = parse("a,b,1\nx,y,2\n");
  Scene scene("a,x,1\nb,y,2\n");
  for (int round = 0; round < 2; ++round)
    CHECK(SparseData::read(scene.path, scene.options()).names() == std::vector<std::string_view>{"a", "b", "x", "y"});
  for (int round = 0; round < 2; ++round) {
    std::size_t forms = 1;
    for (const SparseData* names : {&one, &other, &longer}) {
      SparseSourceOptions options = scene.options();
      options.names_of = names;
      const SparseData found = SparseData::read(scene.path, options);
      CHECK((examples_of(found) == examples_of(one)) == (names == &one));
      CHECK(scene.files(".sparse").size() == (round == 0 ? ++forms : 4));
    }
  }
}

TEST_CASE("sparse cache: a name that does not end within the form is an error with a hint") {
  Scene scene("a,x,1\nb,y,2\n");
  scene.read();
  const std::streamoff names = 4096 + 2 * 4 * std::streamoff(train::record_words(2));
  // The length of the first name; 28 would just fit.
  for (const std::string& length : {std::string("\xff\xff\xff\xff"), std::string("\x1d\0\0\0", 4)}) {
    overwrite(scene.form(), names, length);
    const SparseData data = SparseData::read(scene.path, scene.options());
    CHECK(error_of([&] { data.names(); }).find("its cached binary form is damaged; remove it") != std::string::npos);
  }
}

TEST_CASE("sparse cache: another file of the same name in another folder has its own form") {
  Scene scene;
  const std::string other = scene.folder.write("other/data", "1 2:1\n");
  scene.read();
  CHECK(examples_of(SparseData::read(other, scene.options())).size() == 1);
  CHECK(scene.files(".sparse").size() == 2);
}

TEST_CASE("sparse cache: a source that has changed is read again, with a message") {
  Scene scene;
  scene.read();
  scene.folder.write("data", "1 1:0.5 7:2\n-1 3:9\n");  // of the same length
  std::filesystem::last_write_time(scene.path, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  CHECK(scene.read()[1].values[0] == 9);
  REQUIRE(scene.notices.size() == 1);
  CHECK(scene.notices[0].find("has changed") != std::string::npos);
  CHECK(scene.files(".sparse").size() == 1);
}

TEST_CASE("sparse cache: other content of the same length and modification time is read") {
  Scene scene;
  scene.read();
  struct stat before;
  REQUIRE(stat(scene.path.c_str(), &before) == 0);
  const timespec times[] = {before.st_atim, before.st_mtim};
  SUBCASE("in the same file") { scene.folder.write("data", "1 1:0.5 7:2\n-1 3:9\n"); }
  SUBCASE("in another file, as by rsync -t") {
    scene.folder.write("new", "1 1:0.5 7:2\n-1 3:9\n");
    std::filesystem::rename(scene.folder.path("new"), scene.path);
  }
  REQUIRE(utimensat(AT_FDCWD, scene.path.c_str(), times, 0) == 0);
  CHECK(scene.read()[1].values[0] == 9);
  CHECK(scene.notices.size() == 1);
}

TEST_CASE("sparse cache: other content is read, even if no time of the file shows the change") {
  // After the first store to a mapped page, the kernel updates no time for further ones.
  const std::string text = many_rows(4000);  // 34 kB
  const std::size_t first = text.find(":1\n") + 1;
  for (const std::size_t at : {first, text.size() - 2}) {
    Scene scene(text);
    const int file = ::open(scene.path.c_str(), O_RDWR | O_CLOEXEC);
    void* const mapped = mmap(nullptr, text.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    REQUIRE(mapped != MAP_FAILED);
    char* const digit = static_cast<char*>(mapped) + at;
    *digit = '2';
    const auto value = [&] { return at == first ? scene.read().front().values[0] : scene.read().back().values[0]; };
    CHECK(value() == 2);
    *digit = '3';
    CHECK(value() == 3);
    munmap(mapped, text.size());
  }
}

TEST_CASE("sparse cache: a form that is damaged or truncated is made again, with a message") {
  const auto expected = examples_of(parse(kText));
  for (const std::streamoff at : {0, 8, 20, 40, 60, 100, -1, -2, -3}) {
    CAPTURE(at);
    Scene scene;
    scene.read();
    const std::string form = scene.form();
    const auto size = std::filesystem::file_size(form);
    if (at >= 0) damage(form, at);
    if (at == -1) std::filesystem::resize_file(form, size - 4);
    if (at == -2) std::filesystem::resize_file(form, 0);
    if (at == -3) std::filesystem::resize_file(form, size + 4);
    CHECK(scene.read() == expected);
    REQUIRE(scene.notices.size() == 1);
    CHECK(scene.notices[0].find(form + " is damaged: rebuilding it") == 0);
    CHECK(scene.read() == expected);
    CHECK(scene.notices.size() == 1);
  }
}

TEST_CASE("sparse cache: records beyond the end of a damaged form are an error") {
  Scene scene;
  scene.read();
  overwrite(scene.form(), train::kSparseDataOffset + 4, "\xff\xff\xff\xff");  // the number of ids in the first row
  const SparseData data = SparseData::read(scene.path, scene.options());
  CHECK(error_of([&] { examples_of(data); }).find("binary form is damaged at byte 4096") != std::string::npos);
  CHECK(error_of([&] { train::SparseStream(data, {}, 1, 0); }).find("is damaged") != std::string::npos);
}

TEST_CASE("sparse cache: ids of a damaged form that are not features are an error to every reader") {
  for (const char* id : {"\xff\xff\xff\x7f", "\x07\x00\x00\x00"}) {
    Scene scene("1 1:1\n-1 3:9 7:2\n");
    scene.read();
    overwrite(scene.form(), train::kSparseDataOffset + 4 * (4 + 3), std::string(id, 4));  // the last of the second row
    const SparseData data = SparseData::read(scene.path, scene.options());
    CHECK(error_of([&] { examples_of(data); }).find("is damaged at byte 4112") != std::string::npos);
    CHECK(error_of([&] { train::SparseStream(data, {}, 1, 0); }).find("is damaged") != std::string::npos);
  }
  Scene scene("ann\tone\t3\nbob\ttwo\t4\n");
  scene.read();
  overwrite(scene.form(), train::kSparseDataOffset + 4, std::string("\x08\x00\x00\x00", 4));
  const SparseData data = SparseData::read(scene.path, scene.options());
  CHECK(error_of([&] { train::SparseStream(data, {}, 1, 0); }).find("is damaged") != std::string::npos);
}

TEST_CASE("sparse cache: a malformed source leaves no form, and is an error each time") {
  Scene scene("1 1:1\n1 x\n");
  for (int i = 0; i < 2; ++i) {
    CHECK(error_of([&] { scene.read(); }) == scene.path + ":2:3: 'x' has no colon; a feature is index:value");
    CHECK(scene.files(".sparse").empty());
    CHECK(scene.files(".new").empty());
  }
}

TEST_CASE("sparse cache: concurrent processes make the form once") {
  Scene scene(many_rows(200'000));
  const auto expected = examples_of(SparseData::read(scene.path, {}));
  Bell begin, has_read, finish;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(std::make_unique<Child>([&] {
      if (!begin.hear()) return 1;
      const SparseData data = SparseData::read(scene.path, scene.options());
      has_read.tell();
      if (!finish.hear()) return 2;
      return maps_a_deleted_form() ? 3 : examples_of(data) == expected ? 0 : 4;
    }));
  for (int i = 0; i < 4; ++i) begin.tell();
  for (int i = 0; i < 4; ++i) REQUIRE(has_read.hear());
  for (int i = 0; i < 4; ++i) finish.tell();
  for (const auto& child : children) CHECK(child->join() == 0);
  CHECK(scene.files(".sparse").size() == 1);
  CHECK(scene.files(".new").empty());
}

TEST_CASE("sparse cache: a waiting process takes over if the maker is killed, and uses what a maker completes") {
  for (const bool is_killed : {true, false}) {
    CAPTURE(is_killed);
    Scene scene(many_rows(400'000));  // several blocks
    Bell is_reading, is_waiting, goes_on;
    Child maker([&] {
      SparseSourceOptions options = scene.options();
      options.stop_requested = [&, told = false]() mutable {
        if (std::exchange(told, true)) return false;
        is_reading.tell();
        return !goes_on.hear();
      };
      SparseData::read(scene.path, options);
      return 0;
    });
    REQUIRE(is_reading.hear());
    CHECK(scene.files(".new").size() == 1);
    CHECK(scene.files(".sparse").empty());
    Child other([&] {
      SparseSourceOptions options = scene.options();
      bool has_waited = false;
      options.log = [&](const std::string& line) {
        if (line.find("waiting for another process") == 0) has_waited = true, is_waiting.tell();
      };
      const SparseData data = SparseData::read(scene.path, options);
      return data.info().examples == 400'000 && has_waited ? 0 : 1;
    });
    REQUIRE(is_waiting.hear());
    if (is_killed)
      maker.kill();
    else
      goes_on.tell();
    CHECK(other.join() == 0);
    if (!is_killed) CHECK(maker.join() == 0);
    CHECK(scene.files(".sparse").size() == 1);
    CHECK(scene.files(".new").empty());
    const std::uint64_t made = inode_of(scene.form());
    CHECK(scene.read().size() == 400'000);
    CHECK(inode_of(scene.form()) == made);
  }
}

TEST_CASE("sparse cache: links under the names of its files are not followed") {
  Scene scene;
  const std::vector<PlainExample> expected = scene.read();
  const std::string precious = scene.path + ".precious", form = scene.form();
  std::filesystem::remove(form);
  std::ofstream(precious) << "kept";
  SUBCASE("of the new file") {
    std::filesystem::create_symlink(precious, form + ".new");
    CHECK(scene.read() == expected);
  }
  SUBCASE("of the lock") {
    std::filesystem::remove(form + ".lock");
    std::filesystem::create_symlink(precious, form + ".lock");
    CHECK_THROWS_WITH_AS(scene.read(), doctest::Contains(".lock: Too many levels of symbolic links"), Error);
  }
  CHECK(std::filesystem::file_size(precious) == 4);
}

TEST_CASE("sparse cache: a waiting process stops on request") {
  Scene scene;
  scene.read();
  const std::string lock = scene.form() + ".lock";
  const int held = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  REQUIRE(fcntl(held, F_OFD_SETLK, &whole) == 0);
  std::filesystem::remove(scene.form());
  SparseSourceOptions options = scene.options();
  options.stop_requested = [] { return true; };
  CHECK_THROWS_AS(SparseData::read(scene.path, options), Interrupted);
  ::close(held);
}

TEST_CASE("sparse cache: a folder that cannot be created or used is an error that names it") {
  Scene scene;
  scene.cache = scene.path + "/cache";  // below a file
  CHECK(error_of([&] { scene.read(); }).find("cannot create the cache folder " + scene.cache) == 0);
  Scene missing;
  missing.path = missing.folder.path("missing");
  CHECK(error_of([&] { missing.read(); }).find("missing: no such file") != std::string::npos);
}

TEST_CASE("sparse data: a full disk is an error that names the path, and leaves nothing") {
  const Scene scene(many_rows(400'000));
  Child limited([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};  // a limit on the file size, in place of a full disk
    setrlimit(RLIMIT_FSIZE, &limit);
    SparseSourceOptions options;
    const std::string unnamed = error_of([&] { SparseData::read(scene.path, options); });
    options.cache = scene.cache;
    const std::string cached = error_of([&] { SparseData::read(scene.path, options); });
    const bool says = unnamed.find("cannot write the binary form of the data") == 0 &&
                      unnamed.find("set TMPDIR to another folder") != std::string::npos &&
                      cached.find("in the cache folder " + scene.cache) != std::string::npos;
    return says && scene.files(".sparse").empty() && scene.files(".new").empty() ? 0 : 1;
  });
  CHECK(limited.join() == 0);
}

TEST_CASE("sparse data: the unnamed form is stored in $TMPDIR") {
  const Scene scene;
  const EnvironmentVariable temporary("TMPDIR", scene.folder.path("missing"));
  const std::string found = error_of([&] { SparseData::read(scene.path, {}); });
  CHECK(found.find("cannot create a temporary file for its binary form in " + scene.folder.path("missing")) !=
        std::string::npos);
}

TEST_CASE("sparse data: where files cannot be without a name, the form has one until it is open, and is the same") {
  const Scene scene;
  const std::string temporary = scene.folder.path("temporary");
  std::filesystem::create_directory(temporary);
  const std::vector<PlainExample> expected = examples_of(SparseData::read(scene.path, {}));
  Child child([&] {
    const EnvironmentVariable set("TMPDIR", temporary);
    if (!refuse_unnamed_files()) return 1;
    if (::open(temporary.c_str(), O_TMPFILE | O_RDWR, 0600) >= 0) return 2;
    const SparseData data = SparseData::read(scene.path, {});
    if (!std::filesystem::is_empty(temporary)) return 3;
    if (examples_of(data) != expected) return 4;
    std::filesystem::remove(temporary);
    const std::string error = error_of([&] { SparseData::read(scene.path, {}); });
    return error.find("in " + temporary + ": No such file or directory; set TMPDIR") != std::string::npos ? 0 : 5;
  });
  CHECK(child.join() == 0);
}
