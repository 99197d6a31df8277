#include "train/data/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"
#include "train/data/idx.hpp"
#include "train/data/synthetic.hpp"

namespace ps_shm::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";
constexpr float kMaxPixel = 255.0F;
constexpr float kMaxDigitsPixel = 16.0F;  // each value counts the dark pixels in a 4x4 block

struct Part {
  std::string images_name;
  std::string labels_name;
  IdxImages images;
  std::vector<std::uint8_t> labels;
};

constexpr const char* kMnistFiles[4][2] = {
    {"train-images", "idx3"}, {"train-labels", "idx1"}, {"t10k-images", "idx3"}, {"t10k-labels", "idx1"}};

// Which of them there are, without "-ubyte".
std::vector<std::string> names_of_mnist() {
  std::vector<std::string> names;
  for (const auto& [stem, kind] : kMnistFiles) names.push_back(fmt::format("{}-{}", stem, kind));
  return names;
}

// The command that gets those of these names into the current folder.
std::string get_mnist(const std::vector<std::string>& names = names_of_mnist()) {
  return fmt::format("curl -O 'https://ossci-datasets.s3.amazonaws.com/mnist/{{{}}}-ubyte.gz'", fmt::join(names, ","));
}

// The file for train-images, idx3: distributions differ in the separator and in compression, and archives unpack it into
// a folder of such a name. Empty if there is none.
std::string look_for_file(const fs::path& folder, const std::string& stem, const std::string& kind) {
  std::vector<std::string> names;
  for (const char* separator : {"-", "."}) names.push_back(stem + separator + kind + "-ubyte");
  for (const fs::path& place : {folder, folder / names[0], folder / names[1]}) {
    for (const std::string& name : names) {
      for (const char* compression : {"", ".gz"}) {
        const fs::path path = place / (name + compression);
        std::error_code ignored;  // a path that cannot be examined counts as missing
        if (fs::is_regular_file(path, ignored)) return path.string();
      }
    }
  }
  return {};
}

// The four files of MNIST in order. Throws Error that names all missing files.
std::array<std::string, 4> find_files(const fs::path& folder) {
  std::array<std::string, 4> found;
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [stem, kind] = kMnistFiles[i];
    found[i] = look_for_file(folder, stem, kind);
    if (found[i].empty()) missing.push_back(fmt::format("{}-{}", stem, kind));
  }
  if (!missing.empty())
    throw Error(fmt::format("{}: file{} {}-ubyte not found, plain or .gz; put the four files of MNIST there: {}",
                            folder.string(), missing.size() == 1 ? "" : "s", fmt::join(missing, "-ubyte, "),
                            get_mnist(missing)));
  return found;
}

Part read_part(const std::string& images, const std::string& labels, Loading& loading) {
  Part part;
  part.images_name = images;
  part.labels_name = labels;
  part.images = read_idx_images(part.images_name, &loading);
  part.labels = read_idx_labels(part.labels_name, &loading);
  return part;
}

Part parse_part(const std::string& name, std::span<const unsigned char> images, std::span<const unsigned char> labels) {
  Part part;
  part.images_name = name + " images";
  part.labels_name = name + " labels";
  part.images = parse_idx_images(images, part.images_name);
  part.labels = parse_idx_labels(labels, part.labels_name);
  return part;
}

void check_part(const Part& part, const Part& train, std::size_t classes) {
  if (part.labels.size() != part.images.count) {
    throw Error(fmt::format("{}: byte 4: {} labels; expected {}, one for each image of {}", part.labels_name,
                            part.labels.size(), part.images.count, part.images_name));
  }
  if (part.images.rows != train.images.rows || part.images.columns != train.images.columns) {
    throw Error(fmt::format("{}: byte 8: images of {}x{} pixels; expected {}x{} as in {}", part.images_name,
                            part.images.rows, part.images.columns, train.images.rows, train.images.columns,
                            train.images_name));
  }
  const auto stray = std::find_if(part.labels.begin(), part.labels.end(), [=](std::uint8_t l) { return l >= classes; });
  if (stray != part.labels.end()) {
    throw Error(fmt::format("{}: byte {}: label {}; expected one below {}, as in {}", part.labels_name,
                            kIdxLabelsHeaderBytes + static_cast<std::size_t>(stray - part.labels.begin()), *stray,
                            classes, train.labels_name));
  }
}

void check_pixels(const Part& part, std::size_t begin, std::size_t end, float max_pixel) {
  const auto last = part.images.pixels.begin() + std::ptrdiff_t(end);
  const auto stray = std::find_if(part.images.pixels.begin() + std::ptrdiff_t(begin), last,
                                  [=](std::uint8_t pixel) { return static_cast<float>(pixel) > max_pixel; });
  if (stray != last) {
    throw Error(fmt::format("{}: byte {}: pixel {}; expected at most {}", part.images_name,
                            kIdxImagesHeaderBytes + static_cast<std::size_t>(stray - part.images.pixels.begin()),
                            *stray, max_pixel));
  }
}

