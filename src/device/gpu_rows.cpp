#include "device/gpu_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "device/polling.hpp"
#include "device/probe.hpp"

namespace ps_shm {
namespace {

const shm::Rows& rows_of(const Variable& variable, const auto& state) {
  if (!state.rows)
    throw Error(fmt::format("rows of variable '{}' on a GPU: it is {}; declare it with layout inplace and a first axis",
                            variable.name(), variable.layout() == Layout::kInplace ? "a scalar" : "versioned"));
  return state.rows->table();
}

}  // namespace

GpuRows::Impl::Impl(Worker& given_worker, const Variable& given, const GpuRowsOptions& given_options,
                    device::CudaCalls& given_cuda, device::TransferKernels& given_kernels)
    : RowCarrier(given_worker, given_options, given_cuda, given_kernels, rows_of(given, state_of(given)).row_elements(),
                 rows_of(given, state_of(given)).rows(), fmt::format("variable '{}'", given.name())),
      variable(given),
      table(rows_of(given, state_of(given))),
      settings(state_of(given).settings) {
  const device::GpuInfo gpu = open();
  pulled_ = std::make_unique<device::OwnEvent>(cuda);
  outside_ = device::PinnedMemory<shm::AtomicShm<std::uint64_t>>(cuda, 1);
  outside_.on_host()->store_relaxed(0);
  push = std::make_unique<device::RowPush>(*this);

  device::StrategyInput input;                                   // of one kernel's pull
  input.has_additive_inplace = state_of(given).adds_in_place();  // a GpuLink of the variable may want to write
  device::Strategy strategy = device::choose_strategy(gpu, input);
  std::string why;
  if (table.is_bfloat16()) {
    why = "its rows are bfloat16, which the GPU's kernel does not read";
    warn(why);
  } else if (strategy.pull != device::PullPath::kThroughHost) {
    device::RegistrationTotals registered;
    std::set<std::uint32_t> used;
    for (const VariablePart& part : state_of(given).parts) used.insert(part.record.shard);
    is_registered = shards->try_register(
        used, strategy.read_only, shards.use_count() > 1, registered, why,
        [&](const std::string& line) { worker.log(fmt::format("worker {}: {}", worker.rank(), line)); });
    totals.registered_bytes = registered.bytes;
    if (!is_registered) warn(why);
    device::note_refusal(registered.read_only_refusal, strategy);
  }
  totals.reasons = device::reasons_for_rows(strategy, is_registered ? "" : why);
  totals.threads = worker.threads().count();
  strategy.native_adds = false;  // rows are summed up and pushed by the CPU
  if (!is_registered) strategy.pull = device::PullPath::kThroughHost;
  if (!worker.has_link())
    shm::note_gpu(worker.job().worker(worker.rank()), device::note_of(gpu, strategy, shards->registered_bytes()));
  totals.strategy =
      is_registered ? "pulls rows by a kernel, pushes staged" : "pulls rows through host memory, pushes staged";
  if (is_registered) make_table();
}

GpuRows::Impl::~Impl() { settle(); }

void GpuRows::Impl::make_table() {
  std::vector<std::uint64_t> regions;
  std::vector<std::size_t> first_regions;
  std::vector<kernels::RowPart> parts;
  for (std::size_t k = 0; k < table.parts().size(); ++k) {
    const std::uint32_t shard = state_of(variable).parts[k].record.shard;
    const auto& of_shard = shards->of(shard).regions();
    first_regions.push_back(regions.size());
    regions.insert(regions.end(), of_shard.begin(), of_shard.end());
    parts.push_back({.regions = nullptr,
                     .offset = static_cast<std::uint64_t>(table.parts()[k].first - shards->base(shard)),
                     .first_row = table.parts()[k].begin});
  }
  regions_ = device::DeviceMemory<std::uint64_t>(cuda, regions.size());
  parts_ = device::DeviceMemory<kernels::RowPart>(cuda, parts.size());
  for (std::size_t k = 0; k < parts.size(); ++k) parts[k].regions = regions_.on_device() + first_regions[k];
  const auto upload = [&](void* to, const void* from, std::size_t bytes) {
    check(cuda.copy(to, from, bytes, stream->get()), "copy to its memory");
  };
  upload(regions_.on_device(), regions.data(), regions_.bytes());
  upload(parts_.on_device(), parts.data(), parts_.bytes());
  device::wait_until_done(watch, stream->get(), "copy to its memory");
  table_ = {.parts = parts_.on_device(),
            .part_count = static_cast<std::uint32_t>(parts.size()),
            .is_dealt = table.is_hashed() ? 1U : 0U,
            .region_bits = device::kRegionBits,
            .elements = static_cast<std::uint32_t>(table.row_elements()),
            .record_floats = static_cast<std::uint32_t>(table.record()),
            .value = settings.rule == UpdateRule::kFtrl ? kernels::RowValue::kFtrl : kernels::RowValue::kFirst,
            .row_floats = table.row_bytes() / sizeof(float),
            .rows = table.rows(),
            .l1 = settings.l1,
            .l2 = settings.l2,
            .beta = settings.ftrl_beta,
            .inverse_rate = 0.0F};
}

void GpuRows::Impl::start_pull(const kernels::RowIds& ids, std::span<float> out) {
  require_floats(ids.count, out.size(), "pull");
  begin();
  if (!is_pulling_) outside_.on_host()->store_relaxed(0);  // relaxed (gpu.G1): the launch orders it
  is_pulling_ = true;
  worker.note_pull();
  if (is_registered) {
    table_.inverse_rate = 1.0F / (worker.live().lr * settings.lr_scale);  // as in the CPU's pull of rows
    check(kernels.pull_rows(table_, ids, out.data(), reinterpret_cast<std::uint64_t*>(outside_.on_device()),
                            stream->get()),
          "pull rows");
    worker.count_pulls(1);
  } else {
    pull_through_host(ids, out);
  }
  check(cuda.record(pulled_->get(), stream->get()), "record an event");
  ++totals.pulls;
  totals.pulled_rows += ids.count;
}

void GpuRows::Impl::pull_through_host(const kernels::RowIds& ids, std::span<float> out) {
  if (ids.count == 0) return;
  const std::size_t bytes = ids.count * (ids.is_wide != 0 ? sizeof(std::uint64_t) : sizeof(std::uint32_t));
  if (host_ids_.count() < bytes) host_ids_ = device::PinnedMemory<std::byte>(cuda, bytes);
  if (host_rows_.count() < out.size()) host_rows_ = device::PinnedMemory<float>(cuda, out.size());
  check(cuda.copy(host_ids_.on_host(), ids.values, bytes, stream->get()), "copy row numbers");
  device::wait_until_done(watch, stream->get(), "copy row numbers");
  const auto pull = [&](auto some) {
    const auto outside = std::find_if(some.begin(), some.end(), [&](auto id) { return id >= rows; });
    if (outside != some.end()) return outside_.on_host()->store_relaxed(*outside);  // finish_pull reports it
    handle.pull_rows(variable, some, host_rows_.host().first(out.size()));
    check(cuda.copy(out.data(), host_rows_.on_host(), out.size_bytes(), stream->get()), "copy rows");
    device::wait_until_done(watch, stream->get(), "copy rows");  // the buffer may be filled again
  };
  if (ids.is_wide != 0)
    pull(std::span(reinterpret_cast<const std::uint64_t*>(host_ids_.on_host()), ids.count));
  else
    pull(std::span(reinterpret_cast<const std::uint32_t*>(host_ids_.on_host()), ids.count));
}

void GpuRows::Impl::finish_pull() {
  if (!is_pulling_) return;
  begin();
  const auto status = [&] { return cuda.query(pulled_->get()); };
  device::wait_for_device(
      watch, "pull rows", [&] { return fmt::format("pull of rows of {}", owner); }, status,
      [&] { return status() == device::kSuccess; });
  is_pulling_ = false;  // stays true after a failure of the GPU
  require_inside(*outside_.on_host(), "pull");
}

using device::row_ids;

GpuRows::GpuRows(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
GpuRows::GpuRows(Worker& worker, const Variable& variable, const GpuRowsOptions& options)
    : impl_(std::make_unique<Impl>(worker, variable, options, device::cuda_calls(), device::transfer_kernels())) {}
GpuRows::~GpuRows() = default;

void* GpuRows::stream() const noexcept { return impl_->stream->get(); }
void GpuRows::start_pull(std::span<const std::uint32_t> ids, std::span<float> out) {
  impl_->start_pull(row_ids(ids), out);
}
void GpuRows::start_pull(std::span<const std::uint64_t> ids, std::span<float> out) {
  impl_->start_pull(row_ids(ids), out);
}
void GpuRows::finish_pull() { impl_->finish_pull(); }
void GpuRows::start_push(std::span<const std::uint32_t> ids, std::span<const float> gradients) {
  impl_->push->start(row_ids(ids), gradients);
}
void GpuRows::start_push(std::span<const std::uint64_t> ids, std::span<const float> gradients) {
  impl_->push->start(row_ids(ids), gradients);
}
void GpuRows::finish_push() { impl_->push->finish(); }
const GpuRowTransfers& GpuRows::transfers() const noexcept { return impl_->totals; }

}  // namespace ps_shm
