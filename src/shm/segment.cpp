#include "shm/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "ps/errors.hpp"
#include "shm/futex.hpp"
#include "shm/memory_policy.hpp"

namespace ps::shm {
namespace {

constexpr char kDirectory[] = "/dev/shm";
constexpr mode_t kMode = 0600, kGroupMode = 0660, kOthers = 0007;
constexpr std::size_t kMostReserved = std::size_t{1} << 46;  // half of a process's address space

std::string path_of(const std::string& name) { return std::string(kDirectory) + "/" + name; }

// Descriptors of this process's segments. A forked child must not keep them: a lock lives as long as any descriptor of
// its open file, so the child would keep its dead parent's lock (L2). Closing never unlocks what the parent holds.
struct OpenDescriptors {
  std::mutex mutex;
  std::vector<int> all;

  static OpenDescriptors& instance() {
    static OpenDescriptors* descriptors = [] {
      auto* made = new OpenDescriptors;  // never freed: a child may fork while statics are being destroyed
      pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                     [] {
                       for (int descriptor : instance().all) ::close(descriptor);
                       instance().all.clear();
                       instance().mutex.unlock();
                     });
      return made;
    }();
    return *descriptors;
  }
  void add(int descriptor) {
    const std::lock_guard guard(mutex);
    all.push_back(descriptor);
  }
  void close(int descriptor) {
    const std::lock_guard guard(mutex);
    if (std::erase(all, descriptor) != 0) ::close(descriptor);  // in a forked child it is closed already
  }
};

// What Boost's mapped_region asks of a thing that can be mapped.
struct Mappable {
  int descriptor;
  boost::interprocess::mode_t mode;
  boost::interprocess::mapping_handle_t get_mapping_handle() const noexcept { return {descriptor, false}; }
  boost::interprocess::mode_t get_mode() const noexcept { return mode; }
};

bool is_in_group(gid_t group) {
  if (group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  return count > 0 && std::find(groups.begin(), groups.begin() + count, group) != groups.begin() + count;
}

// Whose segments we use: our own, those that are shared with a group of ours, and as root all.
bool is_trusted(const struct stat& status) {
  return geteuid() == 0 || status.st_uid == geteuid() ||
         ((status.st_mode & kGroupMode) == kGroupMode && is_in_group(status.st_gid));
}

// What to do about an error of the system, in brackets; empty where nothing is known.
std::string advice(int error) {
  switch (error) {
    case EMFILE:
      return "; raise the limit on open files (ulimit -n)";
    case ENFILE:
      return "; raise the machine's limit on open files (sysctl fs.file-max)";
    case ENOMEM:
      return "; raise the limit on address space (ulimit -v), or the machine's or container's memory";
    case EFBIG:
      return "; raise the limit on file sizes (ulimit -f)";
    default:
      return {};
  }
}

[[noreturn]] void fail_no_room(const std::string& what, std::size_t bytes, int error) {
  if (error == ENOSPC || error == ENOMEM || error == EDQUOT)
    throw Error(
        fmt::format("cannot reserve {:.1f} MiB for {}: /dev/shm has {:.1f} MiB left; free some (inspect_shm ls), "
                    "or enlarge it (mount -o remount,size=..., a container's --shm-size)",
                    double(bytes) / 1048576, what, double(shm_free_bytes()) / 1048576));
  throw Error(fmt::format("cannot reserve {:.1f} MiB for {}: {}{}", double(bytes) / 1048576, what, std::strerror(error),
                          advice(error)));
}

int fallocate_retrying(int descriptor, std::size_t bytes) {
  int error;
  do error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

}  // namespace

std::string describe(AttachOutcome outcome, const std::string& name) {
  switch (outcome) {
    case AttachOutcome::kAbsent:
      return fmt::format(
          "there is no segment /dev/shm/{}; start its ps_shm, or see inspect_shm ls for the jobs there are", name);
    case AttachOutcome::kBeingCreated:
      return fmt::format(
          "/dev/shm/{} is still being created; try again, or if its ps died remove it with inspect_shm rm", name);
    case AttachOutcome::kShardMissing:
      return fmt::format("/dev/shm/{} has a shard that is not there yet; start the ps_shm --task for it", name);
    case AttachOutcome::kOtherVersion:
      return fmt::format(
          "/dev/shm/{} has another layout version than this program's ({}); use the programs that created "
          "it, or remove it with their inspect_shm rm",
          name, kLayoutVersion);
    case AttachOutcome::kOtherBuild:
      return fmt::format("/dev/shm/{} was made by a build whose structures differ; use the programs of one build",
                         name);
    case AttachOutcome::kDamaged:
      return fmt::format(
          "/dev/shm/{} is damaged, or no segment of a parameter server; remove it with inspect_shm rm --force", name);
    case AttachOutcome::kExposed:
      return fmt::format(
          "/dev/shm/{} can be changed by every user of this machine, so nothing in it is to be believed; "
          "chmod o-rwx it, or remove it with inspect_shm rm --force",
          name);
    case AttachOutcome::kNoPermission:
      return fmt::format(
          "no permission to use /dev/shm/{}; it belongs to {}, choose another job name, or have that ps started with "
          "--group",
          name, owner_of(name));
    case AttachOutcome::kReady:
      break;
  }
  return {};
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    name_ = std::move(other.name_);
    region_.swap(other.region_);
    mapped_by_ = other.mapped_by_;
    watch_ = std::move(other.watch_);
  }
  return *this;
}

Segment::~Segment() { close(); }

void Segment::close() noexcept {
  watch_ = TruncationWatch();
  if (is_mapped() && mapped_by_ != getpid()) {
    // A forked child has not got the mapping (map), and what lies there now is something of its own: forgotten, not
    // unmapped. Nothing of a region is on the heap.
    using Region = boost::interprocess::mapped_region;
    alignas(Region) std::byte forgotten[sizeof(Region)];
    std::construct_at(reinterpret_cast<Region*>(forgotten), std::move(region_));
  }
  region_ = {};
  if (descriptor_ >= 0) OpenDescriptors::instance().close(std::exchange(descriptor_, -1));
}

void Segment::map(std::size_t bytes, Access access) {
  const auto mode = access == Access::kReadWrite ? boost::interprocess::read_write : boost::interprocess::read_only;
  try {
    region_ = boost::interprocess::mapped_region(Mappable{descriptor_, mode}, mode, 0, bytes);
  } catch (const boost::interprocess::interprocess_exception& error) {
    throw Error(fmt::format("cannot map {:.1f} MiB of /dev/shm/{}: {}; is there a limit on address space (ulimit -v)?",
                            double(bytes) / 1048576, name_, error.what()));
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("no memory left to map /dev/shm/{}{}", name_, advice(ENOMEM)));
  }
  if (access == Access::kReadOnly) watch_ = TruncationWatch(region_.get_address(), region_.get_size());
  mapped_by_ = getpid();
  madvise(region_.get_address(), region_.get_size(), MADV_DONTFORK);  // L2: a child has no business here
}

