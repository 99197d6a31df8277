#include "ps_shm/folder_publisher.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "config/error_code.hpp"
#include "persistence/folder_lock.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"
#include "publish/copy.hpp"
#include "publish/generation_target.hpp"
#include "shm/base/open_file.hpp"

namespace ps_shm {
namespace {

namespace fs = std::filesystem;
using persistence::kHiddenName;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kLatest = "latest";
constexpr const char* kSlots = ".slots";  // the folder with the files: each generation has a hard link to one of them
constexpr std::uint32_t kMostFiles = 64;
constexpr std::size_t kDataAlignment =
    4096;  // where the data begin, so that programs can map or register them by themselves

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  throw Error(fmt::format("cannot write {}: {}", path, std::strerror(error)), config::code_of(error));
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const fs::path full = (fs::absolute(path, error) / "").lexically_normal();
  if (path.empty() || error) throw Error(fmt::format("'{}' is no folder", path));
  return full.parent_path().string();  // without a slash at its end
}

std::vector<fs::path> entries_of(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    found.push_back(entry->path());
  if (error)
    throw Error(fmt::format("cannot read the folder {}: {}", folder, error.message()), config::code_of(error.value()));
  return found;
}

std::string folder_name(std::uint64_t generation) { return fmt::format("g{:08}", generation); }

// The number in the name of a generation's folder.
std::optional<std::uint64_t> generation_named(const std::string& name) {
  std::uint64_t number = 0;
  const char* const end = name.data() + name.size();
  if (name.empty() || std::from_chars(name.data() + 1, end, number).ptr != end || name != folder_name(number))
    return std::nullopt;
  return number;
}

bool is_weights(const std::string& name) {
  constexpr std::string_view kEndings[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// A lease of the kernel for writing is granted only if no other process has the file open or mapped. While it is held,
// whoever opens the file waits, and this process gets a signal, which therefore is one that is ignored by default.
bool try_file_lease(int descriptor) {
  return ::fcntl(descriptor, F_SETSIG, SIGURG) == 0 && ::fcntl(descriptor, F_SETLEASE, F_WRLCK) == 0;
}
bool end_file_lease(int descriptor) { return ::fcntl(descriptor, F_SETLEASE, F_UNLCK) == 0; }

// Whether a lease tells that others have the file, and a page that is written again needs no memory of the file system's,
// of which there might be none: then a store would end the process.
bool can_be_reused(int descriptor, const std::string& path) {
  struct statfs system {};
  if (::fstatfs(descriptor, &system) != 0) return false;
  if (system.f_type != TMPFS_MAGIC && system.f_type != EXT4_SUPER_MAGIC) return false;
  const int reader = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader < 0) return false;
  void* const mapped = ::mmap(nullptr, kDataAlignment, PROT_READ, MAP_SHARED, reader, 0);
  ::close(reader);
  if (mapped == MAP_FAILED) return false;
  const bool is_seen = !try_file_lease(descriptor) && errno == EAGAIN;
  ::munmap(mapped, kDataAlignment);
  return is_seen && try_file_lease(descriptor) && end_file_lease(descriptor);
}

}  // namespace

struct PS_SHM_HIDDEN FolderPublisher::Impl final : GenerationWriting::Target {
  struct Slot {
    shm::OpenFile file;
    bool can_be_reused = false;
  };
  struct Published {
    std::uint64_t number;
    std::size_t slot;  // number of slots: a file that is none of them
  };

  Impl(const std::string& given, std::vector<TensorSpec> of, const FolderPublisherOptions& options)
      : Target(std::move(of)), folder(absolute(given)), layout(tensors) {
    check({.name = "folder", .tensors = tensors});
    if (options.files < 2 || options.files > kMostFiles)
      throw Error(
          fmt::format("a folder cannot have {} files; 2 to {} are possible (`files`)", options.files, kMostFiles));
    if (!options.static_files.empty()) {
      std::error_code error;
      static_files = fs::canonical(options.static_files, error).string();
      if (!error && !fs::is_directory(static_files, error) && !error)
        error = std::make_error_code(std::errc::not_a_directory);
      if (error)
        throw Error(fmt::format("cannot read the folder {}: {}", options.static_files, error.message()),
                    ErrorCode::kNotFound);
    }
    data_begin =
        header(std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max(), kDataAlignment)
            .size();
    file_bytes = data_begin + layout.bytes();
    slots.resize(options.files);
    persistence::claim_folder(lock, folder, "generations");
    take_over();
  }

  std::string path_of(std::uint64_t generation) const { return folder + "/" + folder_name(generation); }
  std::string slot_path(std::size_t slot) const { return fmt::format("{}/{}/{}", folder, kSlots, slot); }
  std::string hidden(const std::string& name) const { return folder + "/" + kHiddenName + name; }
  std::byte* data(std::size_t slot) const { return static_cast<std::byte*>(slots[slot].file.address()) + data_begin; }

