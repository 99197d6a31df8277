// Safetensors files: written files follow the format and are read back; damaged ones are refused.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "persistence/tensor_files.hpp"
#include "persistence/tensor_reader.hpp"
#include "ps_shm/errors.hpp"
#include "support/error_text.hpp"
#include "support/folder.hpp"
#include "update/dtypes.hpp"

using namespace ps_shm;
using persistence::TensorFile;
using test::contains;

namespace {

std::string file_of(const std::string& header, std::size_t bytes) {
  const std::uint64_t size = header.size();
  std::string content(sizeof size, '\0');
  std::memcpy(content.data(), &size, sizeof size);
  return content + header + std::string(bytes, '\1');
}

std::string error_of(const std::string& content) {
  const test::Folder folder;
  const std::string path = folder.path("tensors");
  std::ofstream(path, std::ios::binary) << content;
  try {
    const TensorFile file(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt64,  DType::kFloat16,
                          DType::kInt32,   DType::kInt16,   DType::kInt8,     DType::kUint64, DType::kUint32,
                          DType::kUint16,  DType::kUint8,   DType::kBool};
const char* const kNames[] = {"F32", "F64", "BF16", "I64", "F16", "I32", "I16",
                              "I8",  "U64", "U32",  "U16", "U8",  "BOOL"};

}  // namespace

TEST_CASE("a file names each dtype as the format does, and each tensor is aligned for its elements") {
  std::vector<std::byte> bytes(16);
  std::vector<persistence::Tensor> tensors;
  for (const DType dtype : kAll)
    tensors.insert(tensors.begin(),
                   {to_string(dtype), dtype, {2}, persistence::reader_of(std::span(bytes).first(2 * bytes_of(dtype)))});
  const test::Folder folder;
  const std::string path = folder.path("tensors");
  persistence::write_safetensors(path, tensors, {{"format", "pt"}});
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t size = 0;
  std::memcpy(&size, content.data(), sizeof size);
  const auto header = nlohmann::json::parse(content.substr(8, size));
  std::uint64_t bytes_of_all = 0;
  for (std::size_t i = 0; i < std::size(kAll); ++i) {
    const auto& tensor = header[to_string(kAll[i])];
    CHECK(tensor["dtype"] == kNames[i]);
    const std::uint64_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    CHECK(end - begin == 2 * bytes_of(kAll[i]));
    CHECK((8 + size + begin) % bytes_of(kAll[i]) == 0);
    bytes_of_all += end - begin;
  }
  CHECK(content.size() == 8 + size + bytes_of_all);
  const TensorFile read(path);
  CHECK(read.tensors().size() == std::size(kAll));
  CHECK(read.metadata().at("format") == "pt");
  for (std::size_t i = 0; i < std::size(kAll); ++i) {
    const persistence::StoredTensor& tensor = read.tensors().find(to_string(kAll[i]))->second;
    CHECK(tensor.dtype == kNames[i]);
    CHECK(tensor.shape == std::vector<std::uint64_t>{2});
    CHECK(tensor.bytes == 2 * bytes_of(kAll[i]));
  }
}

TEST_CASE("floats of every width are read as float32, even more of them than are converted at once") {
  constexpr std::size_t kCount = 200'000;
  std::vector<float> singles(kCount);
  std::vector<double> doubles(kCount);
  std::vector<std::uint16_t> brains(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    singles[i] = std::ldexp(float(i % 256) - 128, int(i % 7));  // eight bits are enough
    doubles[i] = singles[i];
    std::uint32_t bits;
    std::memcpy(&bits, &singles[i], sizeof bits);
    brains[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  const test::Folder folder;
  const std::string path = folder.path("tensors");
  persistence::write_safetensors(
      path,
      {{"single", DType::kFloat32, {kCount}, persistence::reader_of(std::as_bytes(std::span(singles)))},
       {"double", DType::kFloat64, {2, kCount / 2}, persistence::reader_of(std::as_bytes(std::span(doubles)))},
       {"brain", DType::kBFloat16, {kCount}, persistence::reader_of(std::as_bytes(std::span(brains)))},
       {"whole", DType::kInt32, {kCount}, persistence::reader_of(std::as_bytes(std::span(singles)))}},
      {});
  const TensorFile file(path);
  for (const char* name : {"single", "double", "brain"}) {
    CAPTURE(name);
    std::vector<float> values(kCount);
    file.read(file.tensors().find(name)->second, values);
    CHECK(values == singles);
  }
  std::vector<float> values(kCount);
  CHECK_THROWS_WITH_AS(file.read(file.tensors().find("whole")->second, values),
                       doctest::Contains("a tensor of dtype I32 has no floats"), Error);
  CHECK_THROWS_AS(file.read(file.tensors().find("single")->second, std::span(values).first(1)), Error);
  REQUIRE(truncate(path.c_str(), 1000) == 0);
  CHECK_THROWS_WITH_AS(file.read(file.tensors().find("brain")->second, values), doctest::Contains("it is truncated"),
                       Error);
}

TEST_CASE("16-bit floats are converted to the values that they represent") {
  CHECK(float(update::Float16{0x3c00}) == 1.0F);
  CHECK(float(update::Float16{0xc000}) == -2.0F);
  CHECK(float(update::Float16{0x7bff}) == 65504.0F);
  CHECK(float(update::Float16{0x0400}) == std::ldexp(1.0F, -14));  // the smallest normal one
  CHECK(float(update::Float16{0x0001}) == std::ldexp(1.0F, -24));  // the smallest one
  CHECK(float(update::Float16{0x83ff}) == -1023 * std::ldexp(1.0F, -24));
  CHECK(std::signbit(float(update::Float16{0x8000})));
  CHECK(float(update::Float16{0xfc00}) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(float(update::Float16{0x7e00})));
  CHECK(float(update::BFloat16{0x3f80}) == 1.0F);
  CHECK(float(update::BFloat16{0xff80}) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("a file is written beside links and rests under its temporary names, and none of them is followed") {
  const test::Folder folder;
  const std::string precious = folder.path("precious"), path = folder.path("tensors");
  std::ofstream(precious) << "kept";
  std::filesystem::create_symlink(precious, fmt::format("{}.partial-{}.0", path, getpid()));
  std::filesystem::create_hard_link(precious, fmt::format("{}.partial-{}.1", path, getpid()));
  std::filesystem::create_symlink(precious, path);
  std::vector<std::byte> bytes(4);
  persistence::write_safetensors(path, {{"t", DType::kFloat32, {1}, persistence::reader_of(std::span(bytes))}}, {});
  CHECK(std::filesystem::file_size(precious) == 4);
  CHECK_FALSE(std::filesystem::is_symlink(path));
  CHECK(TensorFile(path).tensors().size() == 1);
}

TEST_CASE("what the format's own library reads is read: other floats of 8 bits, no metadata, names that occur twice") {
  const test::Folder folder;
  const std::string path = folder.write(
      "a.safetensors", file_of(R"({"__metadata__":null,"a":{"dtype":"F8_E4M3FNUZ","shape":[1],"data_offsets":[0,1]},)"
                               R"("a":{"dtype":"F8_E5M2FNUZ","shape":[2],"data_offsets":[0,2]},)"
                               R"("b":{"dtype":"F8_E4M3FNUZ","shape":[3],"data_offsets":[2,5]}})",
                               5));
  const TensorFile file(path);
  CHECK(file.metadata().empty());
  CHECK(file.tensors().size() == 2);
  CHECK(file.tensors().find("a")->second.dtype == "F8_E5M2FNUZ");
  CHECK(file.tensors().find("b")->second.bytes == 3);
}

TEST_CASE("messages have no bytes of a file as they stand there, and no texts of the JSON library") {
  const auto is_plain = [](const std::string& text) {
    return !contains(text, "json.exception") &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
  };
  const std::string hostile = "\\u001b[31m\x7f\xc3\xa9";
  for (const std::string& header : std::initializer_list<std::string>{
           "{\"" + hostile + "\":{}}", "{\"a\":{\"dtype\":\"" + hostile + "\",\"shape\":[],\"data_offsets\":[0,1]}}",
           "{\"a\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,1]}}", "{\"\xff\x1b[31m\x9b", "{\"a\":1e999}",
           "{\"" + std::string(100'000, 'n') + "\":{}}", "{\"__metadata__\":{\"a\":null}}"}) {
    const std::string error = error_of(file_of(header, 1));
    CAPTURE(error);
    CHECK(contains(error, "is not a valid safetensors file: its "));
    CHECK(is_plain(error));
    CHECK(error.size() < 300);
  }
}

TEST_CASE("an invalid file is refused, with the reason") {
  const auto with = [](const std::string& tensor, std::size_t bytes) {
    return error_of(file_of("{\"a\":" + tensor + "}", bytes));
  };
  CHECK(error_of(file_of("{}", 0)) == "none");
  CHECK(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8) == "none");
  CHECK(with(R"({"dtype":"F32","shape":[0,7],"data_offsets":[0,0]})", 0) == "none");
  CHECK(with(R"({"dtype":"F8_E5M2","shape":[3],"data_offsets":[0,3]})", 3) == "none");
  CHECK(contains(error_of(""), "shorter than a header"));
  CHECK(contains(error_of(std::string(8, '\xff')), "its header's length is invalid"));
  CHECK(contains(error_of(file_of("{}", 0).substr(0, 9)), "its header's length is invalid"));
  CHECK(contains(error_of(file_of("{", 0)), "its header has invalid JSON at byte 2"));
  CHECK(contains(error_of(file_of("[]", 0)), "not a JSON object"));
  CHECK(
      contains(error_of(file_of("{\"a\":" + std::string(90, '[') + std::string(90, ']') + "}", 0)), "nested too deep"));
  CHECK(contains(error_of(file_of("{}", 1)), "it has 1 bytes of tensors, and its header describes 0"));
  CHECK(contains(error_of(file_of(R"({"__metadata__":{"a":1}})", 0)), "\"__metadata__\" has"));
  CHECK(contains(with("{}", 0), "its tensor \"a\" has"));
  CHECK(contains(with(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", 8), "an unknown dtype F33"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "an invalid number"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), "does not match its shape"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "does not match its shape"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})", 8), "does not match its shape"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[2],"data_offsets":[16,24]})", 8), "bytes beyond the end of the file"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", 12), "overlap, or leave a gap"));
  CHECK(contains(with(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})", 0), "too many"));
  CHECK(contains(error_of(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                                  6)),
                 "overlap, or leave a gap"));
  for (const std::string other : {"[4,8]", "[0,8]"})
    CHECK(contains(error_of(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                    R"("a":{"dtype":"U8","shape":[4],"data_offsets":)" +
                                        other + "}}",
                                    8)),
                   other == "[4,8]" ? "it has two tensors named \"a\"" : "does not match its shape"));
  CHECK(contains(error_of(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0)), "it has metadata twice"));
  CHECK_THROWS_WITH_AS(TensorFile("/no/such/file"), "cannot read /no/such/file: No such file or directory", Error);
  CHECK_THROWS_WITH_AS(TensorFile("/tmp"), "cannot read /tmp: it is a folder", Error);
}
