/// @file
/// What a publication consists of: a bundle of named tensors, entries for subscribers, and records that hold
/// generations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

/// One tensor of a bundle. The library never reads the elements: a tensor is bytes, with what its readers need to know
/// of them.
struct TensorSpec {
  std::string name{};             ///< 1 to 127 characters of [A-Za-z0-9_.:/-], unique in the bundle
  DType dtype = DType::kFloat32;  ///< type of its elements
  /// Extents of at most 8 axes. Empty: a scalar. The product of those that are not 0 is at most 2^40. With a 0 among
  /// them the tensor has no elements and takes no memory; a generation always has it, whether it is written or not.
  std::vector<std::uint64_t> shape{};

  std::uint64_t element_count() const noexcept;  ///< product of the extents, 1 for a scalar
  std::uint64_t byte_count() const noexcept;     ///< element_count() times the size of an element

  bool operator==(const TensorSpec&) const = default;
};

/// A block of a tensor. A scalar is one block, without axes. A tensor without elements has none.
struct Slice {
  std::uint32_t tensor = 0;             ///< its number in the bundle
  std::vector<std::uint64_t> begin{};   ///< the block's first index along each axis
  std::vector<std::uint64_t> extent{};  ///< its number of elements along each axis, at least 1

  bool operator==(const Slice&) const = default;
};

/// Which slices each of several writers of a publication writes. Together they have each element of each tensor exactly
/// once.
using WritePlan = std::vector<std::vector<Slice>>;

/// A publication. It takes memory for one generation when it is created, and more as records are first used, up to
/// memory_bytes().
struct BundleSpec {
  std::string name{};                 ///< 1 to 64 characters of [A-Za-z0-9_-], the first one a letter or digit
  std::vector<TensorSpec> tensors{};  ///< 1 to 262144
  std::uint32_t subscribers = 16;     ///< most subscribers at one time, 1 to 256
  /// Number of generations that it can hold at one time, at least 2. With enough_records() publishing never finds all
  /// records in use. With 2, a generation is written only when no subscriber holds the one before the newest; use it
  /// with BusyPolicy::kWait. 0: as many records as fit into 256 MiB, at least 4, at most enough_records().
  std::uint32_t records = 0;
  /// Number of processes that write each generation together, at most 62, each its own slices (PublisherOptions::plan).
  /// 0: one Publisher writes all of it.
  std::uint32_t writers = 0;

  bool operator==(const BundleSpec&) const = default;
};

/// The number of records with which publishing always finds a free one: two for each of `subscribers`, one for the
/// newest generation, and one for the generation that is being written.
PS_SHM_API std::uint32_t enough_records(std::uint32_t subscribers) noexcept;

/// Checks the limits above.
///
/// @throws Error (kInvalidArgument), which names the limit that is exceeded.
PS_SHM_API void check(const BundleSpec& spec);

/// Checks that `name` can name a publication.
///
/// @throws Error (kInvalidArgument) otherwise.
PS_SHM_API void check_publication_name(const std::string& name);

/// Returns `spec` with the number of records that `records` = 0 stands for.
///
/// @throws Error as check().
PS_SHM_API BundleSpec resolved(BundleSpec spec);

/// The most bytes of /dev/shm that the publication takes, which it does once every record has been written, or with
/// PublisherOptions::populate.
///
/// @throws Error as check().
PS_SHM_API std::uint64_t memory_bytes(const BundleSpec& spec);

}  // namespace ps_shm
