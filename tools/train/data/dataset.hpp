// Labelled examples in memory, and their sources: the embedded digits, Fashion-MNIST, a folder of IDX files or
// synthetic.hpp.
//
// A loaded data set never changes, so any number of threads may read it. Invariants of the result of load_data:
//  1. count, features and classes are at least 1; images holds count x features values in 0..1, row by row.
//  2. labels holds count values below classes, which train and test share, as they share features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/data/loading.hpp"

namespace ps_shm::train {

inline constexpr std::size_t kMaxFeatures = std::size_t{1} << 24;  // of an example; with 500 hidden units: 34 GB
inline constexpr std::size_t kMaxClasses = 256;                    // a label is a byte

struct Dataset {
  std::vector<float> images;  // count x features
  std::vector<std::uint8_t> labels;
  std::size_t count = 0;
  std::size_t features = 0;
  std::size_t classes = 0;
};

struct DataSplit {
  std::string name;
  Dataset train;
  Dataset test;
};

// Some consecutive examples; a view, valid as long as the underlying data.
struct Batch {
  std::size_t count = 0;
  std::span<const float> images;  // count x features
  std::span<const std::uint8_t> labels;
};

// The four files of a data set as uncompressed IDX bytes, passed to load_data by programs that embed them.
struct EmbeddedData {
  std::span<const unsigned char> train_images;
  std::span<const unsigned char> train_labels;
  std::span<const unsigned char> test_images;
  std::span<const unsigned char> test_labels;
};

// Loads `digits` (the embedded bytes), `fashion-mnist` (Debian's package) or a folder with the four files of MNIST by
// their usual names, plain or .gz, each also in a folder of such a name, or makes `synthetic:...`. A folder with one of
// these names is given as ./digits.
// Throws ps_shm::Error with one line that names the file and says what to do; Interrupted.
DataSplit load_data(const std::string& source, const EmbeddedData& digits, const LoadHooks& hooks = {});

// The examples whose labels belong to worker `rank` of `workers`: label l belongs to rank l modulo the number of
// workers. If there are more workers than classes, several have the same label.
// Throws ps_shm::Error if there is no such example.
Dataset shard_by_label(const Dataset& data, std::uint32_t rank, std::uint32_t workers);

// A view of `count` examples from `first` on. Requires: first + count <= data.count.
Batch slice(const Dataset& data, std::size_t first, std::size_t count);

}  // namespace ps_shm::train
