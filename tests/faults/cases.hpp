// The cases of the kill matrix: every case that the fault table allows, and a pairwise cover of them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "faults/fault_table.hpp"
#include "ps_shm/job_config.hpp"

namespace ps_shm::test {

enum class Kind { kAsync, kSsp, kSync, kBackup, kSummed };
enum class Role { kPs, kChief, kWorker, kOther, kSnapshotter };
enum class Action { kKill, kStop };

inline constexpr const char* kKindNames[] = {"async", "ssp", "sync", "backup", "summed"};
inline constexpr const char* kRoleNames[] = {"ps", "chief", "worker", "setter", "snapshotter"};

struct Case {
  const FaultPointRow* row;
  Role role;
  Kind kind;
  Layout layout;
  Action action;

  bool is_sync() const { return kind != Kind::kAsync && kind != Kind::kSsp; }
  std::string name() const {
    return fmt::format("{} {} at {} ({}, {})", action == Action::kKill ? "kill" : "stop", kRoleNames[int(role)],
                       row->name, kKindNames[int(kind)], layout == Layout::kVersioned ? "versioned" : "inplace");
  }
};

inline bool is_reached(const FaultPointRow& row, Kind kind) {
  switch (kind) {
    case Kind::kAsync:
      return (row.in & kInAsync) != 0;
    case Kind::kSsp:
      return (row.in & kInSsp) != 0;
    case Kind::kSync:
      return (row.in & kInSync) != 0;
    case Kind::kBackup:
      return (row.in & kInBackup) != 0;
    case Kind::kSummed:
      return (row.in & kInAccumulated) != 0;
  }
  return false;
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const FaultPointRow& row : kFaultPointTable) {
    if (row.way == FaultWay::kByHand) continue;
    std::vector<Role> roles = {Role::kPs};
    if (row.actor == FaultActor::kWorker) roles = {Role::kChief, Role::kWorker};
    if (row.actor == FaultActor::kSetter) roles = {Role::kOther};
    if (row.actor == FaultActor::kSnapshotter) roles = {Role::kSnapshotter};
    for (const Role role : roles)
      for (const Kind kind : {Kind::kAsync, Kind::kSsp, Kind::kSync, Kind::kBackup, Kind::kSummed})
        for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
          for (const Action action : {Action::kKill, Action::kStop}) {
            const Case one{&row, role, kind, layout, action};
            const std::uint32_t wanted = layout == Layout::kVersioned ? kInVersioned : kInInplace;
            if (!is_reached(row, kind) || (row.in & wanted) == 0) continue;
            if (one.is_sync() && layout == Layout::kInplace) continue;  // refused
            cases.push_back(one);
          }
  }
  return cases;
}

// The behaviour of these protocols does not depend on the mode: one mode with a barrier and one without represent all.
inline bool is_like_others(const Case& one) {
  static const std::set<std::string> kIndependent = {"create", "remove",  "adopt",      "set",
                                                     "event",  "declare", "initialise", "share"};
  return kIndependent.count(one.row->protocol) != 0 && one.kind != Kind::kAsync && one.kind != Kind::kSync &&
         one.kind != Kind::kSummed;
}

using Pair = std::array<int, 4>;

inline std::vector<Pair> pairs_of(const Case& one) {
  const std::array<int, 5> values = {int(one.row->point), int(one.role), int(one.kind), int(one.layout),
                                     int(one.action)};
  std::vector<Pair> pairs;
  for (int a = 0; a < 5; ++a)
    for (int b = a + 1; b < 5; ++b) pairs.push_back({a, values[std::size_t(a)], b, values[std::size_t(b)]});
  return pairs;
}

// Greedy: picks the case with the most pairs that are not covered yet.
inline std::vector<Case> pairwise(std::vector<Case> cases, std::mt19937_64& random) {
  std::shuffle(cases.begin(), cases.end(), random);
  std::set<Pair> open;
  for (const Case& one : cases)
    for (const Pair& pair : pairs_of(one)) open.insert(pair);
  std::vector<Case> chosen;
  while (!open.empty()) {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      std::size_t news = 0;
      for (const Pair& pair : pairs_of(cases[i])) news += open.count(pair);
      if (news > most) best = i, most = news;
    }
    for (const Pair& pair : pairs_of(cases[best])) open.erase(pair);
    chosen.push_back(cases[best]);
  }
  return chosen;
}

}  // namespace ps_shm::test
