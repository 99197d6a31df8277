// What a bridge to other boxes keeps: it holds at each moment at which the bridge may be killed.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <string>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/segment/bridge_state.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::test;
using shm::BridgeState;

namespace {

constexpr std::uint64_t kInstance = 77, kBlocks = 2 * shm::kBridgePart + 1;  // three parts
constexpr BridgeState::Form kForm{.blocks = kBlocks, .wire_bytes = 4096, .has_momentum = true};

// Kills this process before its `number`-th store to a shared word.
void kill_before(std::uint64_t number) {
  static std::uint64_t left;
  left = number;
  shm::g_fault_hooks.before_access = [](const void*, bool stores) {
    if (stores && --left == 0) raise(SIGKILL);
  };
}

// Each element becomes its double plus 1, once.
void step(BridgeState& state) {
  state.replace([](std::uint64_t, std::span<float> anchor, std::span<float> momentum) {
    for (float& one : anchor) one = 2 * one + 1;
    for (float& one : momentum) one = 3 * one + 1;
  });
}

bool are_all(std::span<const float> floats, float value) {
  return std::all_of(floats.begin(), floats.end(), [&](float one) { return one == value; });
}

}  // namespace

TEST_CASE("bridge: a text is the old one or the new one, and an outer step is made once (bridge.S1, bridge.S6)") {
  const JobConfig config = config_of();
  const Server server(config);  // removes the state with the job
  std::string last;
  float anchor = 0, momentum = 0;
  for (std::uint64_t number = 1;; ++number) {
    const std::string begun = "begun " + std::to_string(number), done = "done " + std::to_string(number);
    Child killed([&] {
      kill_before(number);
      BridgeState state(config.job, kInstance, kForm);
      state.rewind();
      state.write(begun);
      step(state);
      state.write(done);
      return 0;
    });
    const int code = killed.join();
    REQUIRE((code == 0 || code == -1));
    const auto seen = BridgeState::look(config.job, kInstance);
    BridgeState state(config.job, kInstance, kForm);
    const std::string text = state.text();
    CHECK((seen ? seen->text : "") == text);
    CHECK((text == last || text == begun || text == done));
    if (text == begun) step(state);  // the rest of it
    if (text != last) anchor = 2 * anchor + 1, momentum = 3 * momentum + 1;
    CHECK(are_all(state.anchor(), anchor));
    CHECK(are_all(state.momentum(), momentum));
    if (code == 0) {
      CHECK(number > 8);  // two texts, rewind() and two stores for each part
      break;
    }
    last = text;
  }
}

TEST_CASE("bridge: a state has one owner, belongs to one job, and keeps its form") {
  const JobConfig config = config_of();
  {
    const Server server(config);
    BridgeState state(config.job, kInstance, kForm);
    CHECK(state.text().empty());
    CHECK(!BridgeState::look(config.job, kInstance));
    state.write("mine");
    CHECK(BridgeState::look(config.job, kInstance)->text == "mine");
    Child second([&] {
      try {
        BridgeState(config.job, kInstance, kForm);
      } catch (const Error& error) {
        return error.code() == ErrorCode::kAlreadyExists ? 0 : 2;
      }
      return 1;
    });
    CHECK(second.join() == 0);
  }
  CHECK(!BridgeState::look(config.job, kInstance));  // it went with the job
  const Server server(config);
  {
    BridgeState state(config.job, kInstance, kForm);
    state.write("mine");
  }
  CHECK(!BridgeState::look(config.job, kInstance)->has_owner);
  BridgeState::Form other = kForm;
  other.wire_bytes = 2048;
  CHECK_THROWS_WITH_AS(BridgeState(config.job, kInstance, other), doctest::Contains("another wire format"), Error);
  const BridgeState next(config.job, kInstance + 1, kForm);  // of a new job of that name
  CHECK(next.text().empty());
  CHECK(!BridgeState::look(config.job, kInstance));
}
