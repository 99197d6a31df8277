// The inner loop of training on sparse examples: pull the rows of an example, compute its gradient, push it; or those of
// a few examples at once. Access to the rows is provided by the caller:
//
//   Rows: using Id;  // std::uint32_t: a row's number; std::uint64_t: its key
//         void pull(std::span<const Id> ids, std::span<float> out);
//         void push(std::span<const Id> ids, std::span<const float> gradients);
//         void prefetch(std::span<const Id> ids);
//         static constexpr bool kSumsUp;  // whether push() accepts repeated ids, and sums their gradients first
//
// Allocates only if examples are longer than any before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/data/sparse/sparse_stream.hpp"
#include "train/log/train_log.hpp"
#include "train/loop/row_decay.hpp"
#include "train/models/sparse/row_set.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::train {

class ExampleSteps {
 public:
  // Requires: all outlive it; batch, combine > 0.
  ExampleSteps(SparseModel& model, SparseStream& examples, const RowDecay& decay, hooks::NanGuard& guard,
               std::size_t batch, std::size_t combine)
      : model_(model),
        stream_(examples),
        decay_(decay),
        guard_(guard),
        width_(model.table().shape[1]),
        batch_(batch),
        combine_(std::min(batch, combine)),
        next_(examples.next()) {}

  // Of the last push: those of one example, or of the combined examples.
  std::span<const float> last_gradients() const noexcept { return last_gradients_; }

  // One step: the batch's examples, each with the rows as they are then. Returns their mean loss. If `phases` is given,
  // adds to it the time of parts of the batch; measuring costs time itself.
  template <class Rows>
  double run(Rows& rows, PhaseSeconds* phases = nullptr) {
    if (phases != nullptr) timer_.begin();
    guard_.begin_step();
    double loss = 0.0;
    for (std::size_t done = 0; done < batch_; done += combine_)
      loss += next_examples(rows, std::min(combine_, batch_ - done), phases);
    return loss / double(batch_);
  }

 private:
  template <class Rows>
  double next_examples(Rows& rows, std::size_t examples, PhaseSeconds* phases) {
    if (combine_ == 1) return one_example(rows, phases);
    if constexpr (Rows::kSumsUp)
      return some_examples_at_once(rows, examples, phases);
    else
      return some_examples(rows, examples, phases);
  }

  template <class Rows>
  double one_example(Rows& rows, PhaseSeconds* phases) {
    const SparseExample example = next_;
    next_ = stream_.next();
    if constexpr (sizeof(typename Rows::Id) == sizeof(std::uint64_t))
      rows.prefetch(next_.keys);
    else
      rows.prefetch(next_.ids);
    const auto ids = touched<typename Rows::Id>(example);
    const std::size_t count = ids.size() * width_;
    const std::span values = room(rows_, count), gradients = room(gradients_, count);
    rows.pull(ids, values);
    end(phases, &PhaseSeconds::pull);
    const float loss = model_.gradient(example, values.data(), gradients.data());
    decay_.add_to(ids, width_, values.data(), gradients.data());
    end(phases, &PhaseSeconds::gradient);
    if (guard_.takes(double(loss))) rows.push(ids, gradients);
    last_gradients_ = gradients;
    end(phases, &PhaseSeconds::push);
    return double(loss);
  }

  // All from the same rows, with their gradients summed: as if so many single steps started from one point.
  template <class Rows>
  double some_examples(Rows& rows, std::size_t examples, PhaseSeconds* phases) {
    collect(examples);
    const std::span<const std::uint32_t> ids = set_.ids();
    const std::span values = room(rows_, ids.size() * width_), sums = room(gradients_, values.size());
    end(phases, &PhaseSeconds::gradient);
    rows.pull(ids, values);
    end(phases, &PhaseSeconds::pull);
    std::fill(sums.begin(), sums.end(), 0.0F);
    double loss = 0.0;
    const std::uint32_t* numbers = numbers_.data();
    for (const SparseExample& example : examples_) {
      loss += double(add_gradient(example, numbers, values.data(), sums.data()));
      numbers += model_.touched(example).size();
    }
    end(phases, &PhaseSeconds::gradient);
    if (guard_.takes(loss)) rows.push(ids, sums);
    last_gradients_ = sums;
    end(phases, &PhaseSeconds::push);
    return loss;
  }

