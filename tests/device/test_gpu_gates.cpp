// A stream that waits for a word, on the fake: what the stand-in lets wait for it, as a device may; that GpuRows and
// GpuTable refuse their calls then; and that they launch no kernel for the first time after they are made.
#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "shm/base/atomic.hpp"
#include "support/fake_gpu.hpp"
#include "support/gpu_rows_cases.hpp"
#include "support/gpu_table_cases.hpp"

using namespace ps_shm;
using test::FakeCuda;
using test::FakeGpu;
using test::Floats;
using test::ids_of;
using test::Keys;
using test::RowsJob;
using test::RowsOnGpu;
using test::TableJob;
using test::TableOnGpu;

namespace {

// A link beside the rows, of a variable that is pulled by a kernel.
class Link {
 public:
  Link(FakeGpu& fake, Worker& worker) : parameters_(fake.cuda, 1000), gradients_(fake.cuda, 1000) {
    const VariableSpec spec{.name = "dense", .shape = {1000}, .layout = Layout::kVersioned};
    const Variable variable =
        worker.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 6.0F); });
    float* const to = parameters_.on_device();
    const float* const from = gradients_.on_device();
    GpuOptions options;
    options.stream_waits = true;
    link_ = device::make_gpu_link(worker, std::span(&variable, 1), std::span(&to, 1), std::span(&from, 1), options,
                                  fake.cuda, fake.kernels);
    REQUIRE(link_->can_wait());
  }
  void close() { link_->start_pull_when_opened(); }
  void open() {
    link_->open();
    CHECK_FALSE(link_->finish_pull());
  }

 private:
  device::DeviceMemory<float> parameters_, gradients_;
  std::unique_ptr<GpuLink> link_;
};

