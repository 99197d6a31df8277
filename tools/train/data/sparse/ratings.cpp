#include "train/data/sparse/ratings.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/data/sparse/numbers.hpp"

namespace ps_shm::train {
namespace {

constexpr std::size_t kMaxFields = 4, kMinFields = 3, kMaxIdBytes = 64;
constexpr const char* kFieldNames[] = {"user", "item", "rating", "time"};
constexpr std::uint32_t kMaxNumbers = std::numeric_limits<std::uint32_t>::max() / 2;  // users + items fit an id

struct TransparentHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};
using Numbering = std::unordered_map<std::string, std::uint32_t, TransparentHash, std::equal_to<>>;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view separator_of(std::string_view line) {
  for (const std::string_view candidate : {"::", "\t", ","})
    if (line.find(candidate) != line.npos) return candidate;
  return " ";
}

struct Fields {
  std::array<std::string_view, kMaxFields + 1> text;  // the last one: the first excess field
  std::size_t count = 0;
};

// Requires: the line is trimmed.
Fields split(std::string_view line, std::string_view separator) {
  Fields fields;
  while (fields.count <= kMaxFields) {
    const std::size_t end = line.find(separator);
    fields.text[fields.count++] = trimmed(line.substr(0, end));
    if (end == line.npos) break;
    line.remove_prefix(end + separator.size());
    if (separator == " ")
      while (line.starts_with(' ')) line.remove_prefix(1);
  }
  return fields;
}

bool is_number(std::string_view text) {
  float value = 0.0F;
  return parse_float(text, value) != NumberFault::kNoNumber;
}

bool is_header(const Fields& fields, std::string_view separator) {
  return (separator == "," || separator == "\t") && fields.count >= kMinFields && fields.count <= kMaxFields &&
         std::none_of(fields.text.begin(), fields.text.begin() + std::ptrdiff_t(fields.count),
                      [](std::string_view field) { return field.empty() || is_number(field); });
}

class RatingsReader {
 public:
  RatingsReader(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out)
      : lines_(lines), out_(out), names_of_(options.names_of), takes_keys_(options.keyed) {
    if (names_of_ == nullptr) return;
    const std::vector<std::string_view> names = names_of_->names();
    for (std::uint32_t id = 0; id < names.size(); ++id)
      (id < names_of_->info().users ? users_ : items_).emplace(names[id], id);
  }

  void read_all() {
    bool is_first = true;
    while (lines_.next(line_)) {
      const std::string_view text = trimmed(line_);
      if (text.empty()) continue;
      check_bytes(text);
      if (is_first) separator_ = separator_of(text);
      const Fields fields = split(text, separator_);
      if (!is_first || !is_header(fields, separator_)) add(fields, text);
      is_first = false;
    }
    SparseInfo& info = out_.info();
    info.kind = SparseKind::kRatings;
    if (takes_keys_) return;
    info.users = users_.size();
    info.items = items_.size();
    info.features = info.users + info.items;
    if (names_of_ != nullptr)
      info.features += 2;
    else
      end_numbering();
  }

 private:
  // Items follow users, whose number is known now.
  void end_numbering() {
    const auto users = static_cast<std::uint32_t>(users_.size());
    out_.patch([users](std::span<std::uint32_t> ids) { ids[1] += users; }, [this] { lines_.look(); });
    constexpr std::size_t kBetweenLooks = 4096;
    std::size_t done = 0;
    const auto look = [&] {
      if (++done % kBetweenLooks == 0) lines_.look();
    };
    for (const Numbering* numbers : {&users_, &items_}) {
      std::vector<std::string_view> names(numbers->size());
      for (const auto& [name, number] : *numbers) names[number] = name, look();
      for (const std::string_view name : names) out_.add_name(name), look();
    }
  }

  // An empty view is at the end of the line.
  [[noreturn]] void fail(const char* at, const std::string& what) const {
    lines_.fail(static_cast<std::size_t>(at - line_.data()), what);
  }