Segment Segment::create(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance,
                        std::size_t bytes, std::size_t reserved_bytes, const Sharing& sharing) {
  Segment segment;
  segment.name_ = "(new segment of job " + job + ")";
  const int descriptor = ::open(kDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, kMode);
  if (descriptor < 0)
    throw Error(
        fmt::format("cannot create a segment in /dev/shm: {}{}", std::strerror(errno),
                    advice(errno).empty() ? "; is a tmpfs mounted there that you may write to?" : advice(errno)));
  OpenDescriptors::instance().add(descriptor);
  segment.descriptor_ = descriptor;
  constexpr auto kKeep = static_cast<uid_t>(-1);
  if ((sharing.owner || sharing.group) &&
      fchown(descriptor, sharing.owner.value_or(kKeep), sharing.group.value_or(kKeep)) != 0)
    throw Error(fmt::format("cannot share a segment of job {} with its group: {}; are you a member of it?", job,
                            std::strerror(errno)));
  // O_TMPFILE's mode went through the umask
  if (fchmod(descriptor, sharing.group ? kGroupMode : kMode) != 0)
    throw Error(fmt::format("cannot set the mode of a segment of job {}: {}", job, std::strerror(errno)));
  reserved_bytes = std::clamp(reserved_bytes, bytes, std::max(bytes, kMostReserved));
  if (const int error = fallocate_retrying(descriptor, bytes)) fail_no_room("a segment of job " + job, bytes, error);
  segment.map(reserved_bytes, Access::kReadWrite);
  HeaderShm& header = segment.header();
  header.magic = kMagic;
  header.kind = static_cast<std::uint32_t>(kind);
  header.fingerprint = kFingerprint;
  header.instance = instance;
  header.initial_bytes = bytes;
  header.reserved_bytes = reserved_bytes;
  header.created_unix_ns =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  header.creator_pid = static_cast<std::uint32_t>(getpid());
  header.number = number;
  header.node = -1;
  job.copy(header.job, sizeof header.job - 1);
  return segment;
}

