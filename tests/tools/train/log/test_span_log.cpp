#include "train/log/span_log.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/folder.hpp"

using namespace ps_shm;
using train::SpanLog;

TEST_CASE("span log: a file that cannot be written is reported once") {
  const std::string text = "the trace is lost: /dev/full cannot be written: No space left on device";
  std::vector<std::string> said;
  const auto lost = [&](const std::string& why) { said.push_back(why); };
  { const SpanLog log("/dev/full", lost); }  // all of it is written at the end
  CHECK(said == std::vector{text});
  said.clear();
  {
    SpanLog log("/dev/full", lost);
    log.begin_worker(0);
    log.add("pull", 1'000'000'000, 1'000'000'001);
    CHECK(said == std::vector{text});
    log.add("push", 2'000'000'000, 2'000'000'001);
  }
  CHECK(said.size() == 1);
  { const SpanLog log("/dev/full"); }  // nobody is told
}

TEST_CASE("span log: what is removed is a file") {
  const test::Folder folder;
  std::vector<std::string> said;
  {
    const SpanLog log(folder.path("trace"), [&](const std::string& why) { said.push_back(why); });
  }
  CHECK(said.empty());
  CHECK(std::filesystem::exists(folder.path("trace")));
  std::filesystem::create_symlink(folder.path("trace"), folder.path("link"));
  train::remove_trace(folder.path("link"));
  CHECK(std::filesystem::is_symlink(folder.path("link")));
  train::remove_trace(folder.path("trace"));
  CHECK_FALSE(std::filesystem::exists(folder.path("trace")));
  train::remove_trace(folder.path("trace"));  // it is gone
}
