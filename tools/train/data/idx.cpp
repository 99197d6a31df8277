#include "train/data/idx.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "ps_shm/errors.hpp"
#include "train/data/plain_or_gzip.hpp"

namespace ps_shm::train {
namespace {

constexpr std::size_t kFirstBytes = std::size_t{1} << 20;  // the first step of growth

// The source of the bytes. read() returns fewer than requested only at the end of the content.
class Source {
 public:
  explicit Source(std::string name) : name_(std::move(name)) {}
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::size_t read(std::span<std::uint8_t> out) {
    const std::size_t received = read_some(out);
    offset_ += received;
    return received;
  }

  [[noreturn]] void fail(std::uint64_t at_byte, const std::string& what) const {
    throw Error(fmt::format("{}: byte {}: {}", name_, at_byte, what), ErrorCode::kDamaged);
  }

  std::uint64_t offset() const { return offset_; }

 private:
  virtual std::size_t read_some(std::span<std::uint8_t> out) = 0;

  std::string name_;
  std::uint64_t offset_ = 0;
};

class MemorySource final : public Source {
 public:
  MemorySource(std::span<const unsigned char> bytes, const std::string& name) : Source(name), rest_(bytes) {}

 private:
  std::size_t read_some(std::span<std::uint8_t> out) override {
    const std::size_t received = std::min(out.size(), rest_.size());
    std::copy_n(rest_.begin(), received, out.begin());
    rest_ = rest_.subspan(received);
    return received;
  }

  std::span<const unsigned char> rest_;
};

class FileSource final : public Source {
 public:
  FileSource(const std::string& path, Loading* loading) : Source(path), loading_(loading) {
    std::error_code unreadable;
    const auto status = std::filesystem::status(path, unreadable);
    if (status.type() == std::filesystem::file_type::not_found) {
      throw Error(fmt::format("{}: no such file", path), ErrorCode::kNotFound);
    }
    if (!unreadable && !std::filesystem::is_regular_file(status)) {
      throw Error(fmt::format("{}: not a regular file; expected an IDX file, plain or gzip", path));
    }
    file_.emplace(path);
  }

 private:
  std::size_t read_some(std::span<std::uint8_t> out) override {
    std::size_t received = 0, wanted = 0, got = 0;
    while (received < out.size() && got == wanted) {
      if (loading_ != nullptr) loading_->at_bytes(offset() + received);
      wanted = std::min(out.size() - received, PlainOrGzip::kAtOnce);
      std::string problem;
      got = file_->read(out.subspan(received), problem);
      if (!problem.empty()) fail(file_->position(), problem);
      received += got;
    }
    return received;
  }

  std::optional<PlainOrGzip> file_;
  Loading* loading_;
};

std::uint32_t big_endian(std::span<const std::uint8_t> header, std::size_t at) {
  return std::uint32_t{header[at]} << 24 | std::uint32_t{header[at + 1]} << 16 | std::uint32_t{header[at + 2]} << 8 |
         std::uint32_t{header[at + 3]};
}

std::string describe_magic(std::uint32_t magic) {
  if (magic == kIdxImagesMagic) return "0x00000803, an image file";
  if (magic == kIdxLabelsMagic) return "0x00000801, a label file";
  return fmt::format("{:#010x}", magic);
}

void read_header(Source& source, std::span<std::uint8_t> header, std::uint32_t magic) {
  const std::size_t received = source.read(header);
  if (received < 4)
    source.fail(received, fmt::format("the file ends within the magic number; expected {}", describe_magic(magic)));
  const std::uint32_t found = big_endian(header, 0);
  if (found != magic) {
    source.fail(0, fmt::format("magic number is {}; expected {}", describe_magic(found), describe_magic(magic)));
  }
  if (received < header.size()) {
    source.fail(received, fmt::format("the file ends within the header; expected {} bytes of it", header.size()));
  }
}

// Reads one size from the header and multiplies it into the product, which stays below the limit and so cannot wrap:
// a product of at most 2^30 times a size below 2^32 is below 2^62.
std::size_t read_size(const Source& source, std::span<const std::uint8_t> header, std::size_t at, const char* what,
                      std::uint64_t& product) {
  const std::uint32_t size = big_endian(header, at);
  if (size == 0) source.fail(at, fmt::format("number of {} is 0; expected at least 1", what));
  product *= size;
  if (product > kIdxMaxPayloadBytes) {
    source.fail(at, fmt::format("number of {} is {}, which exceeds the limit of {} bytes in all; the header is damaged",
                                what, size, kIdxMaxPayloadBytes));
  }
  return size;
}

std::vector<std::uint8_t> read_payload(Source& source, std::size_t size) {
  std::vector<std::uint8_t> payload;
  while (payload.size() < size) {
    const std::size_t filled = payload.size();
    payload.resize(std::min(size, std::max(kFirstBytes, filled * 2)));
    const std::uint64_t start = source.offset();
    const std::size_t received = source.read(std::span(payload).subspan(filled));
    if (received < payload.size() - filled) {
      source.fail(start + received,
                  fmt::format("the file ends too early; its header announces {} more bytes", size - filled - received));
    }
  }
  std::uint8_t beyond = 0;
  const std::uint64_t end = source.offset();
  // This read also makes zlib verify the checksum at the end of a gzip file.
  if (source.read(std::span(&beyond, 1)) != 0)
    source.fail(end, "trailing data; the header announces the end of the file here");
  return payload;
}

IdxImages read_images(Source& source) {
  std::uint8_t header[kIdxImagesHeaderBytes];
  read_header(source, header, kIdxImagesMagic);
  IdxImages images;
  std::uint64_t size = 1;
  images.count = read_size(source, header, 4, "images", size);
  images.rows = read_size(source, header, 8, "rows", size);
  images.columns = read_size(source, header, 12, "columns", size);
  images.pixels = read_payload(source, size);
  return images;
}

std::vector<std::uint8_t> read_labels(Source& source) {
  std::uint8_t header[kIdxLabelsHeaderBytes];
  read_header(source, header, kIdxLabelsMagic);
  std::uint64_t size = 1;
  read_size(source, header, 4, "labels", size);
  return read_payload(source, size);
}

}  // namespace

IdxImages read_idx_images(const std::string& path, Loading* loading) {
  FileSource source(path, loading);
  return read_images(source);
}

std::vector<std::uint8_t> read_idx_labels(const std::string& path, Loading* loading) {
  FileSource source(path, loading);
  return read_labels(source);
}

IdxImages parse_idx_images(std::span<const unsigned char> bytes, const std::string& name) {
  MemorySource source(bytes, name);
  return read_images(source);
}

std::vector<std::uint8_t> parse_idx_labels(std::span<const unsigned char> bytes, const std::string& name) {
  MemorySource source(bytes, name);
  return read_labels(source);
}

}  // namespace ps_shm::train
