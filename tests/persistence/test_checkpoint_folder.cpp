// Folders of checkpoints: which one is the newest, what stays after a kill, a power failure or a disk that fails, and that
// one process keeps them.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "persistence/checkpoint_folder.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/worker.hpp"
#include "support/checkpoint_job.hpp"
#include "support/folder.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::test::checkpoints;
using test::config_of, test::contains, test::error_of;

namespace {

// What would survive a power failure: the files and folders that were synced, by their inodes. For a folder, the names
// that it had then. Syncing the folder `broken` fails.
class Disk {
 public:
  explicit Disk(const std::string& broken = "") {
    on_sync_ = [this, broken](int descriptor) {
      const fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor));
      if (path == broken) return false;
      std::set<std::string>& names = synced_[inode_of(path)];
      names.clear();
      if (fs::is_directory(path))
        for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
      return true;
    };
  }
  ~Disk() { on_sync_ = nullptr; }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  bool has(const fs::path& path) const {
    const auto folder = synced_.find(inode_of(path.parent_path()));
    return folder != synced_.end() && folder->second.contains(path.filename()) && synced_.contains(inode_of(path));
  }
  static bool sync(int descriptor) { return !on_sync_ || on_sync_(descriptor); }

 private:
  static ino_t inode_of(const fs::path& path) {
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_ino;
  }
  static inline std::function<bool(int)> on_sync_;
  std::map<ino_t, std::set<std::string>> synced_;
};

}  // namespace

// In place of the C library's.
extern "C" int fsync(int descriptor) {
  if (Disk::sync(descriptor)) return static_cast<int>(::syscall(SYS_fsync, descriptor));
  errno = EIO;
  return -1;
}

TEST_CASE("the newest complete checkpoint is found, and each damaged one is reported") {
  const test::Folder folder;
  CHECK_FALSE(Checkpoint::latest(folder.path()));
  TrainedJob job({.chunk_bytes = 1024});
  std::vector<std::string> notices;
  const auto note = [&](const std::string& line) { notices.push_back(line); };
  for (int i = 0; i < 4; ++i) {
    job.train(3);
    job.save(folder.path());
  }
  CHECK(Checkpoint::latest(folder.path(), note)->global_step() == 12);
  replace_in(folder.path("step-12/model.safetensors"), "F32", "F33");  // of the same length
  fs::resize_file(folder.path("step-9/model.safetensors"), 100);
  CHECK(notices.empty());
  CHECK(Checkpoint::latest(folder.path(), note)->global_step() == 6);
  REQUIRE(notices.size() == 2);
  CHECK(contains(notices[0], "step-12: the contents of model.safetensors are not what was written"));
  CHECK(contains(notices[1], "step-9: model.safetensors has 100 bytes, and"));
  fs::remove(folder.path("step-6/model.safetensors"));
  replace_in(folder.path("step-3/checkpoint.json"), R"("version": 1)", R"("version": 2)");
  CHECK(contains(error_of([&] { Checkpoint::latest(folder.path()); }),
                 "none is complete: " + folder.path() +
                     "/step-3 is a checkpoint of format version 2; this build reads version 1"));
  replace_in(folder.path("step-3/checkpoint.json"), R"("version": 2)", R"("version": 0)");
  CHECK(contains(error_of([&] { Checkpoint(folder.path("step-3")); }), "of format version 0"));
}