  void check_bytes(std::string_view text) const {
    for (const char& letter : text)
      if ((static_cast<unsigned char>(letter) < 0x20 && letter != '\t') || letter == 0x7f)
        fail(&letter, fmt::format("control byte {:#04x}; expected text", static_cast<unsigned char>(letter)));
  }

  void add(const Fields& fields, std::string_view text) {
    if (fields.count < kMinFields)
      fail(text.data() + text.size(), fmt::format("the {} is missing; expected user, item, rating and optional time{}",
                                                  kFieldNames[fields.count], expected_separator()));
    if (fields.count > kMaxFields)
      fail(fields.text[kMaxFields].data(), "a fifth field; expected user, item, rating and optional time");
    const std::string_view user_name = checked_name(fields.text[0], "user"),
                           item_name = checked_name(fields.text[1], "item");
    const float rating = parse(fields.text[2], "rating");
    if (fields.count == kMaxFields) parse(fields.text[3], "time");
    constexpr float kOnes[] = {1.0F, 1.0F};
    if (takes_keys_) {
      const std::uint64_t keys[] = {rating_key(false, user_name), rating_key(true, item_name)};
      return out_.add(rating, keys, kOnes);
    }
    std::uint32_t user = number_of(users_, user_name, "user");
    std::uint32_t item = number_of(items_, item_name, "item");
    if (user > item && names_of_ != nullptr) std::swap(user, item);  // for an unknown user: ids must ascend
    const std::uint32_t ids[] = {user, item};
    out_.add(rating, ids, kOnes);
  }

  std::string expected_separator() const {
    return fmt::format(", with {} between them as in the first line", separator_ == " " ? "blanks"
                                                                      : separator_ == "\t"
                                                                          ? "tabs"
                                                                          : fmt::format("'{}'", separator_));
  }

  float parse(std::string_view text, const char* what) const {
    float value = 0.0F;
    if (text.empty()) fail(text.data(), fmt::format("the {} is empty", what));
    const NumberFault fault = parse_float(text, value);
    if (fault != NumberFault::kNone) fail(text.data(), fmt::format("{} {} {}", what, quoted(text), describe(fault)));
    return value;
  }

  std::string_view checked_name(std::string_view text, const char* what) const {
    if (text.empty()) fail(text.data(), fmt::format("the {} is empty", what));
    if (text.size() > kMaxIdBytes)
      fail(text.data(), fmt::format("{} {} is longer than {} bytes", what, quoted(text), kMaxIdBytes));
    return text;
  }

  std::uint32_t number_of(Numbering& numbers, std::string_view text, const char* what) const {
    if (const auto found = numbers.find(text); found != numbers.end()) return found->second;
    if (names_of_ != nullptr) return static_cast<std::uint32_t>(names_of_->info().features + (&numbers == &items_));
    if (numbers.size() == kMaxNumbers) fail(text.data(), fmt::format("more than 2^31 different {}s", what));
    return numbers.emplace(text, static_cast<std::uint32_t>(numbers.size())).first->second;
  }

  TextLines& lines_;
  SparseWriter& out_;
  const SparseData* names_of_;
  bool takes_keys_;
  std::string_view line_, separator_;
  Numbering users_, items_;
};

}  // namespace

bool looks_like_ratings(std::string_view line) {
  for (const std::string_view comment : {" #", "\t#"}) line = line.substr(0, line.find(comment));
  line = trimmed(line);
  const std::string_view separator = separator_of(line);
  if (separator == "::") return true;
  if (line.find(':') != line.npos) return false;
  const Fields fields = split(line, separator);
  return fields.count >= kMinFields && fields.count <= kMaxFields;
}

bool is_rating(std::string_view line) {
  line = trimmed(line);
  return looks_like_ratings(line) && is_number(split(line, separator_of(line)).text[2]);
}

std::uint64_t rating_key(bool is_item, std::string_view name) noexcept {
  return XXH3_64bits_withSeed(name.data(), name.size(), is_item ? 2 : 1);
}

void read_ratings(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out) {
  RatingsReader(lines, options, out).read_all();
}

}  // namespace ps_shm::train
