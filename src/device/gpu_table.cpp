#include "device/gpu_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/polling.hpp"
#include "device/probe.hpp"

namespace ps_shm {
namespace {

// Rows whose memory is not registered go through the CPU, and these are the newest, so the ones most used. Memory is
// registered anew when there is so much more of it, or an eighth more if that is less.
constexpr std::uint64_t kAheadBytes = std::uint64_t{64} << 20;

}  // namespace

GpuTable::Impl::Impl(Worker& given_worker, const Table& given, const GpuRowsOptions& given_options,
                     device::CudaCalls& given_cuda, device::TransferKernels& given_kernels)
    : RowCarrier(given_worker, given_options, given_cuda, given_kernels, given.row_size(), 0,
                 fmt::format("table '{}'", given.name())),
      table_(given),
      state_(worker.table(given.name())),
      parts_(state_.parts.size()) {
  gpu_ = open();
  pulled_ = std::make_unique<device::OwnEvent>(cuda);
  undecided_ = device::PinnedMemory<shm::AtomicShm<std::uint64_t>>(cuda, 1);
  push = std::make_unique<device::RowPush>(*this);

  strategy_ = device::choose_strategy(gpu_, {});
  for (Part& part : parts_) {
    part.buckets = std::make_unique<device::Registration>(cuda);
    part.rows = std::make_unique<device::Registration>(cuda);
  }
  const shm::TableShm& record = state_.parts.front()->record();
  const update::Settings& settings = state_.settings;
  on_device_ = {.parts = nullptr,
                .part_count = static_cast<std::uint32_t>(parts_.size()),
                .region_bits = device::kRegionBits,
                .elements = static_cast<std::uint32_t>(elements),
                .record_floats = 1 + record.slots,
                .value = settings.rule == UpdateRule::kFtrl ? kernels::RowValue::kFtrl : kernels::RowValue::kFirst,
                .initial_range = state_.spec.initial_range,
                .of_seed = shm::mixed(state_.spec.seed + 1),
                .first_multiplier = record.key_hash[0],
                .second_multiplier = record.key_hash[1],
                .row_bytes = record.row_bytes,
                .l1 = settings.l1,
                .l2 = settings.l2,
                .beta = settings.ftrl_beta,
                .inverse_rate = 0.0F};
  totals.threads = worker.threads().count();
  std::string why;
  if (state_.spec.touch_on_pull)
    why = "its pulls count as uses, which a GPU cannot note";
  else if (state_.spec.dtype != DType::kFloat32)
    why = fmt::format("its rows are {}, which the GPU's kernel does not read", to_string(state_.spec.dtype));
  if (!why.empty())
    go_through_host(why);
  else if (strategy_.pull == device::PullPath::kThroughHost)
    note_use(0);
  else
    is_registered_ = follow_growth();
}

GpuTable::Impl::~Impl() {
  settle();
  shards->count_table(totals.registered_bytes, 0);
}

void GpuTable::Impl::go_through_host(const std::string& why) {
  note_use(0, why);
  warn(why);
}

// What the inspector shows of a worker with a GpuLink is the link's.
void GpuTable::Impl::note_use(std::uint64_t registered_bytes, const std::string& why_not) {
  totals.strategy =
      registered_bytes != 0 ? "pulls rows by kernels, pushes staged" : "pulls rows through host memory, pushes staged";
  totals.reasons = device::reasons_for_rows(strategy_, why_not);
  shards->count_table(totals.registered_bytes, registered_bytes);
  totals.registered_bytes = registered_bytes;
  device::Strategy used = strategy_;
  used.native_adds = false;  // gradients are summed up and pushed by the CPU
  if (registered_bytes == 0) used.pull = device::PullPath::kThroughHost;
  if (!worker.has_link())
    shm::note_gpu(worker.job().worker(worker.rank()), device::note_of(gpu_, used, shards->registered_bytes()));
}

// Whether registering the part anew is worth its time.
bool GpuTable::Impl::has_grown(std::size_t number) const {
  const shm::TableShm& record = state_.parts[number]->record();
  const kernels::KeyPart& known = parts_[number].known;
  const std::uint64_t backed = record.rows_backed.load_acquire();  // (table.A1)
  const std::uint64_t more = backed - known.row_count;
  const bool is_last = more != 0 && backed == record.max_rows;
  return known.buckets == nullptr || record.bits.load_acquire() > known.bits || is_last ||  // (table.G4)
         more > std::min(known.row_count / 8, kAheadBytes / record.row_bytes);
}

// Registers what has grown. Returns false if that was refused, and says so.
bool GpuTable::Impl::follow_growth() {
  bool is_other = false;
  for (std::size_t number = 0; number < parts_.size(); ++number) {
    if (!has_grown(number)) continue;
    if (!is_other) wait_for_copies();  // no device work may use what is registered anew
    is_other = true;
    std::string why;
    if (try_register(number, why)) continue;
    for (Part& part : parts_) part.buckets->unregister(), part.rows->unregister();
    go_through_host(why);
    return false;
  }
  if (is_other) upload();
  return true;
}

// What is registered has memory: `bits` and `rows_backed` are raised behind its allocation.
bool GpuTable::Impl::try_register(std::size_t number, std::string& why) {
  shm::TablePart& table = *state_.parts[number];
  const shm::TableShm& record = table.record();
  Part& part = parts_[number];
  const std::uint32_t bits = record.bits.load_acquire();              // (table.G4)
  const std::uint64_t row_count = record.rows_backed.load_acquire();  // (table.A1)
  std::byte* const base = table.segment().data();
  device::RegistrationTotals totals_of_both;
  if (!part.buckets->try_register(base + record.buckets_offset, sizeof(std::uint64_t) << bits, strategy_.read_only,
                                  totals_of_both, why) ||
      !part.rows->try_register(base + record.rows_offset, row_count * record.row_bytes, strategy_.read_only,
                               totals_of_both, why))
    return false;
  device::note_refusal(totals_of_both.read_only_refusal, strategy_);
  part.known.bits = bits;
  part.known.row_count = row_count;
  return true;
}

void GpuTable::Impl::upload() {
  std::vector<std::uint64_t> regions;
  std::uint64_t registered_bytes = 0;
  for (const Part& part : parts_)
    for (const auto* const one : {part.buckets.get(), part.rows.get()}) {
      regions.insert(regions.end(), one->regions().begin(), one->regions().end());
      registered_bytes += one->bytes();
    }
  note_use(registered_bytes);
  regions_ = {};
  regions_ = device::DeviceMemory<std::uint64_t>(cuda, regions.size());
  if (known_.count() == 0) known_ = device::DeviceMemory<kernels::KeyPart>(cuda, parts_.size());
  std::vector<kernels::KeyPart> known;
  const std::uint64_t* next = regions_.on_device();
  for (Part& part : parts_) {
    part.known.buckets = next, next += part.buckets->regions().size();
    part.known.rows = next, next += part.rows->regions().size();
    known.push_back(part.known);
  }
  copy(regions_.on_device(), regions.data(), regions_.bytes());
  copy(known_.on_device(), known.data(), known_.bytes());
  wait_for_copies();
  on_device_.parts = known_.on_device();
}

void GpuTable::Impl::start_pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found) {
  if (is_pulling_)
    throw Error(fmt::format("a pull of rows of {} begins while the previous one is still in progress", owner),
                ErrorCode::kInvalidState);
  require_floats(keys.size(), out.size(), "pull");
  if (!found.empty() && found.size() != keys.size())
    throw Error(
        fmt::format("pull of {} rows of {} on a GPU: there is space for {} answers", keys.size(), owner, found.size()));
  begin();
  worker.note_pull();
  undecided_.on_host()->store_relaxed(0);  // relaxed (gpu.G1): the launch orders it
  if (is_registered_) is_registered_ = follow_growth();
  if (is_registered_) {
    reserve(places_, keys.size());
    // As in the CPU's pull.
    on_device_.inverse_rate = 1.0F / (worker.live().lr * state_.settings.lr_scale);
    check(
        kernels.pull_keys(on_device_, device::row_ids(keys), out.data(), found.empty() ? nullptr : found.data(),
                          places_.on_device(), reinterpret_cast<std::uint64_t*>(undecided_.on_device()), stream->get()),
        "pull rows by key");
    worker.count_pulls(1);
  } else {
    pull_through_host(keys, out, found);
  }
  check(cuda.record(pulled_->get(), stream->get()), "record an event");
  pull_ = {keys, out, found};
  is_pulling_ = true;
  ++totals.pulls;
  totals.pulled_rows += keys.size();
}

