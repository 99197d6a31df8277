#include "train/data/sparse/libsvm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "train/data/sparse/numbers.hpp"

namespace ps_shm::train {
namespace {

class LibsvmReader {
 public:
  LibsvmReader(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out)
      : lines_(lines),
        hash_bits_(options.hash_bits),
        wanted_base_(options.first_index),
        takes_keys_(options.keyed),
        out_(out) {
    const bool may_be_one = wanted_base_ == FirstIndex::kByContent && hash_bits_ == 0 && !takes_keys_;
    base_ = wanted_base_ == FirstIndex::kOne || may_be_one ? 1 : 0;
  }

  void read_all() {
    while (lines_.next(line_))
      if (parse_line()) add_example();
  }

  void describe(const SparseSourceOptions& options, SparseInfo& info) const {
    if (takes_keys_) return;
    const std::uint64_t found = hash_bits_ != 0      ? std::uint64_t{1} << hash_bits_
                                : end_index_ > base_ ? end_index_ - base_
                                                     : 0;
    info.features = std::max(found, options.features);
    info.first_index = base_ == 1 ? FirstIndex::kOne : FirstIndex::kZero;
  }

 private:
  [[noreturn]] void fail(const char* at, const std::string& what) const {
    lines_.fail(static_cast<std::size_t>(at - line_.data()), what);
  }

  // The rest of the token at `at`, for messages.
  std::string_view token(const char* at) const {
    const char* stop = at;
    while (stop != end_ && !is_blank(*stop)) ++stop;
    return {at, stop};
  }

  // Describes what is wrong with the characters from `begin` to `end`, or a control byte among them.
  [[noreturn]] void fail_on(const char* begin, const char* end, const std::string& what) const {
    for (const char* at = begin; at != end; ++at)
      if (static_cast<unsigned char>(*at) < 0x20 || *at == 0x7f)
        fail(at, fmt::format("control byte {:#04x}; expected text", static_cast<unsigned char>(*at)));
    fail(begin, what);
  }

  float number(const char* begin, const char* end, const char* what) const {
    float value = 0.0F;
    const NumberFault fault = parse_float({begin, end}, value);
    if (fault != NumberFault::kNone)
      fail_on(begin, end, fmt::format("{} {} {}", what, quoted({begin, end}), train::describe(fault)));
    return value;
  }

  // False: the line has no example.
  bool parse_line() {
    end_ = line_.data() + line_.size();
    if (const void* comment = std::memchr(line_.data(), '#', line_.size())) end_ = static_cast<const char*>(comment);
    const char* at = skip_blanks(line_.data());
    if (at == end_) return false;
    at = parse_label(at);
    indices_.clear();
    values_.clear();
    bool may_be_qid = true;
    while ((at = skip_blanks(at)) != end_) {
      at = may_be_qid && *at == 'q' ? parse_qid(at) : parse_feature(at);
      may_be_qid = false;
    }
    return true;
  }

  const char* skip_blanks(const char* at) const {
    while (at != end_ && is_blank(*at)) ++at;
    return at;
  }

  const char* parse_label(const char* at) {
    const std::string_view text = token(at);
    if (text.find(':') != text.npos && text.find(',') == text.npos)
      fail_on(at, at + text.size(), fmt::format("the label is missing: the line begins with {}", quoted(text)));
    if (text.find(',') != text.npos && line_.find(':') == line_.npos)
      fail_on(at, at + text.size(),
              "this looks like CSV; a line of LIBSVM text is `label index:value index:value ...`");
    label_ = number(at, at + text.size(), "label");
    return at + text.size();
  }

  const char* parse_qid(const char* at) const {
    const std::string_view text = token(at);
    std::uint64_t qid = 0;
    const char* const stop = at + text.size();
    if (!text.starts_with("qid:") || std::from_chars(at + 4, stop, qid).ptr != stop || text.size() == 4)
      fail_on(at, stop, fmt::format("{} is not a query id; expected qid:NUMBER", quoted(text)));
    return stop;
  }

  const char* parse_feature(const char* at) {
    std::uint64_t index = 0;
    const auto [colon, error] = std::from_chars(at, end_, index);
    if (error != std::errc{} || colon == end_ || *colon != ':') fail_index(at);
    check_index(at, index);
    const char* const value = skip_blanks(colon + 1);  // as svm-train does
    const char* stop = value;
    while (stop != end_ && !is_blank(*stop)) ++stop;
    if (value == colon + 1 && std::find(value, stop, ':') != stop)
      fail_on(at, stop,
              fmt::format("{} has two colons: that is a feature of libffm, field:index:value; remove the fields",
                          quoted({at, stop})));
    indices_.push_back(index);
    values_.push_back(number(value, stop, "value"));
    return stop;
  }

