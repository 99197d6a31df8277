#include "shm/segment/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "config/error_code.hpp"
#include "config/job_settings.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/segment/layout_fields.hpp"
#include "shm/segment/memory_policy.hpp"

namespace ps_shm::shm {
namespace {

constexpr mode_t kMode = 0600, kGroupMode = 0660, kOthers = 0007;

// The fingerprint of this build: of its structures and of the settings that it knows.
std::uint64_t fingerprint() noexcept {
  static const std::uint64_t kOfBuild = kFingerprint ^ config::hash_of_stored();
  return kOfBuild;
}

// (names.N10)
bool is_trusted(const struct stat& status, const Trust& trust) {
  return trust.anybody || status.st_uid == geteuid() ||
         ((status.st_mode & kGroupMode) == kGroupMode && trust.group == status.st_gid);
}

// (names.N10) Whether `name` is the name that the segment of this header has, not another one that someone else gave
// it.
bool is_called(const HeaderShm& header, const std::string& name) {
  const std::string job(header.job, strnlen(header.job, sizeof header.job));
  switch (static_cast<SegmentKind>(header.kind)) {
    case SegmentKind::kControl:
      return name == control_name(job);
    case SegmentKind::kShard:
      return name == shard_name(job, header.number);
    case SegmentKind::kGradient:
      return name.starts_with(gradient_prefix(job, header.number));
    case SegmentKind::kTable:
      return name == table_name(job, header.number >> 16, header.number & 0xffff);
    case SegmentKind::kData:
      return name == data_name(job);
    case SegmentKind::kBridge:
      return name == bridge_name(job);
    case SegmentKind::kBundle:
      return name == bundle_name(job);
  }
  return false;
}

bool has_holes(const HeaderShm& header) noexcept {
  const auto kind = static_cast<SegmentKind>(header.kind);
  return kind == SegmentKind::kBundle || kind == SegmentKind::kTable;
}

// Describes a segment that has no name yet, for messages.
std::string what_is_new(SegmentKind kind, const std::string& job) {
  return fmt::format("{} {}", kind == SegmentKind::kBundle ? "publication" : "a segment of job", job);
}

// What to do about a system error, to be appended to a message; empty if there is nothing to suggest.
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
    case ENOSPC:  // opening or naming a file takes no bytes
      return "; /dev/shm has no inodes left: remove files from it, or raise their number (mount -o "
             "remount,nr_inodes=...)";
    default:
      return {};
  }
}

[[noreturn]] void fail_no_room(const std::string& what, std::size_t bytes, int error) {
  if (error == ENOSPC || error == ENOMEM || error == EDQUOT)
    throw Error(
        fmt::format("cannot reserve {:.1f} MiB for {}: /dev/shm has {:.1f} MiB left; free some (inspect_shm ls), "
                    "or enlarge it (mount -o remount,size=..., a container's `shm-size`)",
                    double(bytes) / 1048576, what, double(shm_free_bytes()) / 1048576),
        ErrorCode::kNoSpace);
  throw Error(fmt::format("cannot reserve {:.1f} MiB for {}: {}{}", double(bytes) / 1048576, what, std::strerror(error),
                          advice(error)),
              ErrorCode::kNoSpace);
}

std::size_t memory_of(const struct stat& status) noexcept {
  constexpr std::size_t kBlock = 512;  // of st_blocks
  return static_cast<std::size_t>(status.st_blocks) * kBlock;
}

// For a file system without unnamed files (O_TMPFILE), such as gVisor's: opens a file whose name no process looks for.
// Its creator holds a lock on it until it gets its real name, so hidden files without a lock are of dead processes, and
// are removed here. False: errno says why.
bool open_hidden(OpenFile& file, std::string& name) {
  constexpr char kPrefix[] = ".ps_shm_new.";
  const auto try_lock = [](const OpenFile& of) { return flock(of.descriptor(), LOCK_EX | LOCK_NB) == 0; };
  for (const std::string& left : list_segments(kPrefix)) {
    OpenFile dead;
    if (dead.open(path_of(left).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK) && try_lock(dead)) unlink_segment(left);
  }
  for (;;) {
    OpenFile made;
    name = fmt::format("{}{}.{}", kPrefix, getpid(), now_ns());
    if (made.open(path_of(name).c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, kMode)) {
      if (!try_lock(made) || !leads_to(name, made.descriptor())) continue;  // removed before it was locked
      file = std::move(made);
      return true;
    }
    if (errno != EEXIST) return false;
  }
}

