#include "inspect_shm/publications.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/option_names.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/jobs.hpp"
#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/errors.hpp"
#include "report/figures.hpp"
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
std::vector<SubscriberInfo> subscribers_of(const shm::Bundle& bundle) {
  std::vector<SubscriberInfo> all;
  for (std::uint32_t rank = 0; rank < bundle.subscribers(); ++rank) {
    const bool is_alive = bundle.locks().is_held_by_other(shm::kSubscriberByte + rank);
    std::vector<std::uint64_t> held = shm::leased_by(bundle, rank);
    if (!is_alive && held.empty()) continue;
    const shm::SubscriberShm& entry = bundle.subscriber(rank);
    const std::uint64_t now = shm::now_ns(), joined = entry.joined_ns.load_relaxed();
    all.push_back({rank, is_alive ? "alive" : "dead", entry.pid.load_relaxed(),
                   joined < now ? double(now - joined) * 1e-9 : 0, std::move(held), entry.acknowledged.load_relaxed()});
  }
  return all;
}

// The writers, where there are several, and the last attempt to write a generation.
void describe_round(const shm::Bundle& bundle, PublicationInfo& info) {
  if (bundle.writers() == 0) return;
  const std::uint64_t round = bundle.round().round.load_relaxed();  // relaxed, as all here: diagnostic only
  info.round = {shm::attempt_of(round), shm::is_open(round), bundle.round().step.load_relaxed()};
  for (std::uint32_t number = 0; number < bundle.writers(); ++number) {
    const bool is_alive = bundle.locks().is_held_by_other(shm::kWriterByte + number);
    const std::uint32_t pid = bundle.writer(number).pid.load_relaxed();
    info.writers.push_back({number,
                            is_alive   ? "alive"
                            : pid == 0 ? "absent"
                                       : "dead",
                            pid, is_alive && pid == info.pid,
                            bundle.writer(number).done.load_relaxed() == shm::attempt_of(round)});
  }
}

void describe_bundle(const shm::Bundle& bundle, PublicationInfo& info) {
  const shm::NewestShm& state = bundle.newest();
  if (info.state == "orphaned" && state.ended.load_acquire() != 0) info.state = "ended";  // (publication.P10)
  info.age_seconds = age_seconds(bundle.segment().header().created_unix_ns);
  info.pid = state.pid.load_relaxed();
  info.publishers = state.publishers.load_relaxed();
  for (int attempt = 0; attempt < 100; ++attempt) {            // repeats only if a generation is published in between
    const std::uint64_t newest = state.newest.load_acquire();  // (publication.P4)
    info.generation = shm::generation_of(newest);
    if (newest == 0) break;
    const auto seen = shm::look_at(bundle, shm::record_of(newest) % bundle.records());
    if (!seen || seen->generation != shm::generation_of(newest)) continue;
    info.step = seen->step;
    info.changed = seen->changed;
    info.is_partial = seen->is_partial;
    info.generation_age_seconds = age_seconds(seen->unix_ns);
    break;
  }
  std::uint64_t bytes = 0;
  for (const TensorSpec& tensor : bundle.spec().tensors) bytes += tensor.byte_count();
  info.tensors = bundle.tensors();
  info.tensor_bytes = bytes;
  info.records = bundle.records();
  info.busy = state.busy.load_relaxed();
  info.written_bytes = state.written_bytes.load_relaxed();
  info.places = bundle.subscribers();
  info.subscribers = subscribers_of(bundle);
  describe_round(bundle, info);
}

bool is_reclaimable(const std::string& state) {
  return state == "dead" || state == "damaged" || state == "half-made" || state == "other version" ||
         state == "other build";
}

PublicationInfo examine(const std::string& name) {
  shm::Segment segment;
  const AttachOutcome outcome = open_any(segment, shm::bundle_name(name));
  const bool is_held = segment.descriptor() >= 0 && shm::TaskLocks(segment.descriptor()).is_any_held_by_other();
  PublicationInfo info;
  info.name = name, info.state = state_of(segment, outcome), info.bytes = segment.allocated_bytes();
  if (outcome == AttachOutcome::kReady) try {
      const shm::Bundle bundle(std::move(segment));
      describe_bundle(bundle, info);
      if (bundle.segment().was_cut_off()) info.state = "damaged";
    } catch (const Error&) {
      info.state = "damaged";
    }
  info.is_reclaimable = !is_held && is_reclaimable(info.state) && folder_among({shm::bundle_name(name)}).empty();
  return info;
}

}  // namespace

std::vector<PublicationInfo> find_publications(const std::string& only) {
  std::vector<PublicationInfo> all;
  for (const std::string& name : publication_names())
    if (only.empty() || name == only) all.push_back(examine(name));
  if (!only.empty() && all.empty()) throw shm::attach_error(shm::AttachOutcome::kAbsent, shm::bundle_name(only));
  return all;
}

Json list_publications(const std::string& only) {
  return {{"publications", report::figures_json(find_publications(only))}};
}

Json remove_publication(const std::string& name, bool force) {
  check_publication_name(name);
  const PublicationInfo found = find_publications(name).front();
  const bool is_folder = !folder_among({shm::bundle_name(name)}).empty();  // its removal throws an Error that says so
  if (!force && !is_folder && found.state != "dead" && found.state != "live" && found.state != "orphaned" &&
      found.state != "ended")
    throw Error(fmt::format("publication '{}' is {}; remove it with inspect_shm rm --force", name, found.state));
  if (shm::remove_bundle(name, -1, shm::kTrustAnybody) == shm::RemoveOutcome::kAlive) {
    std::vector<std::string> living;
    for (const WriterInfo& writer : found.writers)
      if (writer.state == "alive") living.push_back(fmt::format("writer {} (pid {})", writer.writer, writer.pid));
    if (found.state == "live" && found.writers.empty())
      living.push_back(fmt::format("its publisher (pid {})", found.pid.value_or(0)));
    for (const SubscriberInfo& subscriber : found.subscribers)
      if (subscriber.state == "alive")
        living.push_back(fmt::format("subscriber {} (pid {})", subscriber.rank, subscriber.pid));
    if (living.empty()) living.push_back("the processes that have it open");
    throw Error(fmt::format("publication '{}' is in use; first end {}", name, fmt::join(living, ", ")));
  }
  return {{"publication", name}, {"removed", {shm::bundle_name(name)}}, {"bytes", found.bytes}};
}

void examine_publications(bool repair, Json& found) {
  found["publications"] = Json::array();
  for (const PublicationInfo& info : find_publications("")) {
    if (repair && info.is_reclaimable) try {
        if (shm::remove_bundle(info.name, -1, shm::kTrustAnybody) == shm::RemoveOutcome::kRemoved) {
          found["removed"].push_back({{"publication", info.name}, {"bytes", info.bytes}});
          continue;
        }
      } catch (const Error& error) {
        found["failed"].push_back({{"publication", info.name}, {"why", tools::with_option_names(error.what())}});
      }
    found["publications"].push_back(report::figures_json(info));
  }
}

}  // namespace ps_shm::inspect
