#include "persistence/tensor_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "config/error_code.hpp"
#include "persistence/json_text.hpp"
#include "ps_shm/errors.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::persistence {
namespace {

using Header = nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr int kHeaderDepth = 3;                          // the header, a tensor, its shape

// What files of others may have besides the types of ps_shm: such a tensor can be listed, and read as bytes.
struct ForeignType {
  const char* name;
  std::uint64_t bits;
};
constexpr ForeignType kForeignTypes[] = {{"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6},
                                         {"F6_E3M2", 6},     {"F4", 4},          {"C64", 64}};

const update::DTypeTraits* find_stored(std::string_view name) noexcept {
  return update::find_dtype(name, &update::DTypeTraits::safetensors);
}

// Of an element. Throws std::out_of_range: there is no such type.
std::uint64_t bits_of(const std::string& dtype) {
  if (const update::DTypeTraits* row = find_stored(dtype)) return std::uint64_t{8} * row->bytes;
  for (const ForeignType& type : kForeignTypes)
    if (dtype == type.name) return type.bits;
  throw std::out_of_range(fmt::format("an unknown dtype {}", escaped(dtype)));
}

// Throws std::out_of_range if the product does not fit into 64 bits.
std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) throw std::out_of_range("too many elements");
  return result;
}

std::uint64_t whole_number(const Header& number) {
  if (!number.is_number_unsigned()) throw std::out_of_range("an invalid number");
  return number.get<std::uint64_t>();
}

// Throws Header::exception, std::out_of_range.
StoredTensor tensor_of(const Header& said) {
  StoredTensor tensor{.dtype = said.at("dtype").get<std::string>(), .shape = {}, .elements = 1};
  const std::uint64_t bits_of_element = bits_of(tensor.dtype);
  for (const Header& extent : said.at("shape").get_ref<const Header::array_t&>()) {
    tensor.shape.push_back(whole_number(extent));
    tensor.elements = product(tensor.elements, tensor.shape.back());
  }
  const Header& offsets = said.at("data_offsets");
  const std::uint64_t end = whole_number(offsets.at(1));
  tensor.begin = whole_number(offsets.at(0));
  tensor.bytes = end - tensor.begin;
  const std::uint64_t bits = product(tensor.elements, bits_of_element);
  if (offsets.size() != 2 || end < tensor.begin || bits % 8 != 0 || tensor.bytes != bits / 8)
    throw std::out_of_range("a size that does not match its shape and dtype");
  return tensor;
}

}  // namespace

bool is_float(std::string_view dtype) noexcept {
  const update::DTypeTraits* row = find_stored(dtype);
  return row != nullptr && update::is_float(row->kind);
}

TensorFile::TensorFile(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0)
    throw Error(fmt::format("cannot read {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  try {
    read_header();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

TensorFile::~TensorFile() { ::close(descriptor_); }

void TensorFile::fail(std::string_view why) const {
  throw Error(fmt::format("{} is not a valid safetensors file: {}", path_, why), ErrorCode::kDamaged);
}

void TensorFile::read_header() {
  struct stat about {};
  if (::fstat(descriptor_, &about) != 0)
    throw Error(fmt::format("cannot read {}: {}", path_, std::strerror(errno)), config::code_of(errno));
  if (S_ISDIR(about.st_mode)) throw Error(fmt::format("cannot read {}: it is a folder", path_));
  const auto size = static_cast<std::uint64_t>(about.st_size);
  std::uint64_t header_bytes = 0;
  if (size < sizeof header_bytes) fail("it is shorter than a header");
  read_bytes(&header_bytes, 0, sizeof header_bytes);
  const std::uint64_t begin = sizeof header_bytes + header_bytes;
  if (header_bytes > kMostHeaderBytes || begin > size) fail("its header's length is invalid");
  std::string text(header_bytes, '\0');
  read_bytes(text.data(), sizeof header_bytes, header_bytes);
  Header header;
  std::set<std::string> names;
  std::string repeated;  // of several tensors of a name the last one counts, as in the format's own library
  try {
    header = Header::parse(text, [&](int depth, Header::parse_event_t event, Header& key) {
      if (depth > kHeaderDepth) throw std::out_of_range("lists nested too deep");
      if (depth == 1 && event == Header::parse_event_t::key && !names.insert(key.get<std::string>()).second)
        repeated = key.get<std::string>();
      return true;
    });
  } catch (const std::exception& error) {
    fail(fmt::format("its header has {}", json_fault(error)));
  }
  if (!header.is_object()) fail("its header is not a JSON object");
  if (repeated == "__metadata__") fail("it has metadata twice");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, said] : header.items()) {
    try {
      if (name == "__metadata__") {
        if (!said.is_null()) metadata_ = said.get<std::map<std::string, std::string>>();
        continue;
      }
      StoredTensor tensor = tensor_of(said);
      places.emplace_back(tensor.begin, tensor.bytes);
      if (tensor.begin > size - begin) throw std::out_of_range("bytes beyond the end of the file");
      tensor.begin += begin;
      tensors_.emplace(name, std::move(tensor));
    } catch (const std::exception& error) {
      fail(fmt::format("its tensor \"{}\" has {}", escaped(name), json_fault(error)));
    }
  }
  // The tensors must be contiguous, from the header to the end of the file.
  std::sort(places.begin(), places.end());
  std::uint64_t end = 0;
  for (const auto& [at, bytes] : places) {
    if (at != end)
      fail(repeated.empty() ? "its tensors overlap, or leave a gap"
                            : fmt::format("it has two tensors named \"{}\"", escaped(repeated)));
    end += bytes;
  }
  if (end != size - begin)
    fail(fmt::format("it has {} bytes of tensors, and its header describes {}", size - begin, end));
}

