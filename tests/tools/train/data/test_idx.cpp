#include "train/data/idx.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "support/folder.hpp"

namespace {

namespace fs = std::filesystem;
using ps_shm::train::IdxImages;
using Bytes = std::vector<unsigned char>;

Bytes big_endian(std::initializer_list<std::uint32_t> words) {
  Bytes bytes;
  for (const std::uint32_t word : words) {
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<unsigned char>(word >> shift));
  }
  return bytes;
}

Bytes with_payload(Bytes bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<unsigned char>(i * 7));
  return bytes;
}

// Two images of 3x4 pixels; three labels.
Bytes good_images() { return with_payload(big_endian({0x803, 2, 3, 4}), 24); }
Bytes good_labels() { return with_payload(big_endian({0x801, 3}), 3); }

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const ps_shm::Error& error) {
    return error.what();
  }
  return "no error";
}

std::string images_error(const Bytes& bytes) {
  return error_of([&] { ps_shm::train::parse_idx_images(bytes, "blob"); });
}

std::string labels_error(const Bytes& bytes) {
  return error_of([&] { ps_shm::train::parse_idx_labels(bytes, "blob"); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string_view text(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void check_good(const IdxImages& images) {
  CHECK(images.count == 2);
  CHECK(images.rows == 3);
  CHECK(images.columns == 4);
  REQUIRE(images.pixels.size() == 24);
  CHECK(images.pixels[0] == 0);
  CHECK(images.pixels[23] == 23 * 7);
}

}  // namespace

TEST_CASE("idx: images and labels are read from memory") {
  check_good(ps_shm::train::parse_idx_images(good_images(), "blob"));
  CHECK(ps_shm::train::parse_idx_labels(good_labels(), "blob") == std::vector<std::uint8_t>{0, 7, 14});
}

TEST_CASE("idx: a plain and a gzip file give the same data, whatever their names") {
  const ps_shm::test::Folder folder;
  check_good(ps_shm::train::read_idx_images(folder.write("plain.gz", text(good_images()))));
  check_good(ps_shm::train::read_idx_images(folder.write_gz("packed", text(good_images()))));
  CHECK(ps_shm::train::read_idx_labels(folder.write("l", text(good_labels()))) ==
        ps_shm::train::read_idx_labels(folder.write_gz("m", text(good_labels()))));
}

TEST_CASE("idx: a payload of several blocks is read completely") {
  const ps_shm::test::Folder folder;
  constexpr std::size_t kCount = 5'000'011;
  const Bytes bytes = with_payload(big_endian({0x801, kCount}), kCount);
  const auto plain = ps_shm::train::read_idx_labels(folder.write("plain", text(bytes)));
  const auto packed = ps_shm::train::read_idx_labels(folder.write_gz("packed", text(bytes)));
  REQUIRE(plain.size() == kCount);
  CHECK(std::equal(plain.begin(), plain.end(), bytes.begin() + 8));
  CHECK(plain == packed);
}

TEST_CASE("idx: a file truncated anywhere is refused, with the offset of the truncation") {
  const Bytes images = good_images();
  for (std::size_t length = 0; length < images.size(); ++length) {
    CAPTURE(length);
    const std::string error = images_error(Bytes(images.begin(), images.begin() + static_cast<std::ptrdiff_t>(length)));
    CHECK(has(error, "blob: byte " + std::to_string(length) + ": the file ends"));
  }
  const Bytes labels = good_labels();
  for (std::size_t length = 0; length < labels.size(); ++length) {
    CAPTURE(length);
    const std::string error = labels_error(Bytes(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(length)));
    CHECK(has(error, "blob: byte " + std::to_string(length) + ": the file ends"));
  }
}

TEST_CASE("idx: a file with data after its payload is refused") {
  CHECK(has(images_error(with_payload(good_images(), 1)), "blob: byte 40: trailing data"));
  CHECK(has(labels_error(with_payload(good_labels(), 100)), "blob: byte 11: trailing data"));
  const ps_shm::test::Folder folder;
  const std::string packed = folder.write_gz("packed", text(with_payload(good_images(), 1)));
  CHECK(has(error_of([&] { ps_shm::train::read_idx_images(packed); }), packed + ": byte 40: trailing data"));
}

TEST_CASE("idx: a wrong magic number is refused, and swapped files are named") {
  CHECK(has(images_error(with_payload(big_endian({0x0d03, 2, 3, 4}), 24)), "byte 0: magic number is 0x00000d03"));
  CHECK(has(images_error(good_labels()), "byte 0: magic number is 0x00000801, a label file; expected 0x00000803"));
  CHECK(has(labels_error(good_images()), "byte 0: magic number is 0x00000803, an image file; expected 0x00000801"));
}

TEST_CASE("idx: gzip bytes in memory are refused as not IDX") {
  CHECK(has(images_error({0x1f, 0x8b, 0x08, 0x00, 0x00}), "byte 0: magic number is 0x1f8b0800"));
}

TEST_CASE("idx: a size of zero is refused, with its offset") {
  CHECK(has(images_error(big_endian({0x803, 0, 3, 4})), "byte 4: number of images is 0"));
  CHECK(has(images_error(big_endian({0x803, 2, 0, 4})), "byte 8: number of rows is 0"));
  CHECK(has(images_error(big_endian({0x803, 2, 3, 0})), "byte 12: number of columns is 0"));
  CHECK(has(labels_error(big_endian({0x801, 0})), "byte 4: number of labels is 0"));
}

TEST_CASE("idx: sizes whose product is huge or overflows are refused before anything is allocated") {
  CHECK(has(images_error(big_endian({0x803, 0xffffffff, 1, 1})), "byte 4: number of images is 4294967295"));
  CHECK(has(images_error(big_endian({0x803, 1 << 30, 2, 1})), "byte 8: number of rows is 2"));
  CHECK(has(images_error(big_endian({0x803, 0x10000, 0x8000, 0x20000})), "byte 8: number of rows"));
  CHECK(has(images_error(big_endian({0x803, 0x8000, 0x8000, 0xffffffff})), "byte 12: number of columns"));
  CHECK(has(labels_error(big_endian({0x801, 0x40000001})), "byte 4: number of labels"));
}

TEST_CASE("idx: a header that announces a gigabyte costs no more memory than the file's contents") {
  CHECK(has(images_error(with_payload(big_endian({0x803, 1 << 20, 32, 32}), 5)), "1073741819 more bytes"));
}

TEST_CASE("idx: a gzip file truncated anywhere is refused") {
  const ps_shm::test::Folder folder;
  folder.write_gz("whole", text(good_images()));
  const Bytes whole = read(folder.path("whole"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    const std::string path = folder.write("cut", text(cut));
    CHECK(has(error_of([&] { ps_shm::train::read_idx_images(path); }), path + ": byte "));
  }
}

TEST_CASE("idx: a damaged byte anywhere in a gzip file is noticed") {
  const ps_shm::test::Folder folder;
  folder.write_gz("whole", text(good_images()));
  const Bytes whole = read(folder.path("whole"));
  // The fields for time, extra flags and system (bytes 4 to 9) carry no content and have no checksum.
  for (std::size_t at = 0; at < whole.size(); at == 2 ? at = 10 : ++at) {
    CAPTURE(at);
    Bytes damaged = whole;
    damaged[at] ^= 0x55;
    const std::string path = folder.write("damaged", text(damaged));
    CHECK(has(error_of([&] { ps_shm::train::read_idx_images(path); }), path + ": byte "));
  }
}

TEST_CASE("idx: damaged gzip content is reported as such, once and in one line") {
  const ps_shm::test::Folder folder;
  folder.write_gz("whole", text(good_images()));
  Bytes damaged = read(folder.path("whole"));
  damaged[damaged.size() - 6] ^= 1;  // in the checksum
  const std::string path = folder.write("damaged", text(damaged));
  const std::string error = error_of([&] { ps_shm::train::read_idx_images(path); });
  CHECK(
      has(error, path + ": byte 0: damaged gzip data here or soon after (incorrect data check); fetch the file again"));
  CHECK(error.find(path, 1) == std::string::npos);
  CHECK_FALSE(has(error, "\n"));
}

TEST_CASE("idx: a missing file, a folder and a device are refused by name") {
  const ps_shm::test::Folder folder;
  const std::string missing = folder.path("missing");
  CHECK(error_of([&] { ps_shm::train::read_idx_images(missing); }) == missing + ": no such file");
  const std::string parent = folder.path();
  CHECK(has(error_of([&] { ps_shm::train::read_idx_images(parent); }), parent + ": not a regular file"));
  CHECK(has(error_of([&] { ps_shm::train::read_idx_labels("/dev/zero"); }), "/dev/zero: not a regular file"));
}
