// A private publication of a test, whose bytes show whether a generation is complete.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/segment/names.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

// A name whose segment is unlinked at the end, whichever process created it.
class PublicationName {
 public:
  PublicationName() : name_(unique_job_name()) {}
  ~PublicationName() { shm::unlink_segment(file()); }
  PublicationName(const PublicationName&) = delete;
  PublicationName& operator=(const PublicationName&) = delete;

  const std::string& text() const noexcept { return name_; }
  std::string file() const { return shm::bundle_name(name_); }
  bool exists() const { return !shm::list_segments(file()).empty(); }

 private:
  std::string name_;
};

// Tensors "t0", "t1" and so on, each with this many int64.
inline BundleSpec bundle_of(const PublicationName& name, std::uint32_t tensors = 3, std::uint64_t elements = 16) {
  BundleSpec spec{.name = name.text(), .tensors = {}, .subscribers = 4, .records = 0};
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor)
    spec.tensors.push_back({.name = fmt::format("t{}", tensor), .dtype = DType::kInt64, .shape = {elements + tensor}});
  return spec;
}

inline SubscriberOptions hasty(double seconds = 0.05) { return {.group = {}, .wait = Seconds(seconds)}; }

// Tensor t changes in every 2^t-th generation. Returns the generation for which the tensor of a given generation was
// written.
inline std::uint64_t written_for(std::uint64_t generation, std::uint32_t tensor) {
  const std::uint64_t last = generation >> tensor << tensor;
  return last == 0 ? 1 : last;
}
inline std::vector<std::uint32_t> changed_in(std::uint64_t generation, std::uint32_t tensors) {
  std::vector<std::uint32_t> changed;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor)
    if (written_for(generation, tensor) == generation) changed.push_back(tensor);
  return changed;
}

// All words of a tensor hold the generation they were written for, and the number of the tensor.
inline std::uint64_t word_of(std::uint64_t generation, std::uint32_t tensor) { return generation << 16 | tensor; }
inline void fill_words(std::span<std::byte> out, std::uint64_t word) {
  for (std::size_t at = 0; at + 8 <= out.size(); at += 8) std::memcpy(out.data() + at, &word, 8);
}
inline bool are_all(std::span<const std::byte> bytes, std::uint64_t word) {
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8)
    if (std::memcmp(bytes.data() + at, &word, 8) != 0) return false;
  return true;
}

// Publishes the next generation by the rule above. Empty: busy.
inline std::optional<std::uint64_t> publish_next(Publisher& publisher) {
  const std::uint64_t next = publisher.generation() + 1;
  return publisher.publish(
      changed_in(next, std::uint32_t(publisher.spec().tensors.size())),
      [next](std::uint32_t tensor, std::span<std::byte> out) { fill_words(out, word_of(next, tensor)); }, 10 * next);
}

// The same by Publisher::begin(): the last tensor first, each in two parts, after a generation that is given up.
inline std::optional<std::uint64_t> publish_next_in_parts(Publisher& publisher) {
  const std::uint64_t next = publisher.generation() + 1;
  if (std::optional<Publisher::Writing> given_up = publisher.begin()) fill_words(given_up->out(0), 0);
  std::optional<Publisher::Writing> writing = publisher.begin();
  if (!writing) return std::nullopt;
  std::vector<std::uint32_t> changed = changed_in(next, std::uint32_t(publisher.spec().tensors.size()));
  std::vector<std::byte> bytes;
  for (auto tensor = changed.rbegin(); tensor != changed.rend(); ++tensor) {
    bytes.resize(publisher.spec().tensors[*tensor].byte_count());
    fill_words(bytes, word_of(next, *tensor));
    writing->write(*tensor, std::span(bytes).subspan(8), 8);
    writing->write(*tensor, std::span(bytes).first(8));
  }
  return writing->commit(10 * next);
}

// The row in which the generation's first tensor lies.
inline std::uint32_t row_of(const Subscriber& subscriber, const Generation& generation) {
  const std::span<const std::byte> memory = subscriber.memory();
  return std::uint32_t(std::size_t(generation.tensor(0).data() - memory.data()) /
                       (memory.size() / subscriber.spec().records));
}

// Whether each tensor is the one that belongs to that generation.
inline bool is_whole(const Generation& generation) {
  for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor)
    if (!are_all(generation.tensor(tensor), word_of(written_for(generation.number(), tensor), tensor))) return false;
  return generation.step() == 10 * generation.number();
}

}  // namespace ps_shm::test