void TensorFile::read_bytes(void* out, std::uint64_t begin, std::uint64_t bytes) const {
  auto* next = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const ssize_t got = ::pread(descriptor_, next, bytes, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(fmt::format("cannot read {}: {}", path_, std::strerror(errno)), config::code_of(errno));
    if (got == 0) throw Error(fmt::format("cannot read {}: it is truncated", path_), ErrorCode::kDamaged);
    next += got, begin += static_cast<std::uint64_t>(got), bytes -= static_cast<std::uint64_t>(got);
  }
}

void TensorFile::read(const StoredTensor& tensor, std::span<float> out) const {
  if (out.size() != tensor.elements)
    throw Error(fmt::format("{}: a tensor of {} elements does not fit {}", path_, tensor.elements, out.size()),
                ErrorCode::kIncompatible);
  if (!is_float(tensor.dtype))
    throw Error(fmt::format("{}: a tensor of dtype {} has no floats", path_, tensor.dtype), ErrorCode::kIncompatible);
  const update::DTypeTraits& type = *find_stored(tensor.dtype);
  if (type.dtype == DType::kFloat32) return read_bytes(out.data(), tensor.begin, tensor.bytes);
  constexpr std::uint64_t kAtOnce = 1 << 16;  // elements
  const std::uint64_t width = type.bytes;
  std::vector<std::byte> bytes(std::min(kAtOnce, tensor.elements) * width);
  for (std::uint64_t first = 0; first < tensor.elements; first += kAtOnce) {
    const std::span<float> part = out.subspan(first, std::min(kAtOnce, tensor.elements - first));
    read_bytes(bytes.data(), tensor.begin + first * width, part.size() * width);
    float* next = part.data();
    update::for_elements(type.dtype, std::span(bytes).first(part.size() * width),
                         [&](auto value) { *next++ = static_cast<float>(value); });
  }
}

void TensorFile::read_part(const StoredTensor& tensor, std::uint64_t begin, std::span<std::byte> out) const {
  if (begin > tensor.bytes || out.size() > tensor.bytes - begin)
    throw Error(
        fmt::format("{}: a tensor of {} bytes has no {} bytes from {} on", path_, tensor.bytes, out.size(), begin),
        ErrorCode::kIncompatible);
  read_bytes(out.data(), tensor.begin + begin, out.size());
}

void TensorFile::read(const StoredTensor& tensor, std::span<std::byte> out) const {
  if (out.size() != tensor.bytes)
    throw Error(fmt::format("{}: a tensor of {} bytes does not fit into {} bytes", path_, tensor.bytes, out.size()),
                ErrorCode::kIncompatible);
  read_bytes(out.data(), tensor.begin, tensor.bytes);
}

}  // namespace ps_shm::persistence