TEST_CASE("a checkpoint of a step that exists already replaces it") {
  const test::Folder folder;
  TrainedJob job;
  const std::string first = job.save(folder.path(), {.loss = 1.0});
  std::ofstream(first + "/more");
  CHECK(job.save(folder.path(), {.loss = 2.0}) == first);
  CHECK(Checkpoint(first).loss() == 2.0);
  CHECK_FALSE(fs::exists(first + "/more"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("a save that is asked to stop leaves no checkpoint and gives its snapshot back") {
  const test::Folder folder;
  TrainedJob job;
  const std::string before = job.save(folder.path());
  job.train(1);
  int asked = 0;
  CHECK_THROWS_AS(job.save(folder.path(), {.stop_requested = [&] { return ++asked == 2; }}), Interrupted);
  CHECK(asked == 2);
  CHECK(persistence::list_checkpoints(folder.path()).size() == 1);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  CHECK(Checkpoint::latest(folder.path())->folder() == before);
  CHECK_NOTHROW(job.save(folder.path(), {.wait = Seconds(0)}));
}

TEST_CASE("the last checkpoint is kept, whatever else is in the folder") {
  const test::Folder folder;
  TrainedJob job;
  std::vector<std::string> saved;
  for (int i = 0; i < 4; ++i) {
    job.train(1);
    saved.push_back(job.save(folder.path(), {.loss = i == 1 ? 0.1 : 1.0 + i}));
  }
  fs::create_directories(folder.path("step-1000"));  // damaged, from another run
  persistence::remove_old_checkpoints(folder.path(), {.newest = 1, .best = true}, saved[3], saved[0] + "/");
  CHECK(fs::exists(saved[1]));  // of the lowest loss
  CHECK_FALSE(fs::exists(saved[2]));
  persistence::remove_old_checkpoints(folder.path(), {.newest = 1}, saved[3], saved[0] + "/");
  CHECK(persistence::list_checkpoints(folder.path()).size() == 3);
  CHECK(fs::exists(saved[3]));
  CHECK(fs::exists(saved[0]));  // the run was started from it
  CHECK(fs::exists(folder.path("step-1000")));
  saved[2] = job.save(folder.path(), {.loss = 0.5});
  persistence::remove_old_checkpoints(folder.path(), {.newest = 1, .best = true}, saved[3], "");
  CHECK(fs::exists(saved[3]));
  CHECK_FALSE(fs::exists(saved[0]));
}

TEST_CASE("only one process keeps checkpoints in a folder, and it removes what a killed one has left") {
  const test::Folder folder;
  fs::create_directories(folder.path(".partial-step-7-1-1"));  // that a process with this number lives does not matter
  fs::create_directories(folder.path(".partial-step-8-1-99999999"));
  fs::create_directories(folder.path("step-6"));
  const int in_use = ::open(folder.path(".partial-step-8-1-99999999").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(in_use, LOCK_EX) == 0);
  const persistence::CheckpointDir first(folder.path());
  CHECK_FALSE(fs::exists(folder.path(".partial-step-7-1-1")));
  CHECK(fs::exists(folder.path(".partial-step-8-1-99999999")));
  CHECK(fs::exists(folder.path("step-6")));
  CHECK(contains(error_of([&] { persistence::CheckpointDir second(folder.path()); }),
                 "another process writes checkpoints"));
  ::close(in_use);
}

TEST_CASE("a forked child does not keep other processes from using a folder of checkpoints") {
  const test::Folder folder;
  auto first = std::make_unique<persistence::CheckpointDir>(folder.path());
  test::Child child([] {
    for (;;) ::pause();
    return 0;
  });
  first.reset();
  CHECK(test::eventually([&] {  // the child closes its descriptors when it starts to run
    try {
      const persistence::CheckpointDir second(folder.path());
      return true;
    } catch (const Error&) {
      return false;
    }
  }));
}

TEST_CASE("a process killed at any moment of a save leaves either the previous checkpoint or all of the new one") {
  const test::Folder folder;
  const std::vector<std::byte> bytes(40'000);
  const auto save = [&](std::uint64_t step) {
    persistence::CheckpointArrays arrays;
    for (const char* const name : {"a", "b"}) {
      arrays.add({.name = name, .shape = {10'000}}, persistence::reader_of(bytes));
      arrays.add_slot("momentum", {10'000}, persistence::reader_of(bytes));
    }
    persistence::CheckpointFacts facts;
    facts.global_step = step;
    persistence::write_checkpoint(folder.path(), facts, arrays, 50'000);
    if (step > 3) persistence::remove_checkpoint(fmt::format("{}/step-{}", folder.path(), step - 3));
  };
  for (std::uint64_t step = 1; step <= 5; ++step) save(step);
  std::minstd_rand random(1);
  std::uint64_t step = 5;
  for (int kill = 0; kill < 200; ++kill) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    test::Child child([&] {
      for (std::uint64_t next = step + 1;; ++next) {
        save(next);
        if (write(ends[1], &next, sizeof next) != sizeof next) return 1;
        save(next);  // replaces the existing one
      }
    });
    close(ends[1]);
    // The kill comes after this many saves, at any moment of the next one: no result depends on how long the sleep is.
    for (std::uint64_t saves = random() % 2, told; saves != 0; --saves) {
      REQUIRE(read(ends[0], &told, sizeof told) == sizeof told);
      step = told;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    child.kill();
    for (std::uint64_t told; read(ends[0], &told, sizeof told) == sizeof told;) step = told;
    close(ends[0]);
    const auto latest = Checkpoint::latest(folder.path(), [](const std::string& line) { FAIL(line); });
    REQUIRE(latest);
    CHECK(latest->global_step() >= step);
    CHECK(latest->global_step() <= step + 1);
    step = latest->global_step();
    if (kill % 20 == 0) const persistence::CheckpointDir cleared(folder.path());
  }
}

TEST_CASE("after a save a power failure takes nothing of the checkpoint, nor its name, nor that of a new folder") {
  const test::Folder folder;
  const TrainedJob job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum}});
  const std::string dir = folder.path("checkpoints"), text = folder.path("text");
  const Disk disk;
  const std::string saved = job.save(dir);
  const std::vector<std::string> expected = {"checkpoint.json", "model.safetensors", "optimizer.safetensors"};
  for (const std::string& name : expected) CHECK(disk.has(saved + "/" + name));
  CHECK(disk.has(saved));
  CHECK(disk.has(dir));
  persistence::write_text(text, "of the result");
  CHECK(disk.has(text));
}

TEST_CASE("a checkpoint that cannot be written or synced leaves nothing, and the one that it would replace stays") {
  const test::Folder folder;
  const std::string dir = fs::canonical(folder.path());
  const TrainedJob job;
  const std::string saved = job.save(dir, {.loss = 1.0});
  const auto is_as_before = [&] {
    return folder.files() == std::vector<std::string>{"step-0"} && Checkpoint(saved).loss() == 1.0;
  };
  {
    const Disk disk(dir);
    CHECK(contains(error_of([&] { job.save(dir, {.loss = 2.0}); }), "cannot sync the folder"));
  }
  CHECK(is_as_before());
  persistence::CheckpointArrays arrays;
  arrays.add({.name = "a", .shape = {10}}, [](std::uint64_t, std::span<std::byte>) { throw Error("unreadable"); });
  CHECK(error_of([&] { persistence::write_checkpoint(dir, {}, arrays, 50'000); }) == "unreadable");
  CHECK(is_as_before());
}

TEST_CASE("a process that begins to keep checkpoints in a folder removes none that another one is writing") {
  const test::Folder folder;
  persistence::CheckpointArrays arrays;
  bool has_begun = false;
  arrays.add({.name = "a", .shape = {10}}, [&](std::uint64_t, std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{1});
    const persistence::CheckpointDir other(folder.path());
    has_begun = true;
  });
  const std::string saved = persistence::write_checkpoint(folder.path(), {}, arrays, 50'000);
  CHECK(has_begun);
  CHECK_NOTHROW(Checkpoint(saved).verify());
}
