#include "persistence/tensor_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::persistence {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kAlignment =
    64;  // of the values, so that the tensors of a mapped file are aligned; both formats allow it
constexpr std::uint64_t kMostAligned = 128;  // two lines of the cache: more makes nothing faster
constexpr const char* kMetadata = "__metadata__";
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 40;  // of a GrowingTensor
constexpr std::size_t kPiece = 256 << 10;  // copied, hashed and written at once: fits into a second-level cache

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

const update::DTypeTraits& traits_of(DType dtype) {
  const update::DTypeTraits* row = update::find_dtype(dtype);
  if (row == nullptr) throw Error(fmt::format("unknown dtype {}", static_cast<std::uint32_t>(dtype)));
  return *row;
}

}  // namespace

// XXH3 of data that is added in blocks.
class Hash {
 public:
  Hash() : state_(XXH3_createState(), &XXH3_freeState) {
    if (!state_ || XXH3_64bits_reset(state_.get()) != XXH_OK) throw std::bad_alloc();
  }
  void add(const void* bytes, std::size_t count) { XXH3_64bits_update(state_.get(), bytes, count); }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

class NewFile {
 public:
  // The name may be in use: by the rest of a killed process, or by a link that another user of the folder has put there.
  explicit NewFile(std::string path) : path_(std::move(path)) {
    constexpr int kNames = 1000;
    for (int number = 0; descriptor_ < 0; ++number) {
      partial_ = fmt::format("{}.partial-{}.{}", path_, getpid(), number);
      descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && (errno != EEXIST || number == kNames)) fail();
    }
  }
  ~NewFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(partial_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* bytes, std::size_t count) {
    const auto* next = static_cast<const std::byte*>(bytes);
    hash_.add(bytes, count);
    const std::uint64_t begin = bytes_;
    bytes_ += count;
    while (count != 0) {
      const ssize_t written = ::write(descriptor_, next, count);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail();
      next += written, count -= static_cast<std::size_t>(written);
    }
    // Asks the kernel to start writing, so that little is left for the sync at the end. This affects speed only.
    ::sync_file_range(descriptor_, static_cast<off64_t>(begin), static_cast<off64_t>(bytes_ - begin),
                      SYNC_FILE_RANGE_WRITE);
  }
  void write(const std::string& text) { write(text.data(), text.size()); }

  void write(const Tensor& tensor) {
    std::vector<std::byte> piece(std::min<std::uint64_t>(kPiece, tensor.bytes()));
    for (std::uint64_t begin = 0, end = tensor.bytes(); begin < end; begin += piece.size()) {
      const std::span<std::byte> here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), end - begin));
      tensor.read(begin, here);
      write(here.data(), here.size());
    }
  }

  // Writes over what stands at the beginning. The hash is not that of the file any more.
  void write_front(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t written = ::pwrite(descriptor_, text.data() + at, text.size() - at, static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail();
      at += static_cast<std::size_t>(written);
    }
  }

  // From now on the file exists, even after a power failure.
  FileFacts finish() {
    if (::fsync(descriptor_) != 0 || ::rename(partial_.c_str(), path_.c_str()) != 0) fail();
    ::close(std::exchange(descriptor_, -1));
    sync_folder(folder_of(path_));
    return {bytes_, hash_.value()};
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  }

  std::string path_, partial_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  Hash hash_;
};

const char* safetensors_name(DType dtype) { return traits_of(dtype).safetensors; }

std::uint64_t Tensor::bytes() const noexcept {
  std::uint64_t count = bytes_of(dtype);
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

std::function<void(std::uint64_t, std::span<std::byte>)> reader_of(std::span<const std::byte> bytes) {
  return
      [=](std::uint64_t begin, std::span<std::byte> out) { std::memcpy(out.data(), bytes.data() + begin, out.size()); };
}

void sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // EINVAL: a file system that cannot sync folders.
  const bool is_synced = folder >= 0 && (::fsync(folder) == 0 || errno == EINVAL);
  const int error = errno;
  if (folder >= 0) ::close(folder);
  if (!is_synced)
    throw Error(fmt::format("cannot sync the folder {}: {}", path, std::strerror(error)), config::code_of(error));
}

FileFacts facts_of(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw Error(fmt::format("cannot read {}: {}", path, std::strerror(errno)), config::code_of(errno));
  Hash hash;
  std::uint64_t bytes = 0;
  std::vector<std::byte> piece(kPiece);
  for (;;) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    const int reason = errno;
    if (got <= 0) ::close(file);
    if (got < 0) throw Error(fmt::format("cannot read {}: {}", path, std::strerror(reason)), config::code_of(reason));
    if (got == 0) return {bytes, hash.value()};
    hash.add(piece.data(), static_cast<std::size_t>(got));
    bytes += static_cast<std::uint64_t>(got);
  }
}

