// A publication that three writers write together, each its own slices.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "support/test_bundle.hpp"

namespace ps_shm::test {

inline constexpr double kHasty = 0.05;

// The numbers, in row-major order, of the elements that a slice has of its tensor.
inline std::vector<std::uint64_t> elements_of(const TensorSpec& tensor, const Slice& slice) {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t number = 0; number < tensor.element_count(); ++number) {
    bool is_inside = true;
    std::uint64_t rest = number;
    for (std::size_t axis = tensor.shape.size(); axis-- > 0; rest /= tensor.shape[axis]) {
      const std::uint64_t index = rest % tensor.shape[axis];
      is_inside = is_inside && index >= slice.begin[axis] && index < slice.begin[axis] + slice.extent[axis];
    }
    if (is_inside) numbers.push_back(number);
  }
  return numbers;
}

inline std::int64_t value_at(std::uint64_t step, std::uint32_t tensor, std::uint64_t element) {
  return std::int64_t(step * 1'000'000 + tensor * 1000 + element);
}

// Three writers: each has other columns of one tensor, two of them rows of another one, and one of them a scalar.
struct Sharded {
  PublicationName name;
  BundleSpec spec = {.name = name.text(),
                     .tensors = {{.name = "w", .dtype = DType::kInt64, .shape = {6, 5}},
                                 {.name = "b", .dtype = DType::kInt64, .shape = {7}},
                                 {.name = "s", .dtype = DType::kInt64}},
                     .subscribers = 2,
                     .records = 3,
                     .writers = 3};
  WritePlan plan = {
      {{0, {0, 0}, {6, 2}}, {1, {0}, {3}}}, {{0, {0, 2}, {6, 1}}}, {{1, {3}, {4}}, {0, {0, 3}, {6, 2}}, {2, {}, {}}}};

  Publisher writer(std::uint32_t number) const {
    return Publisher(spec, {.wait = Seconds(kHasty), .plan = plan, .writer = number});
  }
  // Writes the slices of the writer as of the step.
  Publisher::WriteSlice write(std::uint32_t writer, std::uint64_t step) const {
    return [this, writer, step](std::uint32_t number, Publisher::SliceOutput& out) {
      const Slice& slice = plan[writer][number];
      std::vector<std::int64_t> values;
      for (const std::uint64_t element : elements_of(spec.tensors[slice.tensor], slice))
        values.push_back(value_at(step, slice.tensor, element));
      out.write(std::as_bytes(std::span(values)));
    };
  }
  std::uint64_t publish(Publisher& publisher, std::uint32_t writer, std::uint64_t step, double seconds = 60) const {
    return publisher.publish_slices(write(writer, step), step, Seconds(seconds));
  }
};

inline bool is_of_step(const Generation& generation, std::uint64_t step) {
  for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor) {
    const std::span<const std::int64_t> values = generation.values<std::int64_t>(tensor);
    for (std::uint64_t element = 0; element < values.size(); ++element)
      if (values[element] != value_at(step, tensor, element)) return false;
  }
  return generation.step() == step;
}

// A call of publish_slices() in a thread of its own.
class Publishing {
 public:
  Publishing(Publisher& publisher, const Sharded& all, std::uint32_t writer, std::uint64_t step, double seconds = 60)
      : thread_([=, this, &publisher, &all] {
          try {
            number_ = publisher.publish_slices(
                [&](std::uint32_t number, Publisher::SliceOutput& out) {
                  ++writes_;
                  all.write(writer, step)(number, out);
                },
                step, Seconds(seconds));
          } catch (const Error& error) {
            message_ = error.what();
          }
        }) {}
  ~Publishing() { join(); }
  std::optional<std::uint64_t> number() { return join(), number_; }
  const std::string& message() { return join(), message_; }
  int writes() const { return writes_; }  // so far

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<int> writes_{0};
  std::optional<std::uint64_t> number_;
  std::string message_;
  std::thread thread_;  // the last one: it uses the others
};

}  // namespace ps_shm::test
