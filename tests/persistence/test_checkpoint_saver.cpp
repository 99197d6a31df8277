// What everybody does alike who saves checkpoints of a run: the mean loss, what is said, and which older ones go.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "persistence/checkpoint_saver.hpp"
#include "ps_shm/errors.hpp"
#include "support/folder.hpp"

using namespace ps_shm;
namespace fs = std::filesystem;

namespace {

// A saver every ten steps that keeps the newest two.
struct Saving {
  Saving() { saver.begin(0.0, 0, 0); }

  std::string write(std::uint64_t step) {
    const std::string made = folder.path("step-" + std::to_string(step));
    fs::create_directories(made);
    saver.written(made, step, 0.5, folder.path("step-10"));
    return made;
  }

  const test::Folder folder;
  std::vector<std::string> said, warned;
  persistence::CheckpointSaver saver{{.dir = folder.path(),
                                      .every = {.steps = 10},
                                      .retention = {.newest = 2},
                                      .say = [this](const std::string& line) { said.push_back(line); },
                                      .warn = [this](const std::string& line) { warned.push_back(line); }}};
};

}  // namespace

TEST_CASE("checkpoint saver: the loss is the mean since the last reset, and none if one is not finite") {
  Saving saving;
  CHECK_FALSE(saving.saver.mean_loss());
  saving.saver.add_loss(1.0), saving.saver.add_loss(3.0);
  CHECK(saving.saver.mean_loss() == 2.0);
  saving.saver.reset_losses();
  CHECK_FALSE(saving.saver.mean_loss());
  saving.saver.add_loss(5.0);
  CHECK(saving.saver.mean_loss() == 5.0);
  saving.saver.add_loss(NAN);
  CHECK_FALSE(saving.saver.mean_loss());
}

TEST_CASE("checkpoint saver: one that is written is told of, and older ones go but for the newest and the first") {
  Saving saving;
  std::vector<std::string> made;
  for (const std::uint64_t step : {10U, 20U, 30U, 40U}) made.push_back(saving.write(step));
  CHECK(saving.saver.saved() == 40);
  CHECK(saving.said.back() == "checkpoint " + made.back() + " written in 0.50 s");
  CHECK(saving.warned.empty());
  CHECK(fs::exists(made[0]));  // the run has begun with it
  CHECK_FALSE(fs::exists(made[1]));
  CHECK(fs::exists(made[2]));
  CHECK(fs::exists(made[3]));
}

TEST_CASE("checkpoint saver: one that is written counts as saved, even if older ones cannot be removed") {
  Saving saving;
  saving.write(10);
  fs::remove_all(saving.folder.path());
  std::ofstream(saving.folder.path()) << "a file";
  CHECK_THROWS_AS(saving.saver.written("step-20", 20, 0.5, ""), Error);
  CHECK(saving.saver.saved() == 20);
}

TEST_CASE("checkpoint saver: a failure says what is lost, and skipped ones are counted") {
  Saving saving;
  saving.saver.report_skipped();
  CHECK(saving.warned.empty());
  saving.saver.failed("no space");
  CHECK(saving.warned.back() == "checkpoint failed: no space; training continues");
  saving.saver.failed("no space", true);
  CHECK(saving.warned.back() == "checkpoint of the last state failed: no space; what was trained is lost");
  saving.write(10);
  saving.saver.failed("no space", true);
  CHECK(saving.warned.back() == "checkpoint of the last state failed: no space; what came after step 10 is lost");
  saving.saver.skip(1);
  saving.saver.report_skipped();
  CHECK(saving.warned.back() ==
        "1 of the checkpoints at every 10 steps was skipped: the one before was not saved in time for the next");
  saving.saver.skip(2);
  saving.saver.report_skipped();
  CHECK(saving.warned.back() ==
        "3 of the checkpoints at every 10 steps were skipped: those before were not saved in time for the next");
}
