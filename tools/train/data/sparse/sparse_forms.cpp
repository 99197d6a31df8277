#include "train/data/sparse/sparse_forms.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"

namespace ps_shm::train {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockSlice{10};

class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

std::uint64_t size_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

Descriptor open_unnamed(const std::string& folder) {
  Descriptor unnamed(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (unnamed || (errno != EOPNOTSUPP && errno != EISDIR)) return unnamed;
  std::string path = folder + "/ps-sparse.XXXXXX";  // for a file system without unnamed files
  Descriptor named(::mkostemp(path.data(), O_CLOEXEC));
  if (named) ::unlink(path.c_str());
  return named;
}

std::uint64_t hash_names(const SparseData* data) {
  if (data == nullptr) return 0;
  std::uint64_t hash = data->info().users;
  for (const std::string_view name : data->names()) hash = mix(hash, hash_name(name));
  return hash;
}

std::uint64_t nanoseconds(const timespec& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// A hash of the first and the last MiB and of 64 blocks between them; of small files, of all bytes. It detects what the
// times of a file do not show, such as a second change within their resolution, and needs milliseconds for any size.
std::uint64_t hash_content(int descriptor, const std::string& path, std::uint64_t bytes) {
  constexpr std::uint64_t kEnds = std::uint64_t{1} << 20, kBlock = 4096, kBlocks = 64;
  std::vector<char> buffer(kEnds);
  std::uint64_t hash = bytes;
  const auto add = [&](std::uint64_t at, std::uint64_t length) {
    std::uint64_t filled = 0;
    while (filled < length) {
      const ssize_t got = pread(descriptor, buffer.data() + filled, length - filled, static_cast<off_t>(at + filled));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw Error(fmt::format("{}: cannot read: {}", path, std::strerror(errno)), config::code_of(errno));
      if (got == 0) break;  // truncated meanwhile
      filled += static_cast<std::uint64_t>(got);
    }
    hash = mix(hash, XXH3_64bits(buffer.data(), filled));
  };
  add(0, std::min(bytes, kEnds));
  if (bytes <= kEnds) return hash;
  const std::uint64_t tail = std::max(bytes - kEnds, kEnds), between = tail - kEnds;
  if (between <= kBlock * kBlocks) {
    add(kEnds, between);
  } else {
    for (std::uint64_t block = 0; block < kBlocks; ++block) add(kEnds + (between - kBlock) / kBlocks * block, kBlock);
  }
  add(tail, bytes - tail);
  return hash;
}

// Everything that determines the content of a source's form.
SparseOrigin origin_of(const std::string& path, const SparseSourceOptions& options) {
  const Descriptor source(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is refused by the reader
  struct stat status;
  if (!source || fstat(source.get(), &status) != 0)
    throw Error(fmt::format("{}: {}; expected LIBSVM text or ratings, plain or compressed", path,
                            errno == ENOENT ? "no such file" : std::strerror(errno)),
                config::code_of(errno));
  SparseOrigin origin;
  origin.bytes = static_cast<std::uint64_t>(status.st_size);
  origin.modified_ns = nanoseconds(status.st_mtim);
  origin.changed_ns = nanoseconds(status.st_ctim);
  origin.inode = status.st_ino;
  if (S_ISREG(status.st_mode)) origin.content = hash_content(source.get(), path, origin.bytes);
  std::error_code unknown;
  origin.options =
      hash_name(fmt::format("{}|{}|{}|{}|{}|{}|{}|{:016x}", fs::weakly_canonical(path, unknown).string(),
                            kSparseVersion, static_cast<int>(options.format), static_cast<int>(options.first_index),
                            options.hash_bits, options.features, options.keyed, hash_names(options.names_of)));
  return origin;
}

class CachedForm {
 public:
  CachedForm(const std::string& path, const SparseSourceOptions& options)
      : source_(path), options_(options), origin_(origin_of(path, options)) {
    std::error_code refused;
    fs::create_directories(options.cache, refused);
    if (refused)
      throw Error(fmt::format("cannot create the cache folder {}: {}", options.cache, refused.message()),
                  config::code_of(refused.value()));
    path_ =
        fs::path(options.cache) / fmt::format("{}.{:016x}.sparse", fs::path(path).filename().string(), origin_.options);
  }

  std::unique_ptr<SparseMapping> open_or_make(const MakeForm& make) {
    if (auto ready = try_open(false)) return ready;
    const Descriptor lock = take_lock();
    if (auto ready = try_open(true)) return ready;  // another process has just made it
    make_again(make);
    if (auto ready = try_open(true)) return ready;
    throw Error(
        fmt::format(
            "{} was changed by another process while it was written; is the cache folder used for something else?",
            path_),
        ErrorCode::kUnavailable);
  }

 private:
  std::unique_ptr<SparseMapping> try_open(bool tells_why_not) const {
    const Descriptor form(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!form) {
      if (errno == ENOENT) return nullptr;
      throw Error(
          fmt::format("cannot open {}: {}; remove it, or choose another cache folder", path_, std::strerror(errno)),
          config::code_of(errno));
    }
    const std::uint64_t bytes = size_of(form.get());
    SparseHeader header;
    const bool is_whole = pread(form.get(), static_cast<void*>(&header), sizeof header, 0) == ssize_t(sizeof header) &&
                          is_sound(header, bytes);
    if (is_whole && header.origin == origin_) return std::make_unique<SparseMapping>(form.get(), bytes, source_);
    if (tells_why_not && options_.log)
      options_.log(is_whole ? fmt::format("{} has changed: rebuilding its binary form {}", source_, path_)
                            : fmt::format("{} is damaged: rebuilding it", path_));
    return nullptr;
  }

  // Waits while another process makes the form.
  Descriptor take_lock() const {
    const std::string path = path_ + ".lock";
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file)
      throw Error(fmt::format("cannot open {}: {}; choose another cache folder", path, std::strerror(errno)),
                  config::code_of(errno));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    bool has_told = false;
    while (fcntl(file.get(), F_OFD_SETLK, &whole) != 0) {
      if (errno != EAGAIN && errno != EACCES && errno != EINTR)
        throw Error(fmt::format("cannot lock {}: {}; choose another cache folder", path, std::strerror(errno)),
                    config::code_of(errno));
      if (options_.stop_requested && options_.stop_requested()) throw Interrupted();
      if (options_.log && !std::exchange(has_told, true))
        options_.log(fmt::format("waiting for another process that is reading {}", source_));
      std::this_thread::sleep_for(kLockSlice);
    }
    return file;
  }

  // Requires: the lock is held. What a killed process, or another user of the folder, left under the temporary name goes.
  void make_again(const MakeForm& make) const {
    const std::string path = path_ + ".new";
    ::unlink(path.c_str());
    const Descriptor form(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!form)
      throw Error(fmt::format("cannot create {}: {}; choose another cache folder", path, std::strerror(errno)),
                  config::code_of(errno));
    try {
      SparseWriter writer(form.get(), fmt::format("in the cache folder {} (free some space, or choose another folder)",
                                                  options_.cache));
      make(writer);
      writer.finish(origin_);
      // Before the rename: after a crash of the machine, the name must not exist without the content.
      if (fdatasync(form.get()) != 0 || ::rename(path.c_str(), path_.c_str()) != 0)
        throw Error(fmt::format("cannot complete {}: {}; choose another cache folder", path_, std::strerror(errno)),
                    config::code_of(errno));
    } catch (...) {
      ::unlink(path.c_str());
      throw;
    }
  }

  std::string source_;
  const SparseSourceOptions& options_;
  SparseOrigin origin_;
  std::string path_;
};

}  // namespace

std::unique_ptr<SparseMapping> make_unnamed_form(const std::string& name, const MakeForm& make) {
  const char* const wanted = std::getenv("TMPDIR");
  const std::string folder = wanted != nullptr && *wanted != '\0' ? wanted : "/tmp";
  const Descriptor form = open_unnamed(folder);
  if (!form)
    throw Error(
        fmt::format("{}: cannot create a temporary file for its binary form in {}: {}; set TMPDIR to another folder",
                    name, folder, std::strerror(errno)),
        config::code_of(errno));
  SparseWriter writer(form.get(), fmt::format("in {} (free some space, or set TMPDIR to another folder)", folder));
  make(writer);
  writer.finish({});
  return std::make_unique<SparseMapping>(form.get(), size_of(form.get()), name);
}

std::unique_ptr<SparseMapping> open_cached_form(const std::string& path, const SparseSourceOptions& options,
                                                const MakeForm& make) {
  return CachedForm(path, options).open_or_make(make);
}

}  // namespace ps_shm::train