  // Requires: no index and colon begin at `at`.
  [[noreturn]] void fail_index(const char* at) const {
    const std::string_view text = token(at);
    const char* const stop = at + text.size();
    const std::size_t colon = text.find(':');
    if (colon == text.npos) fail_on(at, stop, fmt::format("{} has no colon; a feature is index:value", quoted(text)));
    const std::string_view index = text.substr(0, colon);
    const bool is_integer = !index.empty() && index.find_first_not_of("0123456789", index[0] == '-') == index.npos;
    if (!is_integer || index == "-") fail_on(at, stop, fmt::format("index {} is not a number", quoted(index)));
    if (index[0] == '-') fail(at, fmt::format("index {} is negative", quoted(index)));
    fail(at, fmt::format("index {} is too large, even for hashing: it has more than 64 bits", quoted(index)));
  }

  void check_index(const char* at, std::uint64_t index) const {
    if (index == 0 && wanted_base_ == FirstIndex::kOne)
      fail(at, "index 0 in a file whose indices begin with 1; read this file and its companions as 0-based");
    if (takes_keys_) return;
    if (index >= kMaxIds && hash_bits_ == 0)
      fail(at, fmt::format("index {} is 2^32 or more; hash the features (`hash-bits`)", index));
    if (indices_.empty() || index > indices_.back()) return;
    if (index == indices_.back())
      fail(at, fmt::format("index {} is repeated; an index may occur only once per line", index));
    fail(at, fmt::format("index {} comes after {}; indices must ascend", index, indices_.back()));
  }

  void add_example() {
    if (takes_keys_) return add_summed<std::uint64_t>(keys_, ~std::uint64_t{0});
    if (indices_.empty()) return out_.add(label_, std::span<const std::uint32_t>(), {});
    if (indices_.front() < base_) turn_zero_based();
    end_index_ = std::max(end_index_, indices_.back() + 1);
    ids_.resize(indices_.size());
    if (hash_bits_ == 0) {
      for (std::size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<std::uint32_t>(indices_[i] - base_);
      out_.add(label_, ids_, values_);
    } else {
      add_summed<std::uint32_t>(ids_, (std::uint64_t{1} << hash_bits_) - 1);
    }
  }

  // The first index 0: the preceding examples were written as 1-based.
  void turn_zero_based() {
    base_ = 0;
    out_.patch(
        [](std::span<std::uint32_t> ids) {
          for (std::uint32_t& id : ids) ++id;
        },
        [this] { lines_.look(); });
  }

  // Sorts the features, whose indices count by the bits of `mask`, and adds up the values of those that meet.
  template <class Id>
  void add_summed(std::vector<Id>& ids, std::uint64_t mask) {
    order_.resize(indices_.size());
    std::iota(order_.begin(), order_.end(), 0U);
    for (std::uint64_t& index : indices_) index = (index - base_) & mask;
    // Stable: colliding values are added in the order of the line, so that the sum's bits are always the same.
    std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) { return indices_[a] < indices_[b]; });
    ids.clear();
    sums_.clear();
    for (const std::uint32_t i : order_) {
      const auto id = static_cast<Id>(indices_[i]);
      if (!ids.empty() && ids.back() == id) {
        sums_.back() += values_[i];
      } else {
        ids.push_back(id);
        sums_.push_back(values_[i]);
      }
    }
    for (const float sum : sums_)
      if (!std::isfinite(sum)) fail(line_.data(), "the sum of values of one feature is too large for a 32-bit float");
    out_.add(label_, std::span<const Id>(ids), sums_);
  }

  TextLines& lines_;
  std::uint32_t hash_bits_;
  FirstIndex wanted_base_;
  bool takes_keys_;
  SparseWriter& out_;
  std::uint64_t base_, end_index_ = 0;
  std::string_view line_;
  const char* end_ = nullptr;  // end of the relevant part of the line
  float label_ = 0.0F;
  std::vector<std::uint64_t> indices_, keys_;
  std::vector<std::uint32_t> ids_, order_;
  std::vector<float> values_, sums_;
};

}  // namespace

bool looks_like_libsvm(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const std::size_t label = line.find_first_of(" \t"), colon = line.find(':');
  float ignored = 0.0F;
  return label < colon && colon != line.npos && parse_float(line.substr(0, label), ignored) != NumberFault::kNoNumber;
}

void read_libsvm(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out) {
  LibsvmReader reader(lines, options, out);
  reader.read_all();
  reader.describe(options, out.info());
}

}  // namespace ps_shm::train
