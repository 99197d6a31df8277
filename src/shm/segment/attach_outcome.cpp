#include "shm/segment/attach_outcome.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "config/spelling.hpp"
#include "shm/segment/layout.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::shm {
namespace {

// That there is no job or publication of this name, and which there are: the one that is probably meant, or some of them.
std::string describe_absent(const std::string& kind, const std::string& prefix, const std::string& segment,
                            const std::string& made_by) {
  constexpr std::size_t kShown = 5;
  const std::string name = segment.substr(prefix.size());
  std::vector<std::string> known;
  for (const std::string& there : list_segments(prefix)) {
    std::string other = there.substr(prefix.size());
    if (other.find('.') == std::string::npos) known.push_back(std::move(other));  // else it is a job's further segment
  }
  std::string others = config::did_you_mean(name, known);
  if (others.empty() && !known.empty()) {
    const bool is_long = known.size() > kShown;
    if (is_long) known.resize(kShown);
    others = fmt::format("; those on this machine are {}{}", fmt::join(known, ", "), is_long ? ", ..." : "");
  }
  return fmt::format("there is no {0} '{1}': its {2} has not been started, or has ended{3}", kind, name, made_by, others);
}

}  // namespace

std::string describe(AttachOutcome outcome, const std::string& name) {
  switch (outcome) {
    case AttachOutcome::kAbsent:
      if (name.starts_with(kBundlePrefix)) return describe_absent("publication", kBundlePrefix, name, "publisher");
      if (name == control_name(job_of(name))) return describe_absent("job", kJobPrefix, name, "ps_shm");
      return fmt::format("there is no segment /dev/shm/{}", name);
    case AttachOutcome::kBeingCreated:
      return fmt::format(
          "/dev/shm/{} is still being created; try again or, if its ps has died, remove it with inspect_shm rm", name);
    case AttachOutcome::kShardMissing:
      return fmt::format("/dev/shm/{} has no segment yet for one of its shards; start the ps_shm `task` that serves it",
                         name);
    case AttachOutcome::kOtherVersion:
      return fmt::format(
          "/dev/shm/{} has a layout version that differs from this program's ({}); use the programs that created "
          "it, or remove it with their inspect_shm rm",
          name, kLayoutVersion);
    case AttachOutcome::kOtherBuild:
      return fmt::format("/dev/shm/{} was made by a build whose structures differ; use the programs of one build",
                         name);
    case AttachOutcome::kDamaged:
      if (struct stat status; lstat(path_of(name).c_str(), &status) == 0 && S_ISDIR(status.st_mode))
        return fmt::format("/dev/shm/{} is a folder, not a segment; see what is in it, and remove it by hand", name);
      return fmt::format(
          "/dev/shm/{} is damaged, or is not a segment of a parameter server; remove it with inspect_shm rm `force`",
          name);
    case AttachOutcome::kExposed:
      return fmt::format(
          "/dev/shm/{} is open to every user of this machine by its mode, so its contents cannot be trusted; "
          "chmod o-rwx it, or remove it with inspect_shm rm `force`",
          name);
    case AttachOutcome::kNoPermission:
      if (name.starts_with(kBundlePrefix))
        return fmt::format(
            "no permission to use /dev/shm/{}; it belongs to {}: choose another name, run as that user, or give its "
            "publisher and its subscribers one `group`",
            name, owner_of(name));
      return fmt::format(
          "no permission to use /dev/shm/{}; it belongs to {}: choose another job name, run as that user, or share the "
          "job: start its ps and its other programs with one `group`",
          name, owner_of(name));
    case AttachOutcome::kReady:
      break;
  }
  return {};
}

Error attach_error(AttachOutcome outcome, const std::string& name) {
  const ErrorCode code = [&] {
    switch (outcome) {
      case AttachOutcome::kAbsent:
        return ErrorCode::kNotFound;
      case AttachOutcome::kBeingCreated:
      case AttachOutcome::kShardMissing:
        return ErrorCode::kUnavailable;
      case AttachOutcome::kOtherVersion:
      case AttachOutcome::kOtherBuild:
        return ErrorCode::kIncompatible;
      case AttachOutcome::kExposed:
      case AttachOutcome::kNoPermission:
        return ErrorCode::kPermissionDenied;
      case AttachOutcome::kDamaged:
      case AttachOutcome::kReady:
        break;
    }
    return ErrorCode::kDamaged;
  }();
  return Error(describe(outcome, name), code);
}

void fail_damaged(const std::string& segment, const std::string& what) {
  throw Error(fmt::format("/dev/shm/{} is damaged: {}; remove its job with inspect_shm rm `force`", segment, what),
              ErrorCode::kDamaged);
}

}  // namespace ps_shm::shm
