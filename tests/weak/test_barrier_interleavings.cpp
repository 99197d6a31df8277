// Explores all interleavings of the barrier's code, and of ranks that are left and taken over, as if memory were
// sequentially consistent. With PS_SHM_TEST_FULL this includes two rounds, a quorum and deaths; otherwise those are
// explored up to some thousand executions.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>

#include "weak/scenes.hpp"

using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;

void follow(const std::vector<WeakCase>& scenes) {
  for (const WeakCase& one : scenes) {
    CAPTURE(one.name);
    const auto scene = one.make();
    scene->explorer.make_sequential();
    const bool is_followed = g_full || one.is_small || one.name == "barrier: a round of two";
    const WeakFound found = scene->explorer.explore(is_followed ? 100'000'000 : 20'000);
    MESSAGE(fmt::format("{}: {} states, {} executions{}", one.name, found.states, found.executions,
                        found.is_complete ? ", all" : ""));
    CHECK_MESSAGE(found.failure.empty(), found.failure << " after " << found.schedule);
    if (is_followed) CHECK(found.is_complete);
  }
}

}  // namespace

TEST_CASE("interleavings: the barrier") { follow(scenes_of_barriers()); }
TEST_CASE("interleavings: ranks that are left and taken over") { follow(scenes_of_ranks()); }
