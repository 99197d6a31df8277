// What is shown of a publication.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "inspection/figures.hpp"

namespace ps_shm::inspect {

struct SubscriberInfo {
  std::uint32_t rank = 0;
  std::string state;  // "alive" or "dead"
  std::uint32_t pid = 0;
  double seconds = 0;                      // since it came
  std::vector<std::uint64_t> generations;  // that it holds
  std::uint64_t acknowledged = 0;          // that it has said to use; 0: none
};

struct RoundInfo {  // the last attempt of several writers to write a generation
  std::uint64_t attempt = 0;
  bool is_open = false;
  std::uint64_t step = 0;
};

struct WriterInfo {
  std::uint32_t writer = 0;
  std::string state;  // "alive", "absent" or "dead"
  std::uint32_t pid = 0;
  bool leads = false;
  bool is_done = false;  // with its slices of that attempt
};

struct PublicationInfo {
  std::string name, state;
  std::uint64_t bytes = 0;
  bool is_reclaimable = false;
  // Unset: it is unreadable.
  std::optional<double> age_seconds;
  std::optional<std::uint64_t> pid, publishers;
  std::optional<std::uint64_t> generation;  // 0: none yet; otherwise the next four are of it
  std::optional<std::uint64_t> step, changed;
  std::optional<bool> is_partial;
  std::optional<double> generation_age_seconds;
  std::optional<std::uint64_t> tensors, tensor_bytes, records, busy, written_bytes, places;
  std::vector<SubscriberInfo> subscribers;
  std::optional<RoundInfo> round;
  std::vector<WriterInfo> writers;
};

// All publications of this machine, or only `only`.
std::vector<PublicationInfo> find_publications(const std::string& only);

}  // namespace ps_shm::inspect

namespace ps_shm::inspection {

template <>
inline constexpr auto kFigures<inspect::SubscriberInfo> =
    std::tuple(Figure{"rank", &inspect::SubscriberInfo::rank}, Figure{"state", &inspect::SubscriberInfo::state},
               Figure{"pid", &inspect::SubscriberInfo::pid}, Figure{"seconds", &inspect::SubscriberInfo::seconds},
               Figure{"generations", &inspect::SubscriberInfo::generations},
               Figure{"acknowledged", &inspect::SubscriberInfo::acknowledged});

template <>
inline constexpr auto kFigures<inspect::RoundInfo> = std::tuple(Figure{"attempt", &inspect::RoundInfo::attempt},
                                                                Figure{"open", &inspect::RoundInfo::is_open},
                                                                Figure{"step", &inspect::RoundInfo::step});

template <>
inline constexpr auto kFigures<inspect::WriterInfo> = std::tuple(Figure{"writer", &inspect::WriterInfo::writer},
                                                                 Figure{"state", &inspect::WriterInfo::state},
                                                                 Figure{"pid", &inspect::WriterInfo::pid},
                                                                 Figure{"leads", &inspect::WriterInfo::leads},
                                                                 Figure{"done", &inspect::WriterInfo::is_done});

template <>
inline constexpr auto kFigures<inspect::PublicationInfo> = std::tuple(
    Figure{"publication", &inspect::PublicationInfo::name}, Figure{"state", &inspect::PublicationInfo::state},
    Figure{"bytes", &inspect::PublicationInfo::bytes}, Figure{"age_seconds", &inspect::PublicationInfo::age_seconds},
    Figure{"pid", &inspect::PublicationInfo::pid}, Figure{"publishers", &inspect::PublicationInfo::publishers},
    Figure{"generation",
           &inspect::PublicationInfo::generation,
           "Generations published.",
           {.metric = "ps_shm_publication_generations_total"}},
    Figure{"step", &inspect::PublicationInfo::step}, Figure{"changed", &inspect::PublicationInfo::changed},
    Figure{"partial", &inspect::PublicationInfo::is_partial},
    Figure{"generation_age_seconds", &inspect::PublicationInfo::generation_age_seconds},
    Figure{"tensors", &inspect::PublicationInfo::tensors},
    Figure{"tensor_bytes", &inspect::PublicationInfo::tensor_bytes},
    Figure{"records", &inspect::PublicationInfo::records}, Figure{"busy", &inspect::PublicationInfo::busy},
    Figure{"written_bytes",
           &inspect::PublicationInfo::written_bytes,
           "Bytes written by the publisher.",
           {.metric = "ps_shm_publication_written_bytes_total"}},
    Figure{"places", &inspect::PublicationInfo::places},
    Figure{"subscribers",
           &inspect::PublicationInfo::subscribers,
           "Subscribers.",
           {.metric = "ps_shm_publication_subscribers"}},
    Figure{"round", &inspect::PublicationInfo::round}, Figure{"writers", &inspect::PublicationInfo::writers},
    Figure{"reclaimable", &inspect::PublicationInfo::is_reclaimable});

}  // namespace ps_shm::inspection
