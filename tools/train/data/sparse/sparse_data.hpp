// Sparse examples in binary form: one read-only mapping of a file, of an unnamed temporary file, or of a segment that
// the workers of a job share. Reading takes constant memory, however large the data is: it is streamed from text to
// the binary form, and used from there window by window (sparse_stream.hpp).
//
//   0        +--------------------+
//            | SparseInfo ...     |  header: magic, version, sizes, origin
//            +--------------------+  then blocks of complete examples, in the order of the source:
//            | label              |  float
//            | n                  |  u32
//            | ids[n]             |  u32, ascending, each below `features`; or u64 keys, ascending, and a word to fill
//            |                    |  up if n is odd, so that every record begins at an even word
//            | values[n]          |  float
//            +--------------------+  then, of ratings from text, the names of all ids, from 0 on:
//            | n                  |  u32
//            | bytes[n]           |  filled up to a word
//            +--------------------+
//
// In ratings every example has two ids, the user's and `users` + the item's, with the values 1 and 1, and the rating as
// its label. So a factorisation machine reads them as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/data/loading.hpp"

namespace ps_shm {
class Worker;
}

namespace ps_shm::train {

inline constexpr std::uint64_t kMaxIds = std::uint64_t{1} << 32;  // an id is a u32

// An example in place.
struct SparseExample {
  float label = 0.0F;
  std::span<const std::uint32_t> ids;
  std::span<const float> values;          // as many
  std::span<const std::uint64_t> keys{};  // of keyed data, instead of ids
};

enum class SparseKind : std::uint32_t { kFeatures = 1, kRatings = 2 };

// The index of LIBSVM text that becomes id 0. By content: 0 if an index 0 occurs, otherwise 1. With hashing: 0.
enum class FirstIndex : std::uint32_t { kByContent, kZero, kOne };

struct SparseInfo {
  SparseKind kind = SparseKind::kFeatures;
  std::uint32_t has_keys = 0;  // 1: keyed data, whose features, users and items are not counted
  std::uint64_t examples = 0;
  std::uint64_t nonzeros = 0;          // of all examples together
  std::uint64_t features = 0;          // above all ids; ratings: users + items, and two more with names_of
  std::uint64_t users = 0, items = 0;  // ratings: number of different ones, numbered in order of appearance
  double label_sum = 0.0;
  float label_min = 0.0F, label_max = 0.0F;
  std::uint32_t distinct_labels = 0;           // 3 stands for three or more
  FirstIndex first_index = FirstIndex::kZero;  // as determined; a test set must be read with that of its training set
};

struct SparseSourceOptions : LoadHooks {
  enum class Format { kByContent, kLibsvm, kRatings };
  Format format = Format::kByContent;
  Format otherwise = Format::kByContent;  // by content: the format of text whose first line is of neither for certain
  using FirstIndex = train::FirstIndex;
  FirstIndex first_index = FirstIndex::kByContent;
  std::uint32_t hash_bits =
      0;                       // LIBSVM: takes ids modulo 2^hash_bits (1 to 32), adding up values that meet; 0: as they
                               // are, below 2^32
  std::uint64_t features = 0;  // at least so many (a test set must have those of its training set); 0: as found
  // Takes features by 64-bit keys instead of ids: the indices of LIBSVM text as they are, in any order, those that repeat in
  // a line added up; of ratings the hashes of the names (rating_key()). Not with hash_bits or names_of.
  bool keyed = false;
  // Ratings: users and items get the ids that they have in this data; ids from its `features` on stand for those that
  // it does not contain. Requires: it outlives the reading.
  const class SparseData* names_of = nullptr;
  std::string cache;  // folder for cached binary forms; empty: an unnamed temporary file in $TMPDIR or /tmp
};

class SparseData {
 public:
  // Reads `source`: a file of LIBSVM text or of ratings, plain or .gz, .bz2, .xz or .zst; or synthetic data:
  //   zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]]     binary labels of a planted linear model, features drawn by Zipf
  //   ratings:USERSxITEMSxRATINGS                     ratings of planted biases and factors
  // With a cache, the binary form of a file is made once, by the first process that needs it, and used while the file's
  // size, times, inode, sampled content and options stay the same. With names_of, all sources are ratings from text.
  // Throws ps_shm::Error: one line with file, line and column of the first malformed place; Interrupted.
  static SparseData read(const std::string& source, const SparseSourceOptions& options);

  // The same for text in memory, which is never compressed; `name` stands for the path in error messages.
  static SparseData parse(std::string_view text, const std::string& name, const SparseSourceOptions& options);

  // The same, but one worker of the job reads it into a segment that all of them map; the others wait, and take over
  // if it dies. A job shares one source, read with the same options. Also throws Error if /dev/shm is full.
  static SparseData share(Worker& worker, const std::string& source, const SparseSourceOptions& options);

  SparseData(SparseData&&) noexcept;
  SparseData& operator=(SparseData&&) noexcept;
  ~SparseData();

  const std::string& name() const;
  const SparseInfo& info() const;

  // The mapping after the header: examples one after the other.
  std::span<const std::uint32_t> words() const;

  // For ratings from text: the name of each id, users and then items; valid as long as the data. Otherwise empty.
  std::vector<std::string_view> names() const;

  // For each id, the number of examples in which it occurs. Counted in one pass at the first call.
  // Throws Error if there are more than 2^28 features.
  std::span<const std::uint32_t> occurrences() const;

 private:
  struct Impl;
  explicit SparseData(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm::train
