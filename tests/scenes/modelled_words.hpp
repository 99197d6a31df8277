// The words that a model has, and the bytes with which every execution starts.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ps_shm::test {

struct ModelledWord {
  const void* place;
  std::size_t bytes;
  std::uint64_t first;
  std::uint32_t users = 0, writers = 0;  // fibers, as bits
  bool is_raced = false;                 // fibers race on it (races.hpp)
  bool is_contended() const noexcept { return writers != 0 && std::popcount(users) > 1; }
};

struct Region {
  std::byte* begin;
  std::size_t bytes;
  std::vector<std::byte> first;

  template <class T>
  static Region of(T* first, std::size_t count) {
    return {reinterpret_cast<std::byte*>(first), count * sizeof(T), {}};
  }
  bool has(const void* place) const noexcept { return place >= begin && place < begin + bytes; }
  void note() { first.assign(begin, begin + bytes); }
  void restore() const { std::memcpy(begin, first.data(), bytes); }
};

// Copies these regions from memory to `bytes`, and back.
inline void keep(const std::vector<Region>& regions, std::vector<std::byte>& bytes) {
  bytes.clear();
  for (const Region& region : regions) bytes.insert(bytes.end(), region.begin, region.begin + region.bytes);
}
inline void give(const std::vector<Region>& regions, const std::vector<std::byte>& bytes) {
  const std::byte* from = bytes.data();
  for (const Region& region : regions) std::memcpy(region.begin, from, region.bytes), from += region.bytes;
}

class ModelledWords {
 public:
  void add(Region region) { regions_.push_back(std::move(region)); }

  // Caches for addresses whether they are modelled.
  bool has(const void* place) const noexcept {
    Known& known = known_[reinterpret_cast<std::uintptr_t>(place) * 0x9e3779b97f4a7c15U >> 50];
    if (known.place != place)
      known = {place, std::any_of(regions_.begin(), regions_.end(), [&](const Region& one) { return one.has(place); })};
    return known.is_modelled;
  }

  // Makes the present contents of memory the initial bytes of every execution.
  void note() {
    for (Region& region : regions_) region.note();
    for (ModelledWord& word : words_) word.first = first_of(word.place, word.bytes);
  }
  void restore() const {
    for (const Region& region : regions_) region.restore();
  }

  // The number of the word; a new word gets the highest number.
  std::size_t number_of(const void* place, std::size_t bytes) {
    if (const auto other = aliases_.find(place); other != aliases_.end()) place = other->second;
    const auto [found, is_new] = numbers_.try_emplace(place, words_.size());
    if (is_new) {
      words_.push_back({place, bytes, first_of(place, bytes)});
      if (std::find(shared_.begin(), shared_.end(), place) != shared_.end())
        words_.back().users = words_.back().writers = ~std::uint32_t{0};
    }
    return found->second;
  }
  std::size_t size() const noexcept { return words_.size(); }
  ModelledWord& operator[](std::size_t number) { return words_[number]; }
  const ModelledWord& operator[](std::size_t number) const { return words_[number]; }

  // The word at `place`, in another mapping of the same memory.
  template <class T>
  void alias(T* other, T* place) {
    aliases_[other] = place;
    add(Region::of(other, 1));
  }
  // Makes a word contended whoever uses it.
  void share(const void* place) { shared_.push_back(place); }
  void name(const void* place, std::string name) { names_[place] = std::move(name); }
  std::string name_of(std::size_t number) const {
    const auto named = names_.find(words_[number].place);
    return named != names_.end() ? named->second : "word " + std::to_string(number);
  }

 private:
  std::uint64_t first_of(const void* place, std::size_t bytes) const {
    std::uint64_t first = 0;
    for (const Region& region : regions_)
      if (region.has(place))
        std::memcpy(&first, region.first.data() + (static_cast<const std::byte*>(place) - region.begin), bytes);
    return first;
  }

  struct Known {
    const void* place;
    bool is_modelled;
  };
  std::vector<Region> regions_;
  std::vector<const void*> shared_;
  std::unordered_map<const void*, const void*> aliases_;
  std::vector<ModelledWord> words_;
  mutable std::vector<Known> known_ = std::vector<Known>(1 << 14);
  std::unordered_map<const void*, std::size_t> numbers_;
  std::map<const void*, std::string> names_;
};

}  // namespace ps_shm::test
