// The names of the public enumerations' values: to_string() and parse().
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "ps_shm/errors.hpp"
#include "ps_shm/gpu.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/schedule.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/table_spec.hpp"
#include "ps_shm/variable.hpp"
#include "support/error_text.hpp"

using namespace ps_shm;

namespace {

// Checks the enumeration whose values are numbered from `first` to `last`.
template <class Enum>
void check_names(Enum first, Enum last) {
  std::set<std::string> names;
  for (int number = int(first); number <= int(last); ++number) {
    const std::string name = to_string(Enum(number));
    CAPTURE(name);
    CHECK(name != "unknown");
    CHECK(names.insert(name).second);
    CHECK(parse<Enum>(name) == Enum(number));
  }
  CHECK(to_string(Enum(int(first) - 1)) == std::string("unknown"));
  CHECK(to_string(Enum(int(last) + 1)) == std::string("unknown"));
  for (const char* other : {"another", "unknown", ""}) {
    const std::string error = test::error_of([&] { static_cast<void>(parse<Enum>(other)); });
    CHECK(error.starts_with("unknown name '"));
    for (const std::string& name : names) CHECK(error.find(name) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("names: each value of each public enumeration has one, which is read back") {
  check_names(DType::kFloat32, DType::kFloat8E5M2);
  check_names(Mode::kAsync, Mode::kSync);
  check_names(Layout::kVersioned, Layout::kSingleWriter);
  check_names(Adds::kExact, Adds::kRacy);
  check_names(Reduce::kOrdered, Reduce::kAtomic);
  check_names(Placement::kRoundRobin, Placement::kPartition);
  check_names(PartitionBy::kRange, PartitionBy::kHash);
  check_names(Numa::kAuto, Numa::kNodes);
  check_names(WorkerState::kNever, WorkerState::kDead);
  check_names(Evict::kLru, Evict::kNone);
  check_names(UpdateRule::kAdd, UpdateRule::kRowwiseAdagrad);
  check_names(Schedule::Kind::kConstant, Schedule::Kind::kCosine);
  check_names(OnNan::kWarn, OnNan::kRestore);
  check_names(Wire::kFloat32, Wire::kBFloat16);
  check_names(BusyPolicy::kReturn, BusyPolicy::kWait);
  check_names(EndReason::kAllWorkersLeft, EndReason::kStopRequested);
  check_names(Slots::kKeep, Slots::kReset);
  check_names(ErrorCode::kInvalidArgument, ErrorCode::kPublisherGone);
}

TEST_CASE("names: case, hyphens and underscores do not matter, and a misspelled name is suggested") {
  CHECK(parse<Mode>("SYNC") == Mode::kSync);
  CHECK(parse<Layout>("in-place") == Layout::kInplace);
  CHECK(parse<Placement>("round_robin") == Placement::kRoundRobin);
  CHECK(test::error_of([] { static_cast<void>(parse<Layout>("verzioned")); }) ==
        "unknown name 'verzioned'; expected versioned|inplace|single-writer; did you mean versioned?");
}