void GpuTable::Impl::pull_through_host(std::span<const std::uint64_t> keys, std::span<float> out,
                                       std::span<bool> found) {
  if (keys.empty()) return;
  std::vector<std::uint64_t> on_host(keys.size());
  std::vector<float> rows_there(out.size());
  const auto flags = std::make_unique<bool[]>(keys.size());
  copy(on_host.data(), keys.data(), keys.size_bytes());
  wait_for_copies();
  table_.pull(on_host, rows_there, {flags.get(), keys.size()});
  copy(out.data(), rows_there.data(), out.size_bytes());
  if (!found.empty()) copy(found.data(), flags.get(), found.size_bytes());
  wait_for_copies();
}

// Pulls these keys of the pull in progress, and puts their rows where they belong: all of them in one copy, from
// page-locked memory, and by one kernel.
void GpuTable::Impl::decide(std::span<const std::size_t> which) {
  const std::size_t count = which.size(), floats = count * elements;
  const std::size_t bytes = count * sizeof(std::uint64_t) + floats * sizeof(float) + count * sizeof(bool);
  reserve(decided_here_, bytes);
  reserve(decided_, bytes);
  auto* const places = reinterpret_cast<std::uint64_t*>(decided_here_.on_host());
  auto* const values = reinterpret_cast<float*>(places + count);
  auto* const found = reinterpret_cast<bool*>(values + floats);
  std::vector<std::uint64_t> keys;
  for (const std::size_t i : which) keys.push_back(keys_here_.on_host()[i]);
  std::copy(which.begin(), which.end(), places);
  table_.pull(keys, {values, floats}, {found, count});
  copy(decided_.on_device(), decided_here_.on_host(), bytes);
  const auto there = [&](const auto* here) {
    return reinterpret_cast<decltype(here)>(decided_.on_device() +
                                            (reinterpret_cast<const std::byte*>(here) - decided_here_.on_host()));
  };
  check(kernels.put_rows({.places = there(places),
                          .values = there(values),
                          .found = there(found),
                          .count = count,
                          .elements = static_cast<std::uint32_t>(elements),
                          .pad = 0},
                         pull_.out.data(), pull_.found.empty() ? nullptr : pull_.found.data(), stream->get()),
        "put rows in their places");
  wait_for_copies();
}