SafetensorsLayout::SafetensorsLayout(std::vector<TensorSpec> tensors)
    : tensors_(std::move(tensors)), order_(tensors_.size()), begins_(tensors_.size()) {
  for (const TensorSpec& tensor : tensors_)
    if (tensor.name == kMetadata) throw Error(fmt::format("a tensor cannot be named {}", kMetadata));
  std::iota(order_.begin(), order_.end(), 0U);
  const auto alignment = [&](std::uint32_t tensor) {
    return std::countr_zero(tensors_[tensor].byte_count() | kMostAligned);
  };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return alignment(a) > alignment(b); });
  for (const std::uint32_t tensor : order_) {
    begins_[tensor] = bytes_;
    bytes_ += tensors_[tensor].byte_count();
  }
}

std::string SafetensorsLayout::header(const std::map<std::string, std::string>& metadata, std::size_t alignment) const {
  const auto dump = [](const nlohmann::ordered_json& json) {
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  };
  // Not as one object: to add a member, an ordered one looks through all that it has.
  std::string text = fmt::format("{{{}:{}", dump(kMetadata), dump(metadata));
  for (const std::uint32_t number : order_) {
    const TensorSpec& tensor = tensors_[number];
    text += fmt::format(R"(,{}:{{"dtype":{},"shape":{},"data_offsets":[{},{}]}})", dump(tensor.name),
                        dump(traits_of(tensor.dtype).safetensors), dump(tensor.shape), begins_[number],
                        begins_[number] + tensor.byte_count());
  }
  text += '}';
  std::uint64_t size = text.size() + sizeof size;
  size = (size + alignment - 1) / alignment * alignment - sizeof size;
  std::string header(sizeof size, '\0');
  std::memcpy(header.data(), &size, sizeof size);
  header += text;
  header.resize(sizeof size + size, ' ');
  return header;
}

FileFacts write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                            const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const Tensor& tensor : tensors) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  const SafetensorsLayout layout(std::move(specs));
  NewFile file(path);
  file.write(layout.header(metadata, kAlignment));
  for (const std::uint32_t tensor : layout.order()) file.write(tensors[tensor]);
  return file.finish();
}

struct GrowingTensor::Open {
  NewFile file;
  std::vector<std::byte> pending;
};

GrowingTensor::GrowingTensor(const std::string& path, std::string name, DType dtype, std::vector<std::uint64_t> rest,
                             std::map<std::string, std::string> metadata)
    : open_(new Open{NewFile(path), {}}),
      path_(path),
      spec_{std::move(name), dtype, std::move(rest)},
      metadata_(std::move(metadata)) {
  spec_.shape.insert(spec_.shape.begin(), 0);
  open_->file.write(header(kMostRows));
}

GrowingTensor::~GrowingTensor() = default;

// As long as for any other extent.
std::string GrowingTensor::header(std::uint64_t extent) const {
  const auto of = [&](std::uint64_t rows, std::size_t alignment) {
    TensorSpec spec = spec_;
    spec.shape.front() = rows;
    return SafetensorsLayout({std::move(spec)}).header(metadata_, alignment);
  };
  return of(extent, of(kMostRows, kAlignment).size());
}

void GrowingTensor::append(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  open_->pending.insert(open_->pending.end(), bytes.begin(), bytes.end());
  if (open_->pending.size() < kPiece) return;
  open_->file.write(open_->pending.data(), open_->pending.size());
  open_->pending.clear();
}

FileFacts GrowingTensor::finish() {
  open_->file.write(open_->pending.data(), open_->pending.size());
  std::uint64_t row = bytes_of(spec_.dtype);
  for (std::size_t axis = 1; axis < spec_.shape.size(); ++axis) row *= spec_.shape[axis];
  open_->file.write_front(header(bytes_ / row));
  open_->file.finish();
  return facts_of(path_);  // the header came last
}

void write_npy(const std::string& path, const Tensor& tensor) {
  std::string shape;
  for (const std::uint64_t extent : tensor.shape) shape += fmt::format("{},", extent);
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", traits_of(tensor.dtype).npy, shape);
  constexpr std::size_t kBefore = 10;  // magic, version, length
  header.resize((header.size() + 1 + kBefore + kAlignment - 1) / kAlignment * kAlignment - kBefore - 1, ' ');
  header += '\n';
  NewFile file(path);
  const auto size = static_cast<std::uint16_t>(header.size());
  file.write("\x93NUMPY\x01\x00", 8);
  file.write(&size, sizeof size);
  file.write(header);
  file.write(tensor);
  file.finish();
}

void check_writable(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) throw Error(fmt::format("cannot write {}: it is a folder; name a file", path));
  static_cast<void>(NewFile(path));
}

void check_writable_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw Error(fmt::format("cannot make the folder {}: {}", path, error.message()), config::code_of(error.value()));
  std::string probe = path + "/.partial-XXXXXX";  // a CheckpointDir removes what a process killed here leaves
  if (::mkdtemp(probe.data()) == nullptr)
    throw Error(fmt::format("cannot write to the folder {}: {}", path, std::strerror(errno)), config::code_of(errno));
  ::rmdir(probe.c_str());
}

FileFacts write_text(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.write(text);
  return file.finish();
}

}  // namespace ps_shm::persistence
