// The publications of this machine: publishers, readers and the generations they hold, and removal of dead ones.
#include <fmt/format.h>

#include <map>
#include <optional>

#include "cli/option_names.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/jobs.hpp"
#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/publication/bundle.hpp"
#include "shm/publication/publication.hpp"

namespace ps_shm::inspect {
namespace {

using shm::AttachOutcome;

std::vector<std::string> publication_names() {
  std::vector<std::string> names;
  for (const std::string& file : shm::list_segments(shm::kBundlePrefix)) {
    const std::string name = file.substr(std::string(shm::kBundlePrefix).size());
    try {
      check_publication_name(name);
      names.push_back(name);
    } catch (const Error&) {
      // Another file with a similar name.
    }
  }
  return names;
}

// Live subscribers, and dead ones that still hold leases.
Json list_subscribers(const shm::Bundle& bundle) {
  Json all = Json::array();
  for (std::uint32_t rank = 0; rank < bundle.subscribers(); ++rank) {
    const bool is_alive = bundle.locks().is_held_by_other(shm::kSubscriberByte + rank);
    Json held = shm::leased_by(bundle, rank);
    if (!is_alive && held.empty()) continue;
    const shm::SubscriberShm& entry = bundle.subscriber(rank);
    const std::uint64_t now = shm::now_ns(), joined = entry.joined_ns.load_relaxed();
    all.push_back({{"rank", rank},
                   {"state", is_alive ? "alive" : "dead"},
                   {"pid", entry.pid.load_relaxed()},
                   {"seconds", joined < now ? double(now - joined) * 1e-9 : 0},
                   {"generations", std::move(held)},
                   {"acknowledged", entry.acknowledged.load_relaxed()}});
  }
  return all;
}

// The writers, where there are several, and the last attempt to write a generation.
void describe_round(const shm::Bundle& bundle, Json& row) {
  if (bundle.writers() == 0) return;
  const std::uint64_t round = bundle.round().round.load_relaxed();  // relaxed, as all here: diagnostic only
  row["round"] = {
      {"attempt", shm::attempt_of(round)}, {"open", shm::is_open(round)}, {"step", bundle.round().step.load_relaxed()}};
  for (std::uint32_t number = 0; number < bundle.writers(); ++number) {
    const bool is_alive = bundle.locks().is_held_by_other(shm::kWriterByte + number);
    const std::uint32_t pid = bundle.writer(number).pid.load_relaxed();
    row["writers"].push_back({{"writer", number},
                              {"state", is_alive   ? "alive"
                                        : pid == 0 ? "absent"
                                                   : "dead"},
                              {"pid", pid},
                              {"leads", is_alive && pid == row["pid"]},
                              {"done", bundle.writer(number).done.load_relaxed() == shm::attempt_of(round)}});
  }
}

void describe_bundle(const shm::Bundle& bundle, Json& row) {
  const shm::NewestShm& state = bundle.newest();
  if (row["state"] == "orphaned" && state.ended.load_acquire() != 0) row["state"] = "ended";  // (publication.P10)
  row["age_seconds"] = age_seconds(bundle.segment().header().created_unix_ns);
  row["pid"] = state.pid.load_relaxed();
  row["publishers"] = state.publishers.load_relaxed();
  for (int attempt = 0; attempt < 100; ++attempt) {            // repeats only if a generation is published in between
    const std::uint64_t newest = state.newest.load_acquire();  // (publication.P4)
    row["generation"] = shm::generation_of(newest);
    if (newest == 0) break;
    const auto seen = shm::look_at(bundle, shm::record_of(newest) % bundle.records());
    if (!seen || seen->generation != shm::generation_of(newest)) continue;
    row["step"] = seen->step;
    row["changed"] = seen->changed;
    row["partial"] = seen->is_partial;
    row["generation_age_seconds"] = age_seconds(seen->unix_ns);
    break;
  }
  std::uint64_t bytes = 0;
  for (const TensorSpec& tensor : bundle.spec().tensors) bytes += tensor.byte_count();
  row["tensors"] = bundle.tensors();
  row["tensor_bytes"] = bytes;
  row["records"] = bundle.records();
  row["busy"] = state.busy.load_relaxed();
  row["written_bytes"] = state.written_bytes.load_relaxed();
  row["places"] = bundle.subscribers();
  row["subscribers"] = list_subscribers(bundle);
  describe_round(bundle, row);
}

bool is_reclaimable(const std::string& state) {
  return state == "dead" || state == "damaged" || state == "half-made" || state == "other version" ||
         state == "other build";
}

Json examine(const std::string& name) {
  shm::Segment segment;
  const AttachOutcome outcome = open_any(segment, shm::bundle_name(name));
  const bool is_held = segment.descriptor() >= 0 && shm::TaskLocks(segment.descriptor()).is_any_held_by_other();
  Json row = {{"publication", name},
              {"state", state_of(segment, outcome)},
              {"bytes", segment.allocated_bytes()},
              {"age_seconds", nullptr},
              {"pid", nullptr},
              {"publishers", nullptr},
              {"generation", nullptr},
              {"step", nullptr},
              {"changed", nullptr},
              {"partial", nullptr},
              {"generation_age_seconds", nullptr},
              {"tensors", nullptr},
              {"tensor_bytes", nullptr},
              {"records", nullptr},
              {"busy", nullptr},
              {"written_bytes", nullptr},
              {"places", nullptr},
              {"subscribers", Json::array()},
              {"round", nullptr},
              {"writers", Json::array()}};
  if (outcome == AttachOutcome::kReady) try {
      const shm::Bundle bundle(std::move(segment));
      describe_bundle(bundle, row);
      if (bundle.segment().was_cut_off()) row["state"] = "damaged";
    } catch (const Error&) {
      row["state"] = "damaged";
    }
  row["reclaimable"] = !is_held && is_reclaimable(row["state"].get<std::string>()) &&
                       folder_among({shm::bundle_name(name)}).empty();
  return row;
}

}  // namespace

Json list_publications(const std::string& only) {
  Json all = Json::array();
  for (const std::string& name : publication_names())
    if (only.empty() || name == only) all.push_back(examine(name));
  if (!only.empty() && all.empty())
    throw shm::attach_error(shm::AttachOutcome::kAbsent, shm::bundle_name(only));
  return {{"publications", std::move(all)}};
}

Json remove_publication(const std::string& name, bool force) {
  check_publication_name(name);
  const Json row = list_publications(name)["publications"][0];
  const bool is_folder = !folder_among({shm::bundle_name(name)}).empty();  // its removal throws an Error that says so
  if (!force && !is_folder && row["state"] != "dead" && row["state"] != "live" && row["state"] != "orphaned" &&
      row["state"] != "ended")
    throw Error(fmt::format("publication '{}' is {}; remove it with inspect_shm rm --force", name,
                            row["state"].get<std::string>()));
  if (shm::remove_bundle(name, -1, shm::kTrustAnybody) == shm::RemoveOutcome::kAlive) {
    std::vector<std::string> living;
    for (const Json& writer : row["writers"])
      if (writer["state"] == "alive")
        living.push_back(fmt::format("writer {} (pid {})", writer["writer"].dump(), writer["pid"].dump()));
    if (row["state"] == "live" && row["writers"].empty())
      living.push_back(fmt::format("its publisher (pid {})", row["pid"].dump()));
    for (const Json& subscriber : row["subscribers"])
      if (subscriber["state"] == "alive")
        living.push_back(fmt::format("subscriber {} (pid {})", subscriber["rank"].dump(), subscriber["pid"].dump()));
    if (living.empty()) living.push_back("the processes that have it open");
    throw Error(fmt::format("publication '{}' is in use; first end {}", name, fmt::join(living, ", ")));
  }
  return {{"publication", name}, {"removed", {shm::bundle_name(name)}}, {"bytes", row["bytes"]}};
}

void examine_publications(bool repair, Json& found) {
  found["publications"] = Json::array();
  Json listed = list_publications("");
  for (Json& row : listed["publications"]) {
    const Json name = row["publication"];
    if (repair && row["reclaimable"]) try {
        if (shm::remove_bundle(name, -1, shm::kTrustAnybody) == shm::RemoveOutcome::kRemoved) {
          found["removed"].push_back({{"publication", name}, {"bytes", row["bytes"]}});
          continue;
        }
      } catch (const Error& error) {
        found["failed"].push_back({{"publication", name}, {"why", tools::with_option_names(error.what())}});
      }
    found["publications"].push_back(std::move(row));
  }
}

}  // namespace ps_shm::inspect
