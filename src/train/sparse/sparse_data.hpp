// Sparse examples in binary form: one read-only mapping of a file, of an unnamed temporary file, or of a segment that
// the workers of a job share. However large the data is, reading it takes constant memory: it is streamed from text to
// the binary form, and used from there window by window (sparse_stream.hpp).
//
//   0        +--------------------+
//            | SparseInfo ...     |  header: magic, version, sizes, what it was made of
//            +--------------------+  then blocks of whole examples, in the order of the source:
//            | label              |  float
//            | n                  |  u32
//            | ids[n]             |  u32, ascending, each below `features`
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

namespace ps {
class Worker;
}

namespace ps::train {

// One example where it lies in the data.
struct SparseExample {
  float label = 0.0F;
  std::span<const std::uint32_t> ids;
  std::span<const float> values;  // as many
};

enum class SparseKind : std::uint32_t { kFeatures = 1, kRatings = 2 };

// Which index of LIBSVM text is id 0. By content: 0 where an index 0 occurs, else 1. With hashing, by content is 0.
enum class FirstIndex : std::uint32_t { kByContent, kZero, kOne };

struct SparseInfo {
  SparseKind kind = SparseKind::kFeatures;
  std::uint64_t examples = 0;
  std::uint64_t nonzeros = 0;          // of all examples together
  std::uint64_t features = 0;          // above all ids; ratings: users + items, and two more with names_of
  std::uint64_t users = 0, items = 0;  // ratings: how many different ones; they are numbered as they first appear
  double label_sum = 0.0;
  float label_min = 0.0F, label_max = 0.0F;
  std::uint32_t distinct_labels = 0;           // 3 stands for three and more
  FirstIndex first_index = FirstIndex::kZero;  // as it turned out; a test set is to be read with its training set's
};

struct SparseSourceOptions {
  enum class Format { kByContent, kLibsvm, kRatings };
  Format format = Format::kByContent;
  using FirstIndex = train::FirstIndex;
  FirstIndex first_index = FirstIndex::kByContent;
  std::uint32_t hash_bits =
      0;                       // LIBSVM: takes ids modulo 2^hash_bits (1 to 32), adding up values that meet; 0: as they
                               // are, below 2^32
  std::uint64_t features = 0;  // at least so many (a test set must have those of its training set); 0: as found
  // Ratings: users and items have the ids that they have in this data, and ids from its `features` on are of those that
  // it has not. Requires: it lives until the reading ends.
  const class SparseData* names_of = nullptr;
  std::string cache;  // folder for binary forms; empty: an unnamed temporary file in $TMPDIR or /tmp
  std::function<bool()> stop_requested;
  std::function<void(const std::string&)> notice;  // "reading a9a: 512 MiB", once every two seconds
};

class SparseData {
 public:
  // Reads `source`: a file of LIBSVM text or of ratings, plain or .gz; or made up:
  //   zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]]     binary labels of a planted linear model, features drawn by Zipf
  //   ratings:USERSxITEMSxRATINGS                     ratings of planted biases and factors
  // With a cache the binary form of a file is made once, by whoever comes first, and used as long as the file's size and
  // time of change and the options stay the same. With names_of all of them are ratings from text.
  // Throws ps::Error: one line that names file, line and column of the first malformed place; Interrupted.
  static SparseData read(const std::string& source, const SparseSourceOptions& options);

  // The same of text in memory, which is never gzip; `name` stands for the path in error messages.
  static SparseData parse(std::string_view text, const std::string& name, const SparseSourceOptions& options);

  // The same, but one of the job's workers reads it into a segment that all of them map; the others wait, and take over
  // if it dies. A job shares one source, read with the same options. Throws Error as well when /dev/shm is full.
  static SparseData share(Worker& worker, const std::string& source, const SparseSourceOptions& options);

  SparseData(SparseData&&) noexcept;
  SparseData& operator=(SparseData&&) noexcept;
  ~SparseData();

  const std::string& name() const;
  const SparseInfo& info() const;

  // The mapping behind the header: examples one after the other.
  std::span<const std::uint32_t> words() const;

  // For ratings from text: what each id is called, users and then items; valid as long as the data is. Else none.
  std::vector<std::string_view> names() const;

  // For each id: in how many examples it occurs. Counted when first asked for, in one pass.
  // Throws Error where there are more than 2^28 features.
  std::span<const std::uint32_t> occurrences() const;

 private:
  struct Impl;
  explicit SparseData(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps::train
