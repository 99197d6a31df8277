#include "shm/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "ps/errors.hpp"
#include "shm/futex.hpp"

namespace ps::shm {
namespace {

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr std::uint64_t kBlockBytes = 16384;  // in-place: what one counter of pushes stands for
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

// log2 of a buffer's bytes for a variable of `bytes` with its optimizer slots. Chunks of 16 to 64 KiB keep a chunk
// that is being pushed within the cache; small variables get at least eight, so that two writers seldom meet; big ones
// get larger chunks, so that words stay a small part. (The ranges are design choices; benches/ measures them.)
std::uint32_t choose_class(std::uint64_t bytes) {
  constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
  if (bytes <= 8 * 16 * kKiB) {
    const std::uint64_t eighth = std::bit_ceil(bytes / 8 + sizeof(BufferHeaderShm) + 1);
    return std::clamp(static_cast<std::uint32_t>(std::countr_zero(eighth)), 10U, 14U);
  }
  if (bytes <= 16 * kMiB) return 15;
  if (bytes <= 256 * kMiB) return 16;
  return kMaxClass;
}

[[noreturn]] void disagree(const VariableShm& record, const std::string& what, const std::string& theirs,
                           const std::string& yours) {
  throw Error(
      fmt::format("variable '{}' exists with {} {}, you ask for {}: give all programs of the job the same model "
                  "and options",
                  record.name, what, theirs, yours));
}

}  // namespace

std::string shape_to_string(const std::uint64_t* extents, std::uint32_t axes) {
  return fmt::format("[{}]", fmt::join(extents, extents + axes, ", "));
}

void check_spec(const VariableSpec& spec) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-";
  if (spec.name.empty() || spec.name.size() > 127 || spec.name.find_first_not_of(kAllowed) != std::string::npos)
    throw Error(fmt::format("'{}' cannot name a variable: use 1 to 127 of A-Z a-z 0-9 _ . : / -", spec.name));
  if (spec.dtype != DType::kFloat32)
    throw Error(
        fmt::format("variable '{}': dtype {} cannot be stored yet, use float32", spec.name, to_string(spec.dtype)));
  if (spec.shape.size() > kMaxAxes)
    throw Error(
        fmt::format("variable '{}' has {} axes; at most {} are possible", spec.name, spec.shape.size(), kMaxAxes));
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : spec.shape) {
    if (extent == 0 || extent > kMaxElements || elements > kMaxElements / extent)
      throw Error(fmt::format("variable '{}' of shape {}: every extent must be at least 1, their product at most 2^40",
                              spec.name, shape_to_string(spec.shape.data(), std::uint32_t(spec.shape.size()))));
    elements *= extent;
  }
}

void check_agreement(const VariableShm& record, const VariableSpec& spec, Layout layout) {
  const std::string theirs = shape_to_string(record.extents, record.axes);
  const std::string yours = shape_to_string(spec.shape.data(), static_cast<std::uint32_t>(spec.shape.size()));
  if (theirs != yours) disagree(record, "shape", theirs, yours);
  if (record.dtype != static_cast<std::uint32_t>(spec.dtype))
    disagree(record, "dtype", to_string(static_cast<DType>(record.dtype)), to_string(spec.dtype));
  if (record.rule != static_cast<std::uint32_t>(spec.rule))
    disagree(record, "update rule", to_string(static_cast<UpdateRule>(record.rule)), to_string(spec.rule));
  if (record.layout != static_cast<std::uint32_t>(layout))
    disagree(record, "layout", to_string(static_cast<Layout>(record.layout)), to_string(layout));
  if (((record.flags & kRegularize) != 0) != spec.regularize)
    disagree(record, "l2", (record.flags & kRegularize) != 0 ? "on" : "off", spec.regularize ? "on" : "off");
}

std::uint32_t Directory::count() const noexcept {
  std::uint32_t position = 0;
  while (position < kMaxVariables && job_.index(position).load_acquire() != 0) ++position;
  return position;
}

VariableShm& Directory::at(std::uint32_t position) const noexcept {
  // The acquire pairs with declare's swap: the record is complete.
  return job_.record((job_.index(position).load_acquire() - 1) % kMaxVariables);
}

std::uint32_t Directory::find(const std::string& name) const noexcept {
  for (std::uint32_t position = 0; position < kMaxVariables && job_.index(position).load_acquire() != 0; ++position)
    if (name == at(position).name) return position;
  return kNoVariable;
}

std::vector<std::string> Directory::names() const {
  std::vector<std::string> all;
  for (std::uint32_t position = 0, end = count(); position < end; ++position) all.emplace_back(at(position).name);
  return all;
}

std::uint32_t Directory::claim_record(std::uint32_t byte) const {
  std::vector<bool> published(kMaxVariables);
  for (std::uint32_t position = 0, end = count(); position < end; ++position)
    published[job_.index(position).load_acquire() - 1] = true;
  for (std::uint32_t number = 0; number < kMaxVariables; ++number) {
    if (published[number]) continue;
    std::uint32_t claimed = job_.record(number).claim.load_acquire();
    if (claimed == byte + 1) return number;  // D4: a predecessor's or our own of a lost race
    if (claimed == 0 && job_.record(number).claim.try_exchange_acq_rel(claimed, byte + 1)) return number;
  }
  throw Error(
      fmt::format("the directory of job '{}' is full: {} variables are the most a job can have; join small ones",
                  job_.job(), kMaxVariables));
}