  std::byte* place(std::uint32_t tensor) override { return data(target) + layout.begin(tensor); }
  std::size_t generation_bytes() const override { return layout.bytes(); }

  std::string header(std::uint64_t generation, std::uint64_t step, std::size_t alignment) const {
    return layout.header({{"format", "pt"}, {"generation", std::to_string(generation)}, {"step", std::to_string(step)}},
                         alignment);
  }

  void require_own() const override {
    if (lock.descriptor() < 0)
      throw Error(fmt::format("the publisher to {} belongs to the parent of this process", folder),
                  ErrorCode::kInvalidState);
  }

  void require_tensor(std::uint32_t tensor) const override {
    if (tensor >= tensors.size())
      throw Error(fmt::format("there is no tensor {}: tensors are 0 to {}", tensor, tensors.size() - 1));
  }

  // Finds the generations that there are, and their files.
  void take_over() {
    std::error_code error;
    const fs::file_status latest = fs::symlink_status(folder + "/" + kLatest, error);
    if (fs::exists(latest) && !fs::is_symlink(latest))
      throw Error(fmt::format("{}/{} is no link: choose another folder", folder, kLatest), ErrorCode::kAlreadyExists);
    if (::mkdir((folder + "/" + kSlots).c_str(), 0777) != 0 && errno != EEXIST) fail_to_write(folder, errno);
    for (const fs::path& entry : entries_of(folder))
      if (const auto number = generation_named(entry.filename().string()); number && fs::is_directory(entry, error))
        published.push_back({*number, slots.size()});
    std::sort(published.begin(), published.end(), [](auto& a, auto& b) { return a.number < b.number; });
    for (std::size_t slot = 0; slot < slots.size(); ++slot) find_file(slot);
    for (const fs::path& entry : entries_of(folder + "/" + kSlots))
      if (!is_slot(entry.filename().string())) fs::remove_all(entry, error);
    // The publisher before may have been killed between the two names of a generation, which is complete.
    if (!published.empty()) point_latest_at(published.back().number);
  }

  bool is_slot(const std::string& name) const {
    for (std::size_t slot = 0; slot < slots.size(); ++slot)
      if (slots[slot].file.descriptor() >= 0 && name == std::to_string(slot)) return true;
    return false;
  }

  // Opens the file of a slot, if it is one that this publisher can write again.
  void find_file(std::size_t slot) {
    const std::string path = slot_path(slot);
    shm::OpenFile file;
    struct stat found {};
    if (!file.open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK) || ::fstat(file.descriptor(), &found) != 0 ||
        !S_ISREG(found.st_mode) || static_cast<std::uint64_t>(found.st_size) != file_bytes ||
        !file.map(file_bytes, shm::Access::kReadWrite))
      return;
    const bool reusable = can_be_reused(file.descriptor(), path);
    slots[slot] = {std::move(file), reusable};
    for (Published& one : published) {
      struct stat of {};
      if (::stat((path_of(one.number) + "/" + kModel).c_str(), &of) == 0 && of.st_ino == found.st_ino &&
          of.st_dev == found.st_dev)
        one.slot = slot;
    }
  }

  // Removes the oldest generations, except for one less than there are files. Nobody can open their files from then on.
  void remove_old() {
    for (; published.size() >= slots.size(); published.pop_front()) {
      const std::string name = folder_name(published.front().number), gone = hidden(name);
      std::error_code ignored;  // the file has a link more then, and is not written again
      fs::remove_all(gone, ignored);
      fs::rename(folder + "/" + name, gone, ignored);
      fs::remove_all(gone, ignored);
    }
  }

  // Takes the file of a generation that has been removed, unless somebody still uses it.
  bool try_reuse(std::size_t slot) const {
    const int descriptor = slots[slot].file.descriptor();
    struct stat found {};
    if (descriptor < 0 || !slots[slot].can_be_reused || ::fstat(descriptor, &found) != 0 || found.st_nlink != 1 ||
        !try_file_lease(descriptor))
      return false;
    // A process that has found the file's name before it was removed may open it only now. It gets a file without a
    // valid header, until the next generation is complete.
    const std::uint64_t none = 0;
    const bool is_void = ::pwrite(descriptor, &none, sizeof none, 0) == sizeof none;
    return end_file_lease(descriptor) && is_void;
  }

