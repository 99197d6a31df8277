#include "ps_shm/bundle_spec.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_config.hpp"
#include "shm/publication/bundle.hpp"

namespace ps_shm {
namespace {

constexpr std::uint64_t kOfItself = 256ULL << 20;  // memory that `records` 0 takes: a few generations of most models
constexpr std::uint32_t kFewRecords = 4;           // two can be leased while the next one is written

void check_tensor(const TensorSpec& tensor) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-";
  if (tensor.name.empty() || tensor.name.size() > 127 || tensor.name.find_first_not_of(kAllowed) != std::string::npos)
    throw Error(fmt::format("'{}' cannot name a tensor: use 1 to 127 of A-Z a-z 0-9 _ . : / -", tensor.name));
  if (bytes_of(tensor.dtype) == 0)
    throw Error(fmt::format("tensor '{}' has dtype {}, which does not exist", tensor.name,
                            static_cast<std::uint32_t>(tensor.dtype)));
  if (tensor.shape.size() > shm::kMaxAxes)
    throw Error(fmt::format("tensor '{}' has {} axes; at most {} are possible", tensor.name, tensor.shape.size(),
                            shm::kMaxAxes));
  constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
  std::uint64_t product = 1;
  for (const std::uint64_t extent : tensor.shape) {
    if (extent > kMaxElements / product)
      throw Error(
          fmt::format("tensor '{}' of shape {}: the product of the extents (of those that are not 0) must be at "
                      "most 2^40",
                      tensor.name, fmt::join(tensor.shape, "x")));
    if (extent != 0) product *= extent;
  }
}

void require(bool good, const std::string& what) {
  if (!good) throw Error(what);
}

}  // namespace

std::uint64_t TensorSpec::element_count() const noexcept {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) elements *= extent;
  return elements;
}

std::uint64_t TensorSpec::byte_count() const noexcept { return element_count() * bytes_of(dtype); }

std::uint32_t enough_records(std::uint32_t subscribers) noexcept { return subscribers * shm::kLeases + 2; }

void check(const BundleSpec& spec) {
  check_publication_name(spec.name);
  require(!spec.tensors.empty() && spec.tensors.size() <= shm::kMaxTensors,
          fmt::format("publication '{}' has {} tensors; 1 to {} are possible", spec.name, spec.tensors.size(),
                      shm::kMaxTensors));
  require(spec.subscribers >= 1 && spec.subscribers <= shm::kMaxSubscribers,
          fmt::format("publication '{}' has {} places for subscribers; 1 to {} are possible (`subscribers`)", spec.name,
                      spec.subscribers, shm::kMaxSubscribers));
  require(spec.records == 0 || (spec.records >= shm::kMinRecords && spec.records <= shm::kMaxRecords),
          fmt::format("publication '{}' has {} records; {} to {} are possible, or 0 (`records`)", spec.name,
                      spec.records, shm::kMinRecords, shm::kMaxRecords));
  require(spec.writers <= shm::kMaxWriters,
          fmt::format("publication '{}' has {} writers; at most {} are possible (`writers`)", spec.name, spec.writers,
                      shm::kMaxWriters));
  for (const TensorSpec& tensor : spec.tensors) check_tensor(tensor);
  if (const auto twice = shm::TensorNames(spec.tensors).repeated(spec.tensors))
    throw Error(fmt::format("publication '{}' has two tensors '{}'", spec.name, spec.tensors[*twice].name));
}

void check_publication_name(const std::string& name) {
  try {
    check_job_name(name);  // the same characters
  } catch (const Error&) {
    throw Error(fmt::format(
        "'{}' cannot name a publication: use 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit", name));
  }
}

BundleSpec resolved(BundleSpec spec) {
  check(spec);
  if (spec.records != 0) return spec;
  const std::uint32_t enough = enough_records(spec.subscribers);
  spec.records =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kOfItself / shm::row_bytes(spec), kFewRecords, enough));
  return spec;
}

std::uint64_t memory_bytes(const BundleSpec& spec) { return shm::bundle_bytes(resolved(spec)); }

}  // namespace ps_shm
