#include "train/data/dataset.hpp"

#include <algorithm>
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

#include "common/digits.hpp"
#include "ps_shm/errors.hpp"
#include "support/folder.hpp"

namespace {

namespace fs = std::filesystem;
using ps_shm::test::Folder;
using ps_shm::train::Dataset;
using ps_shm::train::DataSplit;
using ps_shm::train::EmbeddedData;
using Bytes = std::vector<unsigned char>;

Bytes idx(std::initializer_list<std::uint32_t> header, const Bytes& payload) {
  Bytes bytes;
  for (const std::uint32_t word : header) {
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<unsigned char>(word >> shift));
  }
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

// Three images of 1x2 pixels for training, one for testing.
struct Files {
  Bytes train_images = idx({0x803, 3, 1, 2}, {0, 16, 8, 4, 2, 1});
  Bytes train_labels = idx({0x801, 3}, {0, 2, 1});
  Bytes test_images = idx({0x803, 1, 1, 2}, {16, 0});
  Bytes test_labels = idx({0x801, 1}, {2});

  EmbeddedData view() const { return {train_images, train_labels, test_images, test_labels}; }
};

std::string load_error(const std::string& source, const EmbeddedData& digits = {}) {
  try {
    ps_shm::train::load_data(source, digits);
  } catch (const ps_shm::Error& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string_view text(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

void write_all(const Folder& folder, const Files& files) {
  folder.write("train-images-idx3-ubyte", text(files.train_images));
  folder.write("train-labels-idx1-ubyte", text(files.train_labels));
  folder.write("t10k-images-idx3-ubyte", text(files.test_images));
  folder.write("t10k-labels-idx1-ubyte", text(files.test_labels));
}

}  // namespace

TEST_CASE("dataset: the embedded digits have their published shape and all ten classes in both parts") {
  const DataSplit digits = ps_shm::train::load_data("digits", ps_shm::train::embedded_digits());
  CHECK(digits.name == "digits");
  CHECK(digits.train.count == 1437);
  CHECK(digits.test.count == 360);
  for (const Dataset* part : {&digits.train, &digits.test}) {
    CHECK(part->features == 64);
    CHECK(part->classes == 10);
    CHECK(part->images.size() == part->count * 64);
    CHECK(part->labels.size() == part->count);
    CHECK(*std::min_element(part->images.begin(), part->images.end()) == 0.0F);
    CHECK(*std::max_element(part->images.begin(), part->images.end()) == 1.0F);
    std::array<std::size_t, 10> of_class{};
    for (const std::uint8_t label : part->labels) ++of_class.at(label);
    for (const std::size_t count : of_class) CHECK(count * 20 > part->count);
  }
}

TEST_CASE("dataset: digits are scaled by 16, the pixels of a folder by 255") {
  const Files files;
  const DataSplit digits = ps_shm::train::load_data("digits", files.view());
  CHECK(digits.train.images == std::vector<float>{0.0F, 1.0F, 0.5F, 0.25F, 0.125F, 0.0625F});
  const Folder folder;
  write_all(folder, files);
  const DataSplit split = ps_shm::train::load_data(folder.path(), {});
  CHECK(split.name == folder.path());
  CHECK(split.test.images == std::vector<float>{16.0F / 255.0F, 0.0F});
  CHECK(split.train.labels == std::vector<std::uint8_t>{0, 2, 1});
  CHECK(split.test.classes == 3);
}

TEST_CASE("dataset: a folder may mix plain and gzip files, and both spellings of their names") {
  const Files files;
  const Folder folder;
  folder.write("train-images.idx3-ubyte", text(files.train_images));
  folder.write_gz("train-labels-idx1-ubyte.gz", text(files.train_labels));
  folder.write_gz("t10k-images.idx3-ubyte.gz", text(files.test_images));
  folder.write("t10k-labels-idx1-ubyte", text(files.test_labels));
  const DataSplit split = ps_shm::train::load_data(folder.path(), {});
  CHECK(split.train.count == 3);
  CHECK(split.test.count == 1);
}

TEST_CASE("dataset: folders with the names of files, as archives unpack them, are passed over and looked into") {
  const Files files;
  const Folder folder;
  folder.write("train-images-idx3-ubyte/readme", "beside the file");
  folder.write("train-images.idx3-ubyte", text(files.train_images));
  folder.write("train-labels-idx1-ubyte/train-labels.idx1-ubyte", text(files.train_labels));
  folder.write("t10k-images.idx3-ubyte/t10k-images.idx3-ubyte", text(files.test_images));
  fs::create_directory(folder.path("t10k-labels.idx1-ubyte"));
  CHECK(has(load_error(folder.path()), "file t10k-labels-idx1-ubyte not found"));
  folder.write_gz("t10k-labels.idx1-ubyte/t10k-labels-idx1-ubyte.gz", text(files.test_labels));
  const DataSplit split = ps_shm::train::load_data(folder.path(), {});
  CHECK(split.train.count == 3);
  CHECK(split.test.count == 1);
}

TEST_CASE("dataset: an unknown name, a missing folder and a file instead of a folder are refused, with a hint") {
  CHECK(has(load_error("cifar"), "data source 'cifar': no such folder; give digits, fashion-mnist or a folder"));
  const Folder folder;
  CHECK(has(load_error(folder.path("none")), folder.path("none") + "': no such folder"));
  folder.write("file", "1");
  CHECK(has(load_error(folder.path("file")), folder.path("file") + ": not a folder; files of LIBSVM text or ratings are for "
                                                                   "the sparse models: `model` logistic, svm, fm or mf"));
}

TEST_CASE("dataset: each missing file is named") {
  for (const std::string name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const Folder folder;
    write_all(folder, {});
    fs::remove(folder.path(name));
    const std::string error = load_error(folder.path());
    CHECK(has(error, "file " + name + " not found"));
    CHECK(has(error, folder.path()));
  }
}

TEST_CASE("dataset: a damaged file in a folder is named by its path") {
  Files files;
  files.test_labels.pop_back();
  const Folder folder;
  write_all(folder, files);
  CHECK(has(load_error(folder.path()), folder.path("t10k-labels-idx1-ubyte") + ": byte 8: the file ends too early"));
}

TEST_CASE("dataset: Fashion-MNIST is read from Debian's package, or the error says what to install") {
  if (fs::exists("/usr/share/datasets/fashion-mnist")) {
    const DataSplit split = ps_shm::train::load_data("fashion-mnist", {});
    CHECK(split.train.count == 60'000);
    CHECK(split.test.count == 10'000);
    CHECK(split.train.features == 784);
    CHECK(split.train.classes == 10);
  } else {
    CHECK(has(load_error("fashion-mnist"), "run: apt install dataset-fashion-mnist"));
  }
}

TEST_CASE("dataset: the numbers of labels and images must be equal") {
  Files files;
  files.train_labels = idx({0x801, 2}, {0, 2});
  CHECK(has(load_error("digits", files.view()),
            "embedded digits: train labels: byte 4: 2 labels; expected 3, one for each image"));
}

TEST_CASE("dataset: a test label of a class that does not occur in training is refused, with its offset") {
  Files files;
  files.test_images = idx({0x803, 2, 1, 2}, {1, 2, 3, 4});
  files.test_labels = idx({0x801, 2}, {2, 3});
  CHECK(has(load_error("digits", files.view()), "test labels: byte 9: label 3; expected one below 3"));
}

TEST_CASE("dataset: test images of another size than the training images are refused") {
  Files files;
  files.test_images = idx({0x803, 1, 2, 1}, {16, 0});
  CHECK(has(load_error("digits", files.view()), "test images: byte 8: images of 2x1 pixels; expected 1x2"));
}

TEST_CASE("dataset: a digit's pixel above 16 is refused, with its offset") {
  Files files;
  files.train_images[18] = 17;
  CHECK(has(load_error("digits", files.view()), "train images: byte 18: pixel 17; expected at most 16"));
}

TEST_CASE("dataset: a slice is a view of consecutive examples") {
  const DataSplit split = ps_shm::train::load_data("digits", Files{}.view());
  const ps_shm::train::Batch batch = ps_shm::train::slice(split.train, 1, 2);
  CHECK(batch.count == 2);
  CHECK(batch.images.data() == split.train.images.data() + 2);
  CHECK(batch.images.size() == 4);
  CHECK(batch.labels.front() == 2);
}

TEST_CASE(
    "dataset: a shard by label has the examples of its worker's classes, also where workers are more than classes") {
  const ps_shm::train::Dataset data{
      .images = {0, 1, 2, 3, 4, 5}, .labels = {0, 1, 2, 0, 1, 2}, .count = 6, .features = 1, .classes = 3};
  const auto images = [&](std::uint32_t rank, std::uint32_t workers) {
    const ps_shm::train::Dataset shard = ps_shm::train::shard_by_label(data, rank, workers);
    CHECK(shard.count == shard.images.size());
    CHECK(shard.count == shard.labels.size());
    CHECK(shard.classes == 3);
    return shard.images;
  };
  CHECK(images(0, 1) == data.images);
  CHECK(images(0, 2) == std::vector<float>{0, 2, 3, 5});
  CHECK(images(1, 2) == std::vector<float>{1, 4});
  CHECK(images(4, 5) == std::vector<float>{1, 4});
  const ps_shm::train::Dataset one{.images = {0}, .labels = {0}, .count = 1, .features = 1, .classes = 2};
  CHECK_THROWS_WITH_AS(ps_shm::train::shard_by_label(one, 1, 2), doctest::Contains("no training example"),
                       ps_shm::Error);
}