  void make_file(std::size_t slot) {
    slots[slot] = {};  // before the next one: it may take its memory
    const std::string path = slot_path(slot);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_to_write(path, errno);
    shm::OpenFile file;
    if (!file.open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644)) fail_to_write(path, errno);
    int error = 0;
    while ((error = ::posix_fallocate(file.descriptor(), 0, static_cast<off_t>(file_bytes))) == EINTR) {
    }
    if (error == 0 && !file.map(file_bytes, shm::Access::kReadWrite)) error = errno;
    if (error != 0) {
      ::unlink(path.c_str());
      throw Error(
          fmt::format("cannot write a generation of {} bytes to {}: {}", file_bytes, folder, std::strerror(error)),
          config::code_of(error));
    }
    const bool reusable = can_be_reused(file.descriptor(), path);
    slots[slot] = {std::move(file), reusable};
  }

  void begin() {
    require_own();
    if (writing != nullptr)
      throw Error(fmt::format("{}: a generation is being written; commit it or give it up first", folder),
                  ErrorCode::kInvalidState);
    remove_old();
    target = 0;
    while (std::any_of(published.begin(), published.end(), [&](const Published& one) { return one.slot == target; }))
      ++target;
    if (!try_reuse(target)) make_file(target);
    written.clear();
  }

  void point_latest_at(std::uint64_t generation) const {
    const std::string link = hidden(kLatest), latest = folder + "/" + kLatest;
    ::unlink(link.c_str());
    if (::symlink(folder_name(generation).c_str(), link.c_str()) != 0 || ::rename(link.c_str(), latest.c_str()) != 0)
      fail_to_write(latest, errno);
  }

  // Makes the folder of a generation, complete from the first moment on that it has its name.
  void make_folder(std::uint64_t generation) const {
    const std::string path = path_of(generation), made = hidden(folder_name(generation));
    std::error_code error;
    fs::remove_all(made, error);
    try {
      fs::create_directory(made);
      fs::create_hard_link(slot_path(target), made + "/" + kModel);
      if (!static_files.empty())
        for (const fs::path& entry : entries_of(static_files))
          if (const std::string name = entry.filename().string(); !is_weights(name))
            fs::create_symlink(entry, made + "/" + name);
      fs::rename(made, path);
      point_latest_at(generation);
    } catch (const fs::filesystem_error& failed) {
      fs::remove_all(made, error);
      fail_to_write(path, failed.code().value());
    } catch (...) {  // nobody has been told of it
      fs::rename(path, made, error);
      fs::remove_all(made, error);
      throw;
    }
  }

  void copy_unwritten() {
    for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      if (written.has_any_of(tensor) || tensors[tensor].byte_count() == 0) continue;
      if (!has_published)
        throw Error(fmt::format("{}: the first generation must contain all {} tensors", folder, tensors.size()));
      copy_tensor(data(target) + layout.begin(tensor), data(published.back().slot) + layout.begin(tensor),
                  tensors[tensor].byte_count(), layout.bytes());
    }
  }

  std::uint64_t commit(std::uint64_t step) {
    written.require_whole(folder);
    copy_unwritten();
    const std::uint64_t generation = newest() + 1;
    const std::string text = header(generation, step, data_begin);
    std::memcpy(data(target) - data_begin + sizeof generation, text.data() + sizeof generation,
                text.size() - sizeof generation);
    const int descriptor = slots[target].file.descriptor();
    if (::pwrite(descriptor, text.data(), sizeof generation, 0) != sizeof generation) fail_to_write(folder, errno);
    make_folder(generation);
    published.push_back({generation, target});
    has_published = true;
    return generation;
  }

  std::uint64_t newest() const noexcept { return published.empty() ? 0 : published.back().number; }

  const std::string folder;
  std::string static_files;
  const persistence::SafetensorsLayout layout;
  std::uint64_t data_begin = 0, file_bytes = 0;
  shm::OpenFile lock;
  std::vector<Slot> slots;
  std::deque<Published> published;  // in the folder, the newest one last
  bool has_published = false;       // this publisher, so that the newest generation's file has this layout
  std::size_t target = 0;           // the slot of the generation under way
};

FolderPublisher::FolderPublisher(const std::string& folder, std::vector<TensorSpec> tensors,
                                 const FolderPublisherOptions& options)
    : impl_(std::make_unique<Impl>(folder, std::move(tensors), options)) {}
FolderPublisher::FolderPublisher(FolderPublisher&&) noexcept = default;
FolderPublisher::~FolderPublisher() {
  if (impl_) impl_->end_writing();
}

std::uint64_t FolderPublisher::publish(const Write& write, std::uint64_t step) {
  Writing writing = begin();
  for (std::uint32_t tensor = 0; tensor < impl_->tensors.size(); ++tensor) write(tensor, writing.out(tensor));
  return writing.commit(step);
}

FolderPublisher::Writing FolderPublisher::begin() {
  impl_->begin();
  return Writing(*impl_);
}

FolderPublisher::Writing::Writing(Impl& impl) noexcept : GenerationWriting(impl) {}

std::uint64_t FolderPublisher::Writing::commit(std::uint64_t step) {
  const std::uint64_t generation = static_cast<Impl&>(own()).commit(step);
  let_go();
  return generation;
}

std::uint64_t FolderPublisher::generation() const noexcept { return impl_->newest(); }
std::string FolderPublisher::path() const { return generation() == 0 ? "" : impl_->path_of(generation()); }
const std::vector<TensorSpec>& FolderPublisher::tensors() const noexcept { return impl_->tensors; }

}  // namespace ps_shm