void Directory::place(VariableShm& record, std::uint32_t position) {
  std::uint64_t end = job_.shard_data_offset(), chunks = 0, gradients = kGradientsOffset, spares = 0;
  for (std::uint32_t before = 0; before < position; ++before) {  // D2
    const VariableShm& other = at(before);
    gradients = std::max(gradients, other.gradient_end);
    if (other.shard != record.shard) continue;
    end = std::max(end, other.shard_end);
    if (other.layout != static_cast<std::uint32_t>(Layout::kVersioned)) continue;
    chunks = std::max(chunks, other.first_chunk + other.pieces);
    if (other.buffer_class == record.buffer_class) spares = other.spares_offset;
  }
  record.gradient_offset = gradients;
  record.gradient_end = round_up(gradients + record.elements * sizeof(float), kCacheLine);
  record.words_offset = round_up(end, kCacheLine);
  end = record.words_offset + record.pieces * sizeof(PieceWordShm);
  if (record.layout == static_cast<std::uint32_t>(Layout::kInplace)) {
    record.data_offset = round_up(end, kPage);
    record.shard_end = record.data_offset + record.elements * sizeof(float);
    return;
  }
  const std::uint64_t buffer_bytes = std::uint64_t{1} << record.buffer_class;
  record.first_chunk = chunks;
  record.data_offset = round_up(end, buffer_bytes);  // a buffer's number is its offset divided by its size
  end = record.data_offset + record.pieces * buffer_bytes;
  record.spares_offset = spares != 0 ? spares : end;
  if (spares == 0) end += std::uint64_t{job_.ranks()} * kSparesPerClass * buffer_bytes;
  record.shard_end = end;
  if (end / buffer_bytes >= (1U << 24) || chunks + record.pieces >= (1U << 24) - 1)
    throw Error(fmt::format("variable '{}' does not fit its shard: 2^24 buffers of {} bytes are the most", record.name,
                            buffer_bytes));
}

std::uint32_t Directory::declare(const VariableSpec& spec, std::uint64_t slots, std::uint32_t byte) {
  check_spec(spec);
  const Layout layout = spec.layout.value_or(static_cast<Layout>(job_.config().layout));
  if (job_.config().mode == static_cast<std::uint32_t>(Mode::kSync) && layout == Layout::kInplace)
    throw Error(
        fmt::format("variable '{}' is in-place, and helping in sync mode is exact for versioned chunks only: use "
                    "layout versioned, or mode async",
                    spec.name));
  VariableShm* record = nullptr;
  for (std::uint32_t position = 0;; ++position) {
    if (position == kMaxVariables) claim_record(byte);  // throws: full
    std::uint32_t found = job_.index(position).load_acquire();
    if (found == 0) {
      if (record == nullptr) {
        record = &job_.record(claim_record(byte));
        record->dtype = static_cast<std::uint32_t>(spec.dtype);
        record->rule = static_cast<std::uint32_t>(spec.rule);
        record->layout = static_cast<std::uint32_t>(layout);
        record->flags = spec.regularize ? kRegularize : 0;
        record->axes = static_cast<std::uint32_t>(spec.shape.size());
        std::fill_n(record->extents, kMaxAxes, 0);
        std::copy(spec.shape.begin(), spec.shape.end(), record->extents);
        record->elements = spec.element_count();
        record->slots = slots;
        record->shard = 0;
        std::memset(record->name, 0, sizeof record->name);
        spec.name.copy(record->name, sizeof record->name - 1);
        record->init.store_relaxed(0);
        if (layout == Layout::kVersioned) {
          record->buffer_class = choose_class(record->elements * sizeof(float) * (1 + slots));
          const std::uint64_t payload = (std::uint64_t{1} << record->buffer_class) - sizeof(BufferHeaderShm);
          record->piece_elements = payload / (sizeof(float) * (1 + slots)) / 16 * 16;  // slot arrays stay 64-aligned
        } else {
          record->buffer_class = 0;
          record->piece_elements = kBlockBytes / sizeof(float);
        }
        record->pieces = (record->elements + record->piece_elements - 1) / record->piece_elements;
      }
      place(*record, position);
      job_.shard(record->shard).grow(record->shard_end);  // D3
      const auto number = static_cast<std::uint32_t>(record - &job_.record(0));
      if (job_.index(position).try_exchange_acq_rel(found, number + 1)) {  // D1; pairs with at()
        futex_announce(job_.state().activity);
        return position;
      }
    }
    const VariableShm& other = job_.record((found - 1) % kMaxVariables);
    if (spec.name == other.name) {  // our own record, if any, stays claimed for our next declaration (D4)
      check_agreement(other, spec, layout);
      return position;
    }
  }
}

}  // namespace ps::shm
