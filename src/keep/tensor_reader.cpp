#include "keep/tensor_reader.hpp"

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
#include <utility>

#include "keep/half.hpp"
#include "ps/errors.hpp"

namespace ps::keep {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // as the format's own library has it
constexpr int kMostDepth = 3;                            // the header, a tensor, its shape

struct StoredType {
  const char* name;
  std::uint64_t bits;
};
constexpr StoredType kTypes[] = {{"F64", 64}, {"F32", 32}, {"F16", 16},    {"BF16", 16},   {"I64", 64},
                                 {"I32", 32}, {"I16", 16}, {"I8", 8},      {"U64", 64},    {"U32", 32},
                                 {"U16", 16}, {"U8", 8},   {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
                                 {"C64", 64}, {"F4", 4},   {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}};

// Throws std::out_of_range: what it counts does not fit 64 bits.
std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) throw std::out_of_range("too many elements");
  return result;
}

std::uint64_t whole_number(const Json& number) {
  if (!number.is_number_unsigned()) throw std::out_of_range("a number that is none");
  return number.get<std::uint64_t>();
}

// Throws Json::exception, std::out_of_range.
StoredTensor tensor_of(const Json& said) {
  StoredTensor tensor{.dtype = said.at("dtype").get<std::string>(), .shape = {}, .elements = 1};
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const StoredType& one) { return one.name == tensor.dtype; });
  if (type == std::end(kTypes)) throw std::out_of_range(fmt::format("an unknown dtype {}", tensor.dtype));
  for (const Json& extent : said.at("shape").get_ref<const Json::array_t&>()) {
    tensor.shape.push_back(whole_number(extent));
    tensor.elements = product(tensor.elements, tensor.shape.back());
  }
  const Json& offsets = said.at("data_offsets");
  const std::uint64_t end = whole_number(offsets.at(1));
  tensor.begin = whole_number(offsets.at(0));
  tensor.bytes = end - tensor.begin;
  const std::uint64_t bits = product(tensor.elements, type->bits);
  if (offsets.size() != 2 || end < tensor.begin || bits % 8 != 0 || tensor.bytes != bits / 8)
    throw std::out_of_range("other bytes than its shape and dtype have");
  return tensor;
}

template <class T, class Convert>
void convert(std::span<const std::byte> bytes, std::span<float> out, Convert&& convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    out[i] = convert(value);
  }
}

}  // namespace

bool is_float(std::string_view dtype) noexcept {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16" || dtype == "F64";
}

TensorFile::TensorFile(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw Error(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
  try {
    read_header();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

TensorFile::~TensorFile() { ::close(descriptor_); }

void TensorFile::fail(std::string_view why) const {
  throw Error(fmt::format("{} is no safetensors file: {}", path_, why));
}

void TensorFile::read_header() {
  struct stat about {};
  if (::fstat(descriptor_, &about) != 0) throw Error(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
  if (S_ISDIR(about.st_mode)) throw Error(fmt::format("cannot read {}: it is a folder", path_));
  const auto size = static_cast<std::uint64_t>(about.st_size);
  std::uint64_t header_bytes = 0;
  if (size < sizeof header_bytes) fail("it is shorter than a header");
  read_bytes(&header_bytes, 0, sizeof header_bytes);
  const std::uint64_t begin = sizeof header_bytes + header_bytes;
  if (header_bytes > kMostHeaderBytes || begin > size) fail("its header's length is not one");
  std::string text(header_bytes, '\0');
  read_bytes(text.data(), sizeof header_bytes, header_bytes);
  Json header;
  try {
    header = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMostDepth) throw std::out_of_range("it is nested too deep");
      return true;
    });
  } catch (const std::exception& error) {
    fail(fmt::format("its header is no JSON: {}", error.what()));
  }
  if (!header.is_object()) fail("its header is no JSON object");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, said] : header.items()) {
    try {
      if (name == "__metadata__") {
        metadata_ = said.get<std::map<std::string, std::string>>();
        continue;
      }
      StoredTensor tensor = tensor_of(said);
      places.emplace_back(tensor.begin, tensor.bytes);
      if (tensor.begin > size - begin) throw std::out_of_range("bytes that the file has not");
      tensor.begin += begin;
      tensors_.emplace(name, std::move(tensor));
    } catch (const std::exception& error) {
      fail(fmt::format("its tensor {} has {}", Json(name).dump(-1, ' ', true, Json::error_handler_t::replace),
                       error.what()));
    }
  }
  // One after the other, without a gap, to the file's end.
  std::sort(places.begin(), places.end());
  std::uint64_t end = 0;
  for (const auto& [at, bytes] : places) {
    if (at != end) fail("its tensors overlap, or leave a gap");
    end += bytes;
  }
  if (end != size - begin)
    fail(fmt::format("it has {} bytes of tensors, and its header speaks of {}", size - begin, end));
}

void TensorFile::read_bytes(void* out, std::uint64_t begin, std::uint64_t bytes) const {
  auto* next = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const ssize_t got = ::pread(descriptor_, next, bytes, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
    if (got == 0) throw Error(fmt::format("cannot read {}: it has been cut off", path_));
    next += got, begin += static_cast<std::uint64_t>(got), bytes -= static_cast<std::uint64_t>(got);
  }
}

void TensorFile::read(const StoredTensor& tensor, std::span<float> out) const {
  if (out.size() != tensor.elements)
    throw Error(fmt::format("{}: a tensor of {} elements does not fit {}", path_, tensor.elements, out.size()));
  if (!is_float(tensor.dtype)) throw Error(fmt::format("{}: a tensor of dtype {} has no floats", path_, tensor.dtype));
  if (tensor.dtype == "F32") return read_bytes(out.data(), tensor.begin, tensor.bytes);
  constexpr std::uint64_t kAtOnce = 1 << 16;  // elements
  const std::uint64_t width = tensor.bytes / std::max<std::uint64_t>(1, tensor.elements);
  std::vector<std::byte> bytes(std::min(kAtOnce, tensor.elements) * width);
  for (std::uint64_t first = 0; first < tensor.elements; first += kAtOnce) {
    const std::span<float> part = out.subspan(first, std::min(kAtOnce, tensor.elements - first));
    read_bytes(bytes.data(), tensor.begin + first * width, part.size() * width);
    if (tensor.dtype == "F64")
      convert<double>(bytes, part, [](double value) { return static_cast<float>(value); });
    else if (tensor.dtype == "F16")
      convert<std::uint16_t>(bytes, part, from_float16);
    else
      convert<std::uint16_t>(bytes, part, from_bfloat16);
  }
}

void TensorFile::read(const StoredTensor& tensor, std::span<std::byte> out) const {
  if (out.size() != tensor.bytes)
    throw Error(fmt::format("{}: a tensor of {} bytes does not fit {}", path_, tensor.bytes, out.size()));
  read_bytes(out.data(), tensor.begin, tensor.bytes);
}

}  // namespace ps::keep
