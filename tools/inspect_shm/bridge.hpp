// The bridge of a job to other boxes, by what it keeps in shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "inspection/figures.hpp"

namespace ps_shm::inspect {

// Anybody may have written what is read here: a member is unset if it has another type than it should.
struct BridgeTable {
  std::optional<std::string> name;
  std::optional<std::uint64_t> keys, most_keys, cut_rows;
};

struct BridgeInfo {
  std::string error;  // why the state is unreadable: then nothing else is set
  bool is_alive = false;
  std::optional<double> age_seconds;  // of the last round
  std::optional<std::uint64_t> box, boxes, round;
  std::optional<double> seconds;       // of the last round
  std::optional<std::uint64_t> bytes;  // that this box sent in the last round
  std::optional<double> norm;          // of the difference that it added up
  std::optional<std::uint64_t> dropped, dropped_steps;
  std::optional<std::string> phase;
  std::vector<std::uint64_t> members;  // boxes of the last round
  std::vector<BridgeTable> tables;     // by key
};

// None: the job has no bridge.
std::optional<BridgeInfo> bridge_of(const std::string& job, std::uint64_t instance);

}  // namespace ps_shm::inspect

namespace ps_shm::inspection {

template <>
inline constexpr auto kFigures<inspect::BridgeTable> = std::tuple(Figure{"name", &inspect::BridgeTable::name},
                                                                  Figure{"keys",
                                                                         &inspect::BridgeTable::keys,
                                                                         "Keys that the boxes have agreed about.",
                                                                         {.metric = "ps_shm_bridge_table_keys"}},
                                                                  Figure{"most_keys",
                                                                         &inspect::BridgeTable::most_keys,
                                                                         "The most keys whose rows the boxes exchange.",
                                                                         {.metric = "ps_shm_bridge_table_most_keys"}},
                                                                  Figure{"cut_rows",
                                                                         &inspect::BridgeTable::cut_rows,
                                                                         "Rows that this box sent in its last cut.",
                                                                         {.metric = "ps_shm_bridge_table_cut_rows"}});

template <>
inline constexpr auto kFigures<inspect::BridgeInfo> = std::tuple(
    Figure{"alive",
           &inspect::BridgeInfo::is_alive,
           "1 if the bridge to other boxes is alive.",
           {.metric = "ps_shm_bridge_alive"}},
    Figure{"age_seconds",
           &inspect::BridgeInfo::age_seconds,
           "Time since its last round.",
           {.metric = "ps_shm_bridge_round_age_seconds"}},
    Figure{"box", &inspect::BridgeInfo::box}, Figure{"boxes", &inspect::BridgeInfo::boxes},
    Figure{"round", &inspect::BridgeInfo::round, "Rounds of all boxes.", {.metric = "ps_shm_bridge_rounds_total"}},
    Figure{"seconds",
           &inspect::BridgeInfo::seconds,
           "Time that the last round took.",
           {.metric = "ps_shm_bridge_round_seconds"}},
    Figure{"bytes",
           &inspect::BridgeInfo::bytes,
           "Bytes that this box sent in the last round.",
           {.metric = "ps_shm_bridge_round_sent_bytes"}},
    Figure{"norm",
           &inspect::BridgeInfo::norm,
           "Norm of what the boxes had done in the last round.",
           {.metric = "ps_shm_bridge_difference_norm"}},
    Figure{"dropped",
           &inspect::BridgeInfo::dropped,
           "Elements whose change was in doubt after a death.",
           {.metric = "ps_shm_bridge_dropped_elements_total"}},
    Figure{"dropped_steps",
           &inspect::BridgeInfo::dropped_steps,
           "Steps of this box that were not finite.",
           {.metric = "ps_shm_bridge_dropped_steps_total"}},
    Figure{"phase", &inspect::BridgeInfo::phase},
    Figure{"members",
           &inspect::BridgeInfo::members,
           "Boxes that took part in its last round.",
           {.metric = "ps_shm_bridge_boxes"}},
    Figure{"tables", &inspect::BridgeInfo::tables});

}  // namespace ps_shm::inspection