  // The same bits, for rows that can all be pulled and pushed one after the other, repeated ones included.
  template <class Rows>
  double some_examples_at_once(Rows& rows, std::size_t examples, PhaseSeconds* phases) {
    using Id = typename Rows::Id;
    std::vector<Id>& all = all_ids<Id>();
    examples_.clear();
    all.clear();
    for (std::size_t i = 0; i < examples; ++i) {
      const std::span<const Id> ids = touched<Id>(examples_.emplace_back(next_));
      all.insert(all.end(), ids.begin(), ids.end());
      next_ = stream_.next();
    }
    const std::span<const Id> ids = all;
    const std::span values = room(rows_, ids.size() * width_), gradients = room(gradients_, values.size());
    end(phases, &PhaseSeconds::gradient);
    rows.pull(ids, values);
    end(phases, &PhaseSeconds::pull);
    double loss = 0.0;
    std::size_t at = 0;
    for (const SparseExample& example : examples_) {
      const std::size_t count = touched<Id>(example).size();
      loss += double(model_.gradient(example, values.data() + at * width_, gradients.data() + at * width_));
      decay_.add_to(ids.subspan(at, count), width_, values.data() + at * width_, gradients.data() + at * width_);
      at += count;
    }
    end(phases, &PhaseSeconds::gradient);
    if (guard_.takes(loss)) rows.push(ids, gradients);
    last_gradients_ = gradients;
    end(phases, &PhaseSeconds::push);
    return loss;
  }

  template <class Id>
  std::span<const Id> touched(const SparseExample& example) {
    if constexpr (sizeof(Id) == sizeof(std::uint64_t))
      return model_.touched_keys(example);
    else
      return model_.touched(example);
  }

  template <class Id>
  std::vector<Id>& all_ids() {
    if constexpr (sizeof(Id) == sizeof(std::uint64_t))
      return keys_;
    else
      return numbers_;
  }

  // The next examples, and for each row that they touch its number in the set.
  void collect(std::size_t examples) {
    examples_.clear();
    std::size_t most = 0;
    for (std::size_t i = 0; i < examples; ++i) {
      examples_.push_back(next_);
      most += model_.touched(next_).size();
      next_ = stream_.next();
    }
    set_.begin(most);
    numbers_.clear();
    for (const SparseExample& example : examples_)
      for (const std::uint32_t id : model_.touched(example)) numbers_.push_back(set_.number_of(id));
  }

  float add_gradient(const SparseExample& example, const std::uint32_t* numbers, const float* values, float* sums) {
    const std::span<const std::uint32_t> ids = model_.touched(example);
    const std::span own = room(own_rows_, ids.size() * width_), gradients = room(own_gradients_, own.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::copy_n(values + numbers[i] * width_, width_, own.data() + i * width_);
    const float loss = model_.gradient(example, own.data(), gradients.data());
    decay_.add_to(ids, width_, own.data(), gradients.data());
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t k = 0; k < width_; ++k) sums[numbers[i] * width_ + k] += gradients[i * width_ + k];
    return loss;
  }

  static std::span<float> room(std::vector<float>& memory, std::size_t count) {
    if (memory.size() < count) memory.resize(count);
    return {memory.data(), count};
  }

  void end(PhaseSeconds* phases, double PhaseSeconds::*phase) {
    if (phases != nullptr) timer_.end(phases->*phase);
  }

  SparseModel& model_;
  SparseStream& stream_;
  const RowDecay& decay_;
  hooks::NanGuard& guard_;
  std::size_t width_, batch_, combine_;
  SparseExample next_;
  PhaseTimer timer_;
  std::vector<float> rows_, gradients_;
  std::span<const float> last_gradients_;
  // For combined examples:
  RowSet set_;
  std::vector<SparseExample> examples_;
  std::vector<std::uint32_t> numbers_;  // or the ids of all
  std::vector<std::uint64_t> keys_;     // of all
  std::vector<float> own_rows_, own_gradients_;
};

}  // namespace ps_shm::train