std::string Segment::place_memory(std::optional<std::uint32_t> node, bool huge_pages) {
  std::string refused;
  if (node) {
    if (prefer_node(region_.get_address(), region_.get_size(), *node))
      header().node = static_cast<std::int32_t>(*node);
    else
      refused = fmt::format(
          "memory node {} was refused (no such node here, or mbind is not allowed); pages go where they are first "
          "touched",
          *node);
  }
  if (huge_pages) {
    const std::string why = why_no_huge_pages();
    if (why.empty()) {
      header().huge_pages = 1;
      advise_huge_pages(region_.get_address(), region_.get_size());
    } else {
      refused += fmt::format("{}no huge pages: {}", refused.empty() ? "" : "; ", why);
    }
  }
  return refused;
}

bool Segment::link(const std::string& name) {
  const std::string self = fmt::format("/proc/self/fd/{}", descriptor_);
  if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_of(name).c_str(), AT_SYMLINK_FOLLOW) != 0) {
    if (errno == EEXIST) return false;
    throw Error(fmt::format("cannot name the segment /dev/shm/{}: {}", name, std::strerror(errno)));
  }
  name_ = name;
  return true;
}

void Segment::publish() noexcept {
  header().layout_version.store_release(kLayoutVersion);  // pairs with open's acquire: all of the creator's stores
}

AttachOutcome Segment::open(const std::string& name, Access access) {
  close();
  name_ = name;
  const int flags = (access == Access::kReadWrite ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW |
                    O_NONBLOCK;  // a FIFO must not block
  const int descriptor = ::open(path_of(name).c_str(), flags);
  if (descriptor < 0) {
    if (errno == ENOENT) return AttachOutcome::kAbsent;
    if (errno == EACCES || errno == EPERM) return AttachOutcome::kNoPermission;
    if (errno == ELOOP || errno == EISDIR || errno == ENXIO) return AttachOutcome::kDamaged;
    throw Error(fmt::format("cannot open /dev/shm/{}: {}{}", name, std::strerror(errno), advice(errno)));
  }
  OpenDescriptors::instance().add(descriptor);
  descriptor_ = descriptor;
  struct stat status;
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1)
    return AttachOutcome::kDamaged;  // more than one link: the name of another one's file
  if (!is_trusted(status)) {
    close();
    return AttachOutcome::kNoPermission;
  }
  if ((status.st_mode & kOthers) != 0) return AttachOutcome::kExposed;
  if (static_cast<std::size_t>(status.st_size) < sizeof(HeaderShm))
    return AttachOutcome::kDamaged;  // N4: before a page
  map(sizeof(HeaderShm), access);
  const HeaderShm& found = header();
  AttachOutcome outcome = AttachOutcome::kReady;
  const std::uint32_t version = found.layout_version.load_acquire();  // pairs with publish
  if (found.magic != kMagic)
    outcome = AttachOutcome::kDamaged;
  else if (version == 0)
    outcome = AttachOutcome::kBeingCreated;
  else if (version != kLayoutVersion)
    outcome = AttachOutcome::kOtherVersion;
  else if (found.fingerprint != kFingerprint)
    outcome = AttachOutcome::kOtherBuild;
  else if (found.initial_bytes > static_cast<std::size_t>(status.st_size) ||
           found.reserved_bytes < static_cast<std::size_t>(status.st_size) || found.reserved_bytes > kMostReserved ||
           found.initial_bytes < sizeof(HeaderShm) || found.node < -1 || found.node >= 64 || found.huge_pages > 1)
    outcome = AttachOutcome::kDamaged;
  std::size_t reserved = outcome == AttachOutcome::kReady ? found.reserved_bytes : 0;
  const bool huge_pages = found.huge_pages == 1;
  if (was_cut_off()) outcome = AttachOutcome::kDamaged, reserved = 0;
  watch_ = TruncationWatch();
  region_ = {};
  if (reserved != 0) map(reserved, access);
  if (reserved != 0 && huge_pages) advise_huge_pages(region_.get_address(), region_.get_size());
  return outcome;
}