// Only for the part to be added: each page that exists already costs time, too.
int fallocate_retrying(int descriptor, std::size_t begin, std::size_t end) {
  int error;
  do error = posix_fallocate(descriptor, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  while (error == EINTR);
  return error;
}

// The same for pages that the file does not have yet. Where they cannot fit, the kernel would take all that is free
// before it says so, and meanwhile others would run short, of memory too. What another process is adding at this moment is
// in the file's memory already, and read after what is free: it is not asked for twice.
int fallocate_new(int descriptor, std::size_t begin, std::size_t end) {
  const std::size_t free = shm_free_bytes();
  struct stat status;
  const std::size_t there = fstat(descriptor, &status) == 0 ? std::min(memory_of(status), end) : 0;
  return end - std::max(begin, there) > free ? ENOSPC : fallocate_retrying(descriptor, begin, end);
}

}  // namespace

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    close();
    file_ = std::move(other.file_);
    name_ = std::move(other.name_);
    hidden_name_ = std::exchange(other.hidden_name_, {});
    watch_ = std::move(other.watch_);
  }
  return *this;
}

Segment::~Segment() { close(); }

void Segment::close() noexcept {
  covered_.leave_hint(0);
  watch_ = TruncationWatch();
  if (!hidden_name_.empty() && descriptor() >= 0) unlink_segment(hidden_name_);  // not in a forked child
  hidden_name_.clear();
  file_ = OpenFile();
}

void Segment::map(std::size_t bytes, Access access) {
  if (!file_.map(bytes, access))
    throw Error(fmt::format("cannot map {:.1f} MiB of /dev/shm/{}: {}{}", double(bytes) / 1048576, name_,
                            std::strerror(errno), advice(errno)),
                config::code_of(errno));
  if (access == Access::kReadOnly) watch_ = TruncationWatch(data(), mapped_bytes());
}

[[gnu::cold]] bool Segment::has_grown_to(std::size_t bytes) const {
  const std::size_t usable = usable_bytes();
  covered_.leave_hint(usable);
  return bytes <= usable;
}

Segment Segment::create(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance,
                        std::size_t bytes, std::size_t reserved_bytes, const Sharing& sharing) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (page > kLargestPage)
    throw Error(fmt::format("this machine's memory has pages of {} KiB; ps-shm supports pages of at most {} KiB",
                            page >> 10, kLargestPage >> 10),
                ErrorCode::kSystem);
  Segment segment;
  note_time_namespace();
  const std::string what = what_is_new(kind, job);
  segment.name_ = "(new: " + what + ")";
  if (!segment.file_.open(kDirectory, O_TMPFILE | O_RDWR, kMode) &&
      ((errno != EOPNOTSUPP && errno != EISDIR) || !open_hidden(segment.file_, segment.hidden_name_)))
    throw Error(fmt::format("cannot create a segment in /dev/shm: {}{}", std::strerror(errno),
                            advice(errno).empty() ? "; check that a tmpfs is mounted there and that you may write to it"
                                                  : advice(errno)),
                config::code_of(errno));
  const int descriptor = segment.descriptor();
  constexpr auto kKeep = static_cast<uid_t>(-1);
  if ((sharing.owner || sharing.group) &&
      fchown(descriptor, sharing.owner.value_or(kKeep), sharing.group.value_or(kKeep)) != 0)
    throw Error(
        fmt::format("cannot share {} with its group: {}; you must be a member of it", what, std::strerror(errno)),
        ErrorCode::kPermissionDenied);
  // The mode given to O_TMPFILE went through the umask.
  if (fchmod(descriptor, sharing.group ? kGroupMode : kMode) != 0)
    throw Error(fmt::format("cannot set the mode of {}: {}", what, std::strerror(errno)), config::code_of(errno));
  reserved_bytes = std::clamp(reserved_bytes, bytes, std::max(bytes, Segment::kMaxReserved));
  if (const int error = fallocate_new(descriptor, 0, bytes)) fail_no_room(what, bytes, error);
  segment.map(reserved_bytes, Access::kReadWrite);
  HeaderShm& header = segment.header();
  header.magic = kMagic;
  header.kind = static_cast<std::uint32_t>(kind);
  header.fingerprint = fingerprint();
  header.instance = instance;
  header.initial_bytes = bytes;
  header.reserved_bytes = reserved_bytes;
  header.created_unix_ns = unix_now_ns();
  header.creator_pid = static_cast<std::uint32_t>(getpid());
  header.number = number;
  header.node = -1;
  job.copy(header.job, sizeof header.job - 1);
  return segment;
}

