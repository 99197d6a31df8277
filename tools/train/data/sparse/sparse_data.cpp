#include "train/data/sparse/sparse_data.hpp"

#include <fmt/format.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/worker.hpp"
#include "train/data/sparse/generated.hpp"
#include "train/data/sparse/libsvm.hpp"
#include "train/data/sparse/ratings.hpp"
#include "train/data/sparse/sparse_cursor.hpp"
#include "train/data/sparse/sparse_file.hpp"
#include "train/data/sparse/sparse_forms.hpp"
#include "train/data/sparse/text_lines.hpp"

namespace ps_shm::train {
namespace {

constexpr std::uint64_t kMaxCounted = std::uint64_t{1} << 28;  // features: 1 GiB of counts

void check_options(const std::string& source, const SparseSourceOptions& options) {
  if (options.hash_bits > 32) throw Error("features can be hashed to at most 32 bits (`hash-bits` 1..32)");
  if (options.names_of == nullptr) return;
  const bool is_nameless = options.names_of->names().empty();
  if (is_nameless || is_generated(source))
    throw Error(
        fmt::format("{}: synthetic users and items have no names to match; hold out a fraction of {} with `test-share`",
                    is_nameless ? options.names_of->name() : source, options.names_of->name()));
}

// What a file is that no reader takes, by the beginning of its first line; nullptr: that is not known.
const char* seems_to_be(const std::string& line) {
  constexpr std::pair<std::string_view, const char*> kKnown[] = {
      {"<", "an HTML or XML page"},
      {"{", "JSON"},
      {"[", "JSON"},
      {"PK\x03\x04", "a ZIP archive; unpack it"},
      {"\xFF\xFE", "UTF-16; convert it to UTF-8"},
      {"\xFE\xFF", "UTF-16; convert it to UTF-8"},
      {"version https://git-lfs", "a pointer of Git LFS; fetch the file itself"}};
  for (const auto& [beginning, what] : kKnown)
    if (line.starts_with(beginning)) return what;
  const std::size_t quoted = line.find_first_not_of(' ', line.find('"', 1) + 1);
  const bool is_csv = line.starts_with('"') && quoted != 0 && quoted < line.size() &&
                      std::string_view(",;\t").find(line[quoted]) != std::string_view::npos;
  return is_csv ? "CSV with quotation marks; remove them" : nullptr;
}

// The beginning of the first line with content, which remains to be read. With `skips_comments`, a line with only a
// comment has none.
std::string first_line(TextLines& lines, bool skips_comments) {
  constexpr std::size_t kEnough = 1024;
  std::string_view line;
  while (lines.next(line)) {
    const std::size_t text = line.find_first_not_of(" \t");
    if (text == line.npos || (skips_comments && line[text] == '#')) continue;
    lines.unread();
    return std::string(line.substr(text, kEnough));
  }
  return {};
}

bool are_ratings(const std::string& first, const SparseSourceOptions& options) {
  using Format = SparseSourceOptions::Format;
  if (options.format != Format::kByContent) return options.format == Format::kRatings;
  if (options.otherwise == Format::kByContent || is_rating(first) || looks_like_libsvm(first))
    return looks_like_ratings(first);
  return options.otherwise == Format::kRatings;
}

void read_text(TextLines& lines, const SparseSourceOptions& options, SparseWriter& out) {
  const std::string first = first_line(lines, options.format == SparseSourceOptions::Format::kByContent);
  try {
    if (are_ratings(first, options))
      read_ratings(lines, options, out);
    else
      read_libsvm(lines, options, out);
  } catch (const Error& error) {
    const char* const what = error.code() == ErrorCode::kInvalidArgument ? seems_to_be(first) : nullptr;
    if (what == nullptr) throw;
    throw Error(fmt::format("{}; the file seems to be {}", error.what(), what));
  }
  if (out.info().examples == 0)
    throw Error(fmt::format("{}: it has no examples; expected LIBSVM text or ratings", lines.name()));
}

}  // namespace

struct SparseData::Impl {
  std::string name;
  std::shared_ptr<const void> memory;
  SparseInfo info;
  std::span<const std::uint32_t> words, name_words;
  std::once_flag are_counted;
  std::vector<std::uint32_t> occurrences;