void Segment::grow(std::size_t bytes) {
  if (bytes > region_.get_size())
    fail_no_room(
        fmt::format("/dev/shm/{}, which may have {:.1f} MiB at most", name_, double(region_.get_size()) / 1048576),
        bytes, ENOSPC);
  const std::size_t before = file_bytes();
  if (before >= bytes) return;
  // Extends and reserves in one call; two processes that do it at once both get what they asked for.
  if (const int error = fallocate_retrying(descriptor_, bytes)) fail_no_room("/dev/shm/" + name_, bytes, error);
  if (header().huge_pages == 1) {
    const std::size_t begin = before / kPage * kPage;
    collapse_huge_pages(data() + begin, bytes - begin);
  }
}

std::size_t Segment::file_bytes() const {
  struct stat status;
  return fstat(descriptor_, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

Sharing Segment::sharing() const {
  Sharing sharing;
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return sharing;
  if ((status.st_mode & kGroupMode) == kGroupMode) sharing.group = status.st_gid;
  if (geteuid() == 0 && status.st_uid != 0) sharing.owner = status.st_uid;
  return sharing;
}

bool Segment::is_of(SegmentKind kind, std::uint32_t number, const std::string& job,
                    std::uint64_t instance) const noexcept {
  const HeaderShm& found = header();
  return found.kind == static_cast<std::uint32_t>(kind) && found.number == number && found.instance == instance &&
         job == std::string_view(found.job, strnlen(found.job, sizeof found.job));
}

bool Segment::is_orphaned() const {
  struct stat status;
  return fstat(descriptor_, &status) != 0 || status.st_nlink == 0;
}

bool Segment::is_named(const std::string& name) const { return leads_to(name, descriptor_); }

bool leads_to(const std::string& name, int descriptor) noexcept {
  struct stat opened, named;
  return fstat(descriptor, &opened) == 0 && lstat(path_of(name).c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

std::string control_name(const std::string& job) { return "ps." + job; }
std::string shard_name(const std::string& job, std::uint32_t shard) { return fmt::format("ps.{}.{}", job, shard); }
std::string gradient_name(const std::string& job, std::uint32_t rank, std::uint64_t generation) {
  return fmt::format("{}{}", gradient_prefix(job, rank), generation);
}
std::string gradient_prefix(const std::string& job, std::uint32_t rank) { return fmt::format("ps.{}.w{}.", job, rank); }
std::string data_name(const std::string& job) { return fmt::format("ps.{}.data", job); }

bool unlink_segment(const std::string& name) noexcept {
  return ::unlink(path_of(name).c_str()) == 0 || errno == ENOENT;
}

void empty_segment(const std::string& name) noexcept {
  const int descriptor = ::open(path_of(name).c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return;
  struct stat status;
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1)
    (void)!ftruncate(descriptor, 0);  // where that is refused, too, the caller has said what is left
  ::close(descriptor);
}

std::string owner_of(const std::string& name) {
  struct stat status;
  if (lstat(path_of(name).c_str(), &status) != 0) return "nobody";
  const passwd* user = getpwuid(status.st_uid);
  return user != nullptr ? fmt::format("user {}", user->pw_name) : fmt::format("user {}", status.st_uid);
}

Sharing shared_with_group(const std::string& name) {
  if (name.empty()) return {};
  const ::group* found = getgrnam(name.c_str());
  if (found == nullptr) throw Error(fmt::format("there is no group '{}' on this machine (--group)", name));
  return {std::nullopt, found->gr_gid};
}

std::vector<std::string> list_segments(const std::string& prefix) {
  std::vector<std::string> names;
  if (DIR* directory = opendir(kDirectory)) {
    while (const dirent* entry = readdir(directory))
      if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0) names.emplace_back(entry->d_name);
    closedir(directory);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::size_t shm_capacity_bytes() {
  struct statvfs status;
  if (statvfs(kDirectory, &status) == 0 && status.f_blocks != 0) return status.f_blocks * status.f_frsize;
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t shm_free_bytes() {
  struct statvfs status;
  return statvfs(kDirectory, &status) == 0 ? status.f_bavail * status.f_frsize : 0;
}

void NameWait::pause() noexcept {
  poll(nullptr, 0, milliseconds_);
  milliseconds_ = std::min(2 * milliseconds_, kWaitSliceMs);
}

}  // namespace ps::shm