std::string Segment::place_memory(std::optional<std::uint32_t> node, bool huge_pages) {
  std::string refused;
  if (node) {
    if (prefer_node(data(), mapped_bytes(), *node))
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
      advise_huge_pages(data(), mapped_bytes());
    } else {
      refused += fmt::format("{}no huge pages: {}", refused.empty() ? "" : "; ", why);
    }
  }
  return refused;
}

bool Segment::link(const std::string& name) {
  if (!hidden_name_.empty()) {
    if (renameat2(AT_FDCWD, path_of(hidden_name_).c_str(), AT_FDCWD, path_of(name).c_str(), RENAME_NOREPLACE) != 0) {
      if (errno == EEXIST) return false;
      throw Error(fmt::format("cannot name the segment /dev/shm/{}: {}{}", name, std::strerror(errno), advice(errno)),
                  config::code_of(errno));
    }
    flock(descriptor(), LOCK_UN);
    hidden_name_.clear();
    name_ = name;
    return true;
  }
  const std::string self = fmt::format("/proc/self/fd/{}", descriptor());
  if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_of(name).c_str(), AT_SYMLINK_FOLLOW) != 0) {
    const int error = errno;
    if (error == EEXIST) return false;
    struct stat status;
    const bool has_proc = stat(self.c_str(), &status) == 0;
    throw Error(fmt::format("cannot name the segment /dev/shm/{}: {}{}", name, std::strerror(error),
                            has_proc ? advice(error) : "; /proc is not mounted, and naming a segment needs it"),
                config::code_of(error));
  }
  name_ = name;
  return true;
}

void Segment::publish() noexcept {
  header().layout_version.store_release(kLayoutVersion);  // (names.N6) after all of the creator's stores
}

