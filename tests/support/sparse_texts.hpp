// Sparse examples as plain values, and text files for tests of the readers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ps_shm/errors.hpp"
#include "support/folder.hpp"
#include "train/data/sparse/sparse_stream.hpp"

namespace ps_shm::test {

struct PlainExample {
  float label;
  std::vector<std::uint32_t> ids;
  std::vector<float> values;
  bool operator==(const PlainExample&) const = default;
};

inline PlainExample plain(const train::SparseExample& example) {
  return {example.label, {example.ids.begin(), example.ids.end()}, {example.values.begin(), example.values.end()}};
}

inline std::vector<PlainExample> examples_of(const train::SparseData& data) {
  std::vector<PlainExample> all;
  train::for_each_example(data, {}, [&](const train::SparseExample& example) { all.push_back(plain(example)); });
  return all;
}

inline train::SparseData parse(std::string_view text, const train::SparseSourceOptions& options = {}) {
  return train::SparseData::parse(text, "data", options);
}

// The message of the Error that reading fails with; empty: none.
template <class Read>
std::string error_of(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace ps_shm::test