bool GpuTable::Impl::finish_pull() {
  if (!is_pulling_) return false;
  begin();
  const auto status = [&] { return cuda.query(pulled_->get()); };
  device::wait_for_device(
      watch, "pull rows by key", [&] { return fmt::format("pull of rows of {}", owner); }, status,
      [&] { return status() == device::kSuccess; });
  is_pulling_ = false;                                          // stays true after a failure of the GPU
  if (undecided_.on_host()->load_acquire() == 0) return false;  // (gpu.G3) after the stream's end
  const std::size_t count = pull_.keys.size();
  reserve(places_here_, count);
  reserve(keys_here_, count);
  copy(places_here_.on_host(), places_.on_device(), count * sizeof(kernels::KeyPlace));
  copy(keys_here_.on_host(), pull_.keys.data(), pull_.keys.size_bytes());
  wait_for_copies();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < count; ++i)
    if (places_here_.on_host()[i].row == kernels::kUndecidedRow) open.push_back(i);
  decide(open);
  totals.bounced_rows += open.size();
  return true;
}

void GpuTable::Impl::apply(std::span<const std::uint64_t> keys, std::span<const float> sums) {
  const PushedKeys now = table_.push(keys, sums);
  pushed.updated += now.updated;
  pushed.made += now.made;
  pushed.unadmitted += now.unadmitted;
  pushed.refused += now.refused;
}

GpuTable::GpuTable(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
GpuTable::GpuTable(Worker& worker, const Table& table, const GpuRowsOptions& options)
    : impl_(std::make_unique<Impl>(worker, table, options, device::cuda_calls(), device::transfer_kernels())) {}
GpuTable::~GpuTable() = default;

void* GpuTable::stream() const noexcept { return impl_->stream->get(); }
void GpuTable::start_pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found) {
  impl_->start_pull(keys, out, found);
}
bool GpuTable::finish_pull() { return impl_->finish_pull(); }
void GpuTable::start_push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  impl_->push->start(device::row_ids(keys), gradients);
  impl_->pushed = {};
}
PushedKeys GpuTable::finish_push() {
  impl_->push->finish();
  return std::exchange(impl_->pushed, {});
}
const GpuRowTransfers& GpuTable::transfers() const noexcept { return impl_->totals; }

}  // namespace ps_shm
