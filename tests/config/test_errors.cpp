// Error codes: what a program that catches an error can tell apart without its text.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/error_code.hpp"
#include "config/spelling.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/version.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"

using namespace ps_shm;

namespace {

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing is thrown");
  return {};
}

JobConfig config_of(const std::string& job) { return test::with_name(test::config_of({.max_workers = 1}), job); }

}  // namespace

TEST_CASE("errors: each code has a name of its own, a number that is no code has none") {
  std::set<std::string> names;
  constexpr auto kLast = static_cast<std::uint32_t>(ErrorCode::kPublisherGone);
  for (std::uint32_t i = 1; i <= kLast; ++i) names.insert(to_string(static_cast<ErrorCode>(i)));
  CHECK(names.size() == kLast);
  CHECK_FALSE(names.contains("unknown"));
  CHECK(to_string(ErrorCode{}) == std::string("unknown"));
  CHECK(to_string(static_cast<ErrorCode>(kLast + 1)) == std::string("unknown"));
}

TEST_CASE("errors: errors of the operating system map to codes that a program can act on") {
  CHECK(config::code_of(ENOENT) == ErrorCode::kNotFound);
  CHECK(config::code_of(EACCES) == ErrorCode::kPermissionDenied);
  CHECK(config::code_of(ENOSPC) == ErrorCode::kNoSpace);
  CHECK(config::code_of(EMFILE) == ErrorCode::kSystem);
  CHECK(config::code_of(0) == ErrorCode::kSystem);
}

TEST_CASE("errors: a text lists what there is, and of many names the first") {
  CHECK(config::what_there_is("bias", {}) == "none");
  CHECK(config::what_there_is("biss", {"bias", "weights"}) == "bias, weights; did you mean bias?");
  CHECK(config::what_there_is("other", {"bias", "weights"}) == "bias, weights");
  std::vector<std::string> many;
  for (int i = 10; i < 35; ++i) many.push_back("layer" + std::to_string(i));
  const std::string text = config::what_there_is("layer33x", many);
  CHECK(text.starts_with("layer10, layer11, "));
  CHECK(text.ends_with(", layer29, ... (25); did you mean layer33?"));
}

TEST_CASE("errors: each class has its code, and an error without one is an invalid argument") {
  CHECK(Error("text").code() == ErrorCode::kInvalidArgument);
  CHECK(Interrupted().code() == ErrorCode::kInterrupted);
  CHECK(JobFinished("text").code() == ErrorCode::kJobFinished);
  CHECK(Timeout("text").code() == ErrorCode::kTimedOut);
  CHECK(PublisherGone("text").code() == ErrorCode::kPublisherGone);
  CHECK(library_version() == std::string(PS_SHM_VERSION));
}

TEST_CASE("errors: a program can tell a job that does not exist from one that is full or another user's") {
  const test::JobName name;
  const std::string& job = name.text();
  CHECK(code_of([&] { JobView view(job); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { Worker worker({.job = job, .wait_job = Seconds(0.001)}); }) == ErrorCode::kTimedOut);
  CHECK(code_of([&] { Server server(config_of("no name")); }) == ErrorCode::kInvalidArgument);
  Server server(config_of(job));
  CHECK(code_of([&] { Server other(config_of(job)); }) == ErrorCode::kAlreadyExists);
  {
    Worker worker({.job = job, .rank = 0});
    CHECK(code_of([&] { Worker other({.job = job, .rank = 0}); }) == ErrorCode::kRankTaken);
    CHECK(code_of([&] { Worker other({.job = job}); }) == ErrorCode::kExhausted);
    CHECK(code_of([&] { Worker other({.job = job, .rank = 9}); }) == ErrorCode::kInvalidArgument);
    const auto zero = [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); };
    const Variable w = worker.variable({.name = "w", .shape = {2}}, zero);
    CHECK(code_of([&] { worker.variable({.name = "w", .shape = {3}}, zero); }) == ErrorCode::kIncompatible);
    CHECK(code_of([&] { worker.variable("v", Seconds(0.001)); }) == ErrorCode::kNotFound);
    std::vector<float> three(3);
    CHECK(code_of([&] { worker.pull(w, three); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { worker.variable({.name = "huge", .shape = {std::uint64_t{1} << 40}}, zero); }) ==
          ErrorCode::kNoSpace);
  }
}

TEST_CASE("errors: of publications and of checkpoints") {
  const std::string name = test::unique_job_name();
  CHECK(code_of([&] { Subscriber subscriber(name, {.wait = Seconds(0.001)}); }) == ErrorCode::kTimedOut);
  const std::string folder = "/tmp/" + name;
  CHECK(code_of([&] { Checkpoint checkpoint(folder); }) == ErrorCode::kDamaged);
}
