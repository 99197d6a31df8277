// Any bytes as sparse text: examples that keep what the readers promise, or an Error of one line.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ps_shm/errors.hpp"
#include "train/data/sparse/sparse_stream.hpp"

namespace ps_shm::fuzz {

inline void require(bool holds) {
  if (!holds) abort();
}

inline void check(const train::SparseData& data) {
  const train::SparseInfo& info = data.info();
  std::uint64_t examples = 0, nonzeros = 0;
  train::for_each_example(data, {}, [&](const train::SparseExample& example) {
    ++examples;
    nonzeros += example.ids.size();
    require(std::isfinite(example.label) && example.label >= info.label_min && example.label <= info.label_max);
    require(example.ids.size() == example.values.size());
    for (std::size_t i = 0; i < example.ids.size(); ++i) {
      require(i == 0 || example.ids[i - 1] < example.ids[i]);
      require(example.ids[i] < info.features && std::isfinite(example.values[i]));
    }
    if (info.kind != train::SparseKind::kRatings) return;
    require(example.ids.size() == 2 && example.ids[0] < info.users && example.ids[1] >= info.users);
  });
  require(examples == info.examples && examples != 0 && nonzeros == info.nonzeros);
  if (info.kind == train::SparseKind::kRatings) require(info.features == info.users + info.items);
}

// With its own names the text has the same ids again.
inline void check_names(std::string_view text, const train::SparseData& data, train::SparseSourceOptions options) {
  require(data.names().size() == data.info().features);
  options.names_of = &data;
  const train::SparseData again = train::SparseData::parse(text, "fuzz", options);
  require(std::ranges::equal(again.words(), data.words()));
}

inline void read_all_ways(std::string_view text, train::SparseSourceOptions::Format format) {
  using train::FirstIndex;
  for (const FirstIndex first_index : {FirstIndex::kByContent, FirstIndex::kOne})
    for (const std::uint32_t hash_bits : {0U, 5U}) {
      train::SparseSourceOptions options;
      options.format = format;
      options.first_index = first_index;
      options.hash_bits = hash_bits;
      try {
        const train::SparseData data = train::SparseData::parse(text, "fuzz", options);
        check(data);
        if (data.info().kind == train::SparseKind::kRatings) check_names(text, data, options);
      } catch (const Error& error) {
        require(std::string_view(error.what()).substr(0, 5) == "fuzz:" &&
                std::string_view(error.what()).find('\n') == std::string_view::npos);
      }
      if (format == train::SparseSourceOptions::Format::kRatings) return;  // the others are options of LIBSVM text
    }
}

}  // namespace ps_shm::fuzz