  // `header` and the words are in `memory`.
  static SparseData of(std::string name, std::shared_ptr<const void> memory, const SparseHeader& header) {
    auto impl = std::make_unique<Impl>();
    impl->name = std::move(name);
    impl->memory = std::move(memory);
    impl->info = header.info;
    impl->words = words_behind(header);
    impl->name_words = name_words_behind(header);
    return SparseData(std::move(impl));
  }
  static SparseData of(std::string name, std::unique_ptr<SparseMapping> mapping) {
    const std::shared_ptr<const SparseMapping> kept = std::move(mapping);
    return of(std::move(name), kept, kept->header());
  }
};

SparseData::SparseData(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SparseData::SparseData(SparseData&&) noexcept = default;
SparseData& SparseData::operator=(SparseData&&) noexcept = default;
SparseData::~SparseData() = default;

SparseData SparseData::read(const std::string& source, const SparseSourceOptions& options) {
  check_options(source, options);
  if (is_generated(source))
    return Impl::of(source, make_unnamed_form(source, [&](SparseWriter& out) { generate(source, options, out); }));
  const auto make = [&](SparseWriter& out) {
    TextLines lines = TextLines::of_file(source);
    lines.watch([loading = Loading(options, source)](std::uint64_t bytes) mutable { loading.at_bytes(bytes); });
    read_text(lines, options, out);
  };
  return Impl::of(source,
                  options.cache.empty() ? make_unnamed_form(source, make) : open_cached_form(source, options, make));
}

SparseData SparseData::parse(std::string_view text, const std::string& name, const SparseSourceOptions& options) {
  check_options(name, options);
  return Impl::of(name, make_unnamed_form(name, [&](SparseWriter& out) {
                    TextLines lines = TextLines::of_memory(text, name);
                    read_text(lines, options, out);
                  }));
}

SparseData SparseData::share(Worker& worker, const std::string& source, const SparseSourceOptions& options) {
  const std::string content = fmt::format("{} (format {}, first index {}, hash bits {}, features {}, keyed {})", source,
                                      static_cast<int>(options.format), static_cast<int>(options.first_index),
                                      options.hash_bits, options.features, options.keyed);
  const SharedBytes shared = worker.shared_data(content, [&](const auto& room) {
    const SparseData data = read(source, options);
    const auto* const words = data.words().data();
    const std::span<std::byte> out =
        room(kSparseDataOffset + data.words().size_bytes() + data.impl_->name_words.size_bytes());
    Loading loading(options, source);
    copy_pages(words - kSparseDataOffset / 4, out, [&](std::uint64_t done) { loading.at(done, out.size()); });
  });
  const auto& header = *reinterpret_cast<const SparseHeader*>(shared.bytes.data());
  if (shared.bytes.size() < kSparseDataOffset || !is_sound(header, shared.bytes.size()))
    throw Error(fmt::format("{}: the data shared by the workers of job '{}' is damaged; start the job again", source,
                            worker.config().job),
                ErrorCode::kDamaged);
  return Impl::of(source, shared.memory, header);
}

const std::string& SparseData::name() const { return impl_->name; }
const SparseInfo& SparseData::info() const { return impl_->info; }
std::span<const std::uint32_t> SparseData::words() const { return impl_->words; }

std::vector<std::string_view> SparseData::names() const {
  std::vector<std::string_view> names;
  const std::span<const std::uint32_t> words = impl_->name_words;
  for (std::size_t at = 0; at < words.size(); at += name_record_words(words[at])) {
    if (name_record_words(words[at]) > words.size() - at)
      throw Error(
          fmt::format("{}: its cached binary form is damaged; remove it from the cache folder, or run again", name()),
          ErrorCode::kDamaged);
    names.emplace_back(reinterpret_cast<const char*>(&words[at] + 1), words[at]);
  }
  return names;
}

std::span<const std::uint32_t> SparseData::occurrences() const {
  if (impl_->info.features > kMaxCounted)
    throw Error(fmt::format("{}: {} features are too many to count their occurrences (at most 2^28); hash them "
                            "(`hash-bits` 28)",
                            impl_->name, impl_->info.features),
                ErrorCode::kExhausted);
  std::call_once(impl_->are_counted, [this] {
    std::vector<std::uint32_t> counts(impl_->info.features);
    for (SparseCursor cursor(*this); cursor.next();)
      for (const std::uint32_t id : cursor.example().ids) {
        if (id >= counts.size()) cursor.fail_damaged();
        ++counts[id];
      }
    impl_->occurrences = std::move(counts);
  });
  return impl_->occurrences;
}

}  // namespace ps_shm::train