void check_refused(const std::function<void()>& call) {
  try {
    call();
    FAIL("it was not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidState);
    CHECK(std::string(error.what()).find("call open() first") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("gpu gates: memory and first launches wait for a stream that waits for a word, and give up after a while") {
  FakeCuda cuda;
  {
    const device::OwnStream waiting(cuda);
    const device::PinnedMemory<shm::AtomicShm<std::uint32_t>> word(cuda, 1);
    word.on_host()->store_relaxed(0);
    alignas(4096) static std::byte memory[8192];
    REQUIRE(cuda.host_register(memory, 4096, 0) == device::kSuccess);
    REQUIRE(cuda.wait_value(waiting.get(), word.on_device(), 1) == device::kSuccess);
    void* allocated = nullptr;
    void* pinned = nullptr;
    static const char kernel{};
    std::vector<std::future<void>> calls;
    const auto start = [&](const std::function<void()>& call) {
      calls.push_back(std::async(std::launch::async, call));
    };
    start([&] { static_cast<void>(cuda.allocate(256, allocated)); });
    start([&] { static_cast<void>(cuda.allocate_pinned(256, pinned)); });
    start([&] { static_cast<void>(cuda.host_register(memory + 4096, 4096, 0)); });
    start([&] { static_cast<void>(cuda.host_unregister(memory)); });
    start([&] { cuda.before_launch(&kernel); });
    for (std::future<void>& call : calls) call.get();
    word.on_host()->store_release(1);
    CHECK(cuda.faults().size() == calls.size());
    for (const std::string& fault : cuda.faults()) CHECK(fault.find("while a stream waits") != std::string::npos);
    CHECK(cuda.release(allocated) == device::kSuccess);
    CHECK(cuda.release_pinned(pinned) == device::kSuccess);
    CHECK(cuda.host_unregister(memory + 4096) == device::kSuccess);
    cuda.before_launch(&kernel);  // is known by now
    CHECK(cuda.faults().size() == calls.size());
  }
}

TEST_CASE("gpu gates: until open() each call of GpuRows is an error at once, and works afterwards") {
  FakeGpu fake;
  RowsJob job(test::table_config(UpdateRule::kAdd, 0), {100, 16});
  const Variable second = job.worker.variable({.name = "second", .shape = {40, 3}, .layout = Layout::kInplace},
                                              [](std::span<float> out) { std::fill(out.begin(), out.end(), 5.0F); });
  Link link(fake, job.worker);
  RowsOnGpu table(fake.box, job.worker, job.variable);
  const auto ids = table.put(std::vector<std::uint32_t>{3, 4});
  const auto values = table.put(Floats(32, 1.0F));
  const std::span<const std::uint32_t> both(ids.on_device(), 2);
  const std::span<float> floats(values.on_device(), 32);
  const auto before = job.pull(ids_of({3}));

  link.close();
  check_refused([&] { table.rows->start_pull(both, floats); });
  check_refused([&] { table.rows->pull(both, floats); });
  check_refused([&] { table.rows->start_push(both, floats); });
  check_refused([&] { table.rows->push(both, floats); });
  check_refused([&] { const RowsOnGpu another(fake.box, job.worker, second); });
  table.rows->finish_pull();  // none is in progress
  table.rows->finish_push();
  link.open();
  table.rows->push(both, floats);
  table.rows->start_push(both, floats);
  link.close();
  check_refused([&] { table.rows->finish_push(); });
  link.open();
  table.rows->finish_push();
  CHECK(job.pull(ids_of({3}))[0] == before[0] + 2);
  table.rows->start_pull(both, floats);
  link.close();
  check_refused([&] { table.rows->finish_pull(); });
  link.open();
  table.rows->finish_pull();
  CHECK(table.pull(ids_of({3})) == job.pull(ids_of({3})));
}

TEST_CASE("gpu gates: until open() each call of GpuTable is an error at once, and works afterwards") {
  FakeGpu fake;
  TableJob job(test::spec_of(1000, 3));
  TableSpec other = test::spec_of(1000, 3);
  other.name = "other";
  const Table second = job.worker.table(other);
  Link link(fake, job.worker);
  TableOnGpu on_gpu(fake.box, job.worker, job.table);
  const auto keys = on_gpu.put(Keys{3, 4});
  const auto values = on_gpu.put(Floats(6, 1.0F));
  const std::span<const std::uint64_t> both(keys.on_device(), 2);
  const std::span<float> floats(values.on_device(), 6);

  link.close();
  job.push(test::some_keys(300), 1.0F);  // grows, so that a pull would register memory
  check_refused([&] { on_gpu.rows->start_pull(both, floats); });
  check_refused([&] { on_gpu.rows->pull(both, floats); });
  check_refused([&] { on_gpu.rows->start_push(both, floats); });
  check_refused([&] { on_gpu.rows->push(both, floats); });
  check_refused([&] { const TableOnGpu another(fake.box, job.worker, second); });
  CHECK_FALSE(on_gpu.rows->finish_pull());  // none is in progress
  CHECK(on_gpu.rows->finish_push().updated == 0);
  link.open();
  on_gpu.rows->start_push(both, floats);
  link.close();
  check_refused([&] { on_gpu.rows->finish_push(); });
  link.open();
  CHECK(on_gpu.rows->finish_push().updated == 2);
  on_gpu.rows->start_pull(both, floats);
  link.close();
  check_refused([&] { static_cast<void>(on_gpu.rows->finish_pull()); });
  link.open();
  CHECK_FALSE(on_gpu.rows->finish_pull());
  CHECK(on_gpu.pull({3, 4}) == test::pulled_by(job.table, {3, 4}));
}

TEST_CASE(
    "gpu gates: pushes and pulls of rows launch no kernel that was not loaded when GpuRows or GpuTable was made") {
  for (const bool by_key : {false, true}) {
    FakeGpu fake;
    RowsJob of_rows(test::table_config(UpdateRule::kAdd, 0), {100, 4});
    TableJob of_keys(test::spec_of(1000, 4));
    std::optional<RowsOnGpu> rows;
    std::optional<TableOnGpu> table;
    by_key ? static_cast<void>(table.emplace(fake.box, of_keys.worker, of_keys.table))
           : static_cast<void>(rows.emplace(fake.box, of_rows.worker, of_rows.variable));
    const std::size_t launched = fake.cuda.count("first_launch");
    CHECK(launched > 0);  // CUB's, which load() does not know
    for (const std::size_t count : {1U, 300U, 20000U}) {
      const auto ids = test::some_ids(count, 100, 1);
      if (by_key) {
        table->push(test::widened(ids), Floats(4 * count, 1.0F));
        static_cast<void>(table->pull(test::widened(ids)));
      } else {
        rows->push(ids, Floats(4 * count, 1.0F));
        static_cast<void>(rows->pull(ids));
      }
    }
    CHECK(fake.cuda.count("first_launch") == launched);
  }
}