Dataset to_dataset(Part part, std::size_t classes, float max_pixel, Loading& loading) {
  constexpr std::size_t kBetweenLooks = std::size_t{1} << 20;  // pixels
  Dataset data;
  data.count = part.images.count;
  data.features = part.images.rows * part.images.columns;
  data.classes = classes;
  data.labels = std::move(part.labels);
  std::array<float, 256> scaled{};
  for (std::size_t pixel = 0; pixel < scaled.size(); ++pixel) scaled[pixel] = static_cast<float>(pixel) / max_pixel;
  const std::vector<std::uint8_t>& pixels = part.images.pixels;
  data.images.reserve(pixels.size());
  for (std::size_t begin = 0; begin < pixels.size(); begin += kBetweenLooks) {
    loading.at(begin, pixels.size());
    const std::size_t end = std::min(begin + kBetweenLooks, pixels.size());
    check_pixels(part, begin, end, max_pixel);
    data.images.resize(end);
    for (std::size_t i = begin; i < end; ++i) data.images[i] = scaled[pixels[i]];
  }
  return data;
}

DataSplit to_split(const std::string& name, Part train, Part test, float max_pixel, Loading& loading) {
  const std::size_t classes = std::size_t{*std::max_element(train.labels.begin(), train.labels.end())} + 1;
  check_part(train, train, classes);
  check_part(test, train, classes);
  Dataset data = to_dataset(std::move(train), classes, max_pixel, loading);
  return {name, std::move(data), to_dataset(std::move(test), classes, max_pixel, loading)};
}

}  // namespace

DataSplit load_data(const std::string& source, const EmbeddedData& digits, const LoadHooks& hooks) {
  Loading loading(hooks, source);
  if (source == "digits") {
    return to_split(source, parse_part("embedded digits: train", digits.train_images, digits.train_labels),
                    parse_part("embedded digits: test", digits.test_images, digits.test_labels), kMaxDigitsPixel,
                    loading);
  }
  if (is_synthetic(source)) return make_synthetic(source, hooks);
  const fs::path folder = source == "fashion-mnist" ? kFashionMnistFolder : source;
  std::error_code unreadable;
  const fs::file_status status = fs::status(folder, unreadable);
  const bool missing = status.type() == fs::file_type::not_found;
  if (missing && source == "fashion-mnist") {
    throw Error(fmt::format("{}: no such folder; run: apt install dataset-fashion-mnist", folder.string()),
                ErrorCode::kNotFound);
  }
  if (missing && (source == "mnist" || source == "MNIST")) {
    throw Error(
        fmt::format("data source '{}' is not included; put its four files into a folder, and give that folder: {}",
                    source, get_mnist()));
  }
  if (missing) {
    throw Error(fmt::format("data source '{}': no such folder; give digits, fashion-mnist or a folder with the four "
                            "files of MNIST, or synthetic:FEATURESxCLASSES; {} gets MNIST",
                            source, get_mnist()),
                ErrorCode::kNotFound);
  }
  if (unreadable)
    throw Error(fmt::format("{}: cannot open: {}", folder.string(), unreadable.message()),
                config::code_of(unreadable.value()));
  if (!fs::is_directory(status)) {
    const bool is_csv = folder.extension() == ".csv";
    throw Error(fmt::format(
        "{}: {}; give the folder that holds the four files of MNIST", folder.string(),
        is_csv ? "CSV is not supported; convert it to IDX, or to LIBSVM text for a sparse `model`"
               : "not a folder; files of LIBSVM text or ratings are for the sparse models: `model` logistic, svm, fm or mf"));
  }
  const std::array<std::string, 4> files = find_files(folder);
  Part train = read_part(files[0], files[1], loading);
  return to_split(source, std::move(train), read_part(files[2], files[3], loading), kMaxPixel, loading);
}

Dataset shard_by_label(const Dataset& data, std::uint32_t rank, std::uint32_t workers) {
  const std::size_t shards = std::min<std::size_t>(workers, data.classes);
  Dataset shard{.images = {}, .labels = {}, .count = 0, .features = data.features, .classes = data.classes};
  for (std::size_t i = 0; i < data.count; ++i) {
    if (data.labels[i] % shards != rank % shards) continue;
    const float* const image = data.images.data() + i * data.features;
    shard.images.insert(shard.images.end(), image, image + data.features);
    shard.labels.push_back(data.labels[i]);
    ++shard.count;
  }
  if (shard.count == 0) throw Error(fmt::format("`shard-data`: no training example has a label of worker {}", rank));
  return shard;
}

Batch slice(const Dataset& data, std::size_t first, std::size_t count) {
  return {count, std::span(data.images).subspan(first * data.features, count * data.features),
          std::span(data.labels).subspan(first, count)};
}

}  // namespace ps_shm::train