AttachOutcome Segment::open(const std::string& name, Access access, const Trust& trust) {
  close();
  note_time_namespace();
  name_ = name;
  struct stat status;
  const int flags =
      (access == Access::kReadWrite ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK;  // a FIFO does not block
  if (!file_.open(path_of(name).c_str(), flags)) {
    const int error = errno;
    if (error == ENOENT) return AttachOutcome::kAbsent;
    if (error == EACCES || error == EPERM) return AttachOutcome::kNoPermission;
    // Another user's link, folder or socket, or a file on which that user holds a lease: this user cannot repair it.
    if (lstat(path_of(name).c_str(), &status) == 0 && !is_trusted(status, trust)) return AttachOutcome::kNoPermission;
    if (error == ELOOP || error == EISDIR || error == ENXIO) return AttachOutcome::kDamaged;
    throw Error(fmt::format("cannot open /dev/shm/{}: {}{}", name, std::strerror(error), advice(error)),
                config::code_of(error));
  }
  if (fstat(descriptor(), &status) != 0) return AttachOutcome::kDamaged;
  if (!is_trusted(status, trust)) {
    close();
    return AttachOutcome::kNoPermission;
  }
  if (!S_ISREG(status.st_mode)) return AttachOutcome::kDamaged;
  if ((status.st_mode & kOthers) != 0) return AttachOutcome::kExposed;
  if (static_cast<std::size_t>(status.st_size) < sizeof(HeaderShm))
    return AttachOutcome::kDamaged;  // names.N4: before touching a page
  // Reading a sparse file of another user would allocate its memory.
  const auto is_sparse = [&](std::size_t bytes) { return status.st_uid != geteuid() && memory_of(status) < bytes; };
  if (is_sparse(sizeof(HeaderShm))) return AttachOutcome::kDamaged;
  map(sizeof(HeaderShm), access);
  const HeaderShm& found = header();
  AttachOutcome outcome = AttachOutcome::kReady;
  const std::uint32_t version = found.layout_version.load_acquire();  // (names.N6) pairs with publish
  const std::uint64_t initial = read_once(found.initial_bytes), reserved_bytes = read_once(found.reserved_bytes);
  if (found.magic != kMagic)
    outcome = AttachOutcome::kDamaged;
  else if (version == 0)
    outcome = AttachOutcome::kBeingCreated;
  else if (version != kLayoutVersion)
    outcome = AttachOutcome::kOtherVersion;
  else if (found.fingerprint != fingerprint())
    outcome = AttachOutcome::kOtherBuild;
  else if (initial > static_cast<std::size_t>(status.st_size) ||
           reserved_bytes < static_cast<std::size_t>(status.st_size) || reserved_bytes > Segment::kMaxReserved ||
           initial < sizeof(HeaderShm) || found.node < -1 || found.node >= 64 || found.huge_pages > 1 ||
           !is_called(found, name) ||
           // A publication has memory for one generation at least (publication.P14), a table for what it begins with,
           // other segments for all of it.
           is_sparse(has_holes(found) ? initial : status.st_size))
    outcome = AttachOutcome::kDamaged;
  std::size_t reserved = outcome == AttachOutcome::kReady ? reserved_bytes : 0;
  const bool huge_pages = found.huge_pages == 1;
  if (was_cut_off()) outcome = AttachOutcome::kDamaged, reserved = 0;
  watch_ = TruncationWatch();
  file_.unmap();
  if (reserved != 0) map(reserved, access);
  if (reserved != 0 && huge_pages) advise_huge_pages(data(), mapped_bytes());
  return outcome;
}

void Segment::protect(std::size_t begin, std::size_t bytes) {
  if (bytes != 0 && mprotect(data() + begin, bytes, PROT_READ) != 0)
    throw Error(fmt::format("cannot map /dev/shm/{} read-only: {}{}", name_, std::strerror(errno), advice(errno)),
                config::code_of(errno));
}

void Segment::grow(std::size_t bytes) {
  if (bytes > mapped_bytes())
    fail_no_room(fmt::format("/dev/shm/{}, which may have {:.1f} MiB at most", name_, double(mapped_bytes()) / 1048576),
                 bytes, ENOSPC);
  const std::size_t before = file_bytes();
  if (before >= bytes) return;
  // Extends and reserves in one call. If two processes do this at once, both get what they asked for. Everything
  // before `before` exists: a file grows only together with its pages.
  if (const int error = fallocate_new(descriptor(), before, bytes))
    fail_no_room("/dev/shm/" + name_, bytes, error);
  if (header().huge_pages == 1) {
    const std::size_t begin = before / kLargestPage * kLargestPage;
    collapse_huge_pages(data() + begin, bytes - begin);
  }
}

void Segment::extend(std::size_t bytes) {
  if (ftruncate(descriptor(), static_cast<off_t>(bytes)) != 0)
    throw Error(fmt::format("cannot extend /dev/shm/{} to {:.1f} MiB: {}{}", name_, double(bytes) / 1048576,
                            std::strerror(errno), advice(errno)),
                config::code_of(errno));
}

void Segment::allocate(std::size_t begin, std::size_t end) {
  if (const int error = fallocate_retrying(descriptor(), begin, end))
    fail_no_room("/dev/shm/" + name_, end - begin, error);
}

bool Segment::try_allocate(std::size_t begin, std::size_t end) noexcept {
  return end - begin <= shm_free_bytes() && fallocate_retrying(descriptor(), begin, end) == 0;  // as in fallocate_new()
}

void Segment::give_back(std::size_t begin, std::size_t end) noexcept {
  const std::size_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (first < last)
    fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
}

std::size_t Segment::file_bytes() const {
  struct stat status;
  return fstat(descriptor(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

std::size_t Segment::allocated_bytes() const {
  struct stat status;
  return fstat(descriptor(), &status) == 0 ? memory_of(status) : 0;
}

Sharing Segment::sharing() const {
  Sharing sharing;
  struct stat status;
  if (fstat(descriptor(), &status) != 0) return sharing;
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

bool Segment::is_named(const std::string& name) const { return leads_to(name, descriptor()); }

void empty_segment(const std::string& name) noexcept {
  OpenFile file;
  struct stat status;
  decltype(HeaderShm::magic) magic = 0;
  if (file.open(path_of(name).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK) && fstat(file.descriptor(), &status) == 0 &&
      S_ISREG(status.st_mode) && status.st_nlink == 1 &&
      pread(file.descriptor(), &magic, sizeof magic, offsetof(HeaderShm, magic)) == sizeof magic && magic == kMagic)
    (void)!ftruncate(file.descriptor(), 0);  // on failure, the caller has already reported what is left
}

Sharing shared_with_group(const std::string& name) {
  if (name.empty()) return {};
  const ::group* found = getgrnam(name.c_str());
  if (found == nullptr)
    throw Error(fmt::format("there is no group '{}' on this machine; correct the setting `group`", name),
                ErrorCode::kNotFound);
  return {std::nullopt, found->gr_gid};
}

}  // namespace ps_shm::shm
