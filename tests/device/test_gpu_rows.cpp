// GpuRows on the fake: the cases of gpu_rows_cases.hpp, what is shared and refused, and a failure of each CUDA call.
#include <doctest/doctest.h>

#include <optional>

#include "support/fake_cuda.hpp"
#include "support/gpu_rows_cases.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using test::FakeBox;
using test::FakeCuda;
using test::FakeKernels;
using test::GpuBox;
using test::ids_of;
using test::ids_of_all;
using test::RowsJob;
using test::RowsOnGpu;

namespace {

struct Fake {
  FakeCuda cuda;
  FakeKernels kernels{cuda};
  GpuBox box{cuda, kernels};

  explicit Fake(const FakeBox& kind = {}) : cuda(kind) {}
  ~Fake() {
    CHECK(cuda.faults().empty());
    CHECK(cuda.live_allocations() == 0);
  }
};

JobConfig adding() { return test::table_config(UpdateRule::kAdd, 0); }

}  // namespace

TEST_CASE("gpu rows: a pull gives the same bits as the CPU's, whatever the rule, width and partition") {
  Fake fake;
  test::pulls_rows_as_the_processor_does(fake.box);
  CHECK(fake.cuda.count("pull_rows") > 0);
}

TEST_CASE("gpu rows: pushes give the same bits as the CPU's, whatever the rule, width and partition") {
  Fake fake;
  test::pushes_rows_as_the_processor_does(fake.box);
}

TEST_CASE("gpu rows: rows that occur in many gradients get all of them") {
  Fake fake;
  test::sums_frequent_rows_exactly(fake.box);
}

TEST_CASE("gpu rows: a limit on the norm applies to the whole push") {
  Fake fake;
  test::clips_by_the_norm_of_all(fake.box);
}

TEST_CASE("gpu rows: nonexistent rows are an error before anything is applied, and the next call works") {
  Fake fake;
  test::refuses_rows_that_there_are_not(fake.box);
  Fake without({.host_register = false});
  test::refuses_rows_that_there_are_not(without.box);
}

TEST_CASE("gpu rows: no update of two GPU workers and a processor is lost") {
  Fake fake;
  test::loses_no_update(fake.box, 40);
}

TEST_CASE("gpu rows: repeated rows are not transferred over the bus again") {
  Fake fake;
  RowsJob job(adding(), {100, 16});
  RowsOnGpu table(fake.box, job.worker, job.variable);
  const std::vector<std::uint32_t> ids(1000, 7);
  const auto gradients = std::vector<float>(16 * ids.size(), 1.0F);
  const std::size_t before = fake.cuda.bytes_to_host();
  table.push(ids, gradients);
  CHECK(fake.cuda.bytes_to_host() - before == 16 * sizeof(float) + sizeof(std::uint64_t));
  CHECK(job.pull(ids_of({7}))[3] == job.first(7, 3) + 1000);
}

TEST_CASE("gpu rows: pieces are applied while later ones are still being transferred") {
  Fake fake;
  RowsJob job(adding(), {5000, 16});
  RowsOnGpu table(fake.box, job.worker, job.variable);
  Worker other(test::options(job.config));
  const Variable seen = other.variable("table");
  bool was_applied = false;
  fake.cuda.before_report = [&](std::size_t piece) {
    if (piece != 1) return;  // the first one is there; the second is not reported until it has been applied
    std::vector<float> now(16);
    was_applied = was_applied || test::eventually([&] {
                    other.pull_rows(seen, ids_of({0}), now);
                    return now[0] == job.first(0, 0) + 1;
                  });
  };
  table.push(ids_of_all(5000), std::vector<float>(5000 * 16, 1.0F));
  CHECK(was_applied);
  CHECK(job.pull(ids_of({4999}))[15] == job.first(4999, 15) + 1);
}

TEST_CASE("gpu rows: without registration pulls copy through the host, which is reported once if it was refused") {
  for (const bool is_refused : {false, true})
    for (const UpdateRule rule : {UpdateRule::kAdam, UpdateRule::kFtrl}) {
      Fake fake({.host_register = is_refused});
      if (is_refused) fake.cuda.fail("host_register", 0, device::kOutOfMemory);
      RowsJob job(test::table_config(rule, 2), {300, 5});
      RowsOnGpu table(fake.box, job.worker, job.variable);
      for (std::uint32_t round = 0; round < 3; ++round) {
        const auto ids = test::some_ids(50 + 100 * round, 300, round);
        CHECK(table.pull(ids) == job.pull(ids));
        CHECK(table.pull(test::widened(ids)) == job.pull(ids));
        table.push(ids, test::some_gradients(ids.size() * 5, round));
      }
      CHECK(table.pull(ids_of({})).empty());
      CHECK(table.warnings.size() == (is_refused ? 1 : 0));
      const std::string& reasons = table.rows->transfers().reasons;
      CHECK(reasons.find(is_refused ? "The CPU copies the rows that a batch names: " : "attribute 99") !=
            std::string::npos);
      CHECK(fake.cuda.count("pull_rows") == 0);
    }
}

TEST_CASE("gpu rows: several pulls may be in progress, pushes take turns") {
  Fake fake;
  RowsJob job(adding(), {100, 16});
  RowsOnGpu table(fake.box, job.worker, job.variable);
  const auto ids = table.put(std::vector<std::uint32_t>{3, 100});
  const device::DeviceMemory<float> out(fake.cuda, 32);
  const std::span<const std::uint32_t> good(ids.on_device(), 1), bad(ids.on_device(), 2);
  table.rows->start_pull(bad, {out.on_device(), 32});
  table.rows->start_pull(good, {out.on_device(), 16});
  CHECK_THROWS_WITH_AS(table.rows->finish_pull(), doctest::Contains("id 100"), Error);
  table.rows->start_pull(good, {out.on_device(), 16});
  table.rows->finish_pull();
  table.rows->finish_pull();  // no effect: none is in progress

  const auto gradient = table.put(std::vector<float>(16, 1.0F));
  table.rows->start_push(good, {gradient.on_device(), 16});
  CHECK_THROWS_WITH_AS(table.rows->start_push(good, {gradient.on_device(), 16}),
                       doctest::Contains("while the previous one is still in progress"), Error);
  table.rows->finish_push();
  table.rows->start_push(good, {gradient.on_device(), 16});  // and is never finished
}

TEST_CASE("gpu rows: what one user of a worker has registered serves the others, until the last one is gone") {
  Fake fake;
  JobConfig config = adding();
  config.ps_tasks = 1;
  RowsJob job(config, {100, 16});
  const Variable second = job.worker.variable({.name = "second", .shape = {40, 3}, .layout = Layout::kInplace},
                                              [](std::span<float> out) { std::fill(out.begin(), out.end(), 5.0F); });
  const VariableSpec dense{.name = "dense", .shape = {1000}, .layout = Layout::kVersioned};
  const Variable third =
      job.worker.variable(dense, [](std::span<float> out) { std::fill(out.begin(), out.end(), 6.0F); });
  auto table = std::make_unique<RowsOnGpu>(fake.box, job.worker, job.variable);
  const std::size_t registered = fake.cuda.count("host_register");
  RowsOnGpu other(fake.box, job.worker, second);
  const device::DeviceMemory<float> parameters(fake.cuda, 1000), gradients(fake.cuda, 1000);
  float* const to = parameters.on_device();
  const float* const from = gradients.on_device();
  GpuOptions options;
  options.warn = [](const std::string& line) { FAIL(line); };
  const auto link = device::make_gpu_link(job.worker, std::span(&third, 1), std::span(&to, 1), std::span(&from, 1),
                                          options, fake.cuda, fake.kernels);
  CHECK(fake.cuda.count("host_register") == registered + 1);  // the memory for the link's gradients
  CHECK(other.warnings.empty());
  table.reset();
  CHECK(fake.cuda.count("host_unregister") == 0);
  CHECK(other.pull(ids_of({39})) == std::vector<float>(3, 5.0F));
  link->start_pull();
  CHECK_FALSE(link->finish_pull());

  // A shard that grows while others use it keeps its registration.
  const Variable late = job.worker.variable({.name = "late", .shape = {50000, 4}, .layout = Layout::kInplace},
                                            [](std::span<float> out) { std::fill(out.begin(), out.end(), 7.0F); });
  RowsOnGpu of_late(fake.box, job.worker, late);
  REQUIRE(of_late.warnings.size() == 1);
  CHECK(of_late.warnings[0].find("declare all variables first") != std::string::npos);
  CHECK(of_late.pull(ids_of({49999})) == std::vector<float>(4, 7.0F));
  CHECK(other.pull(ids_of({1})) == std::vector<float>(3, 5.0F));
}

TEST_CASE("gpu rows: arguments that do not fit together are an error") {
  Fake fake({.devices = 2});
  RowsJob job(adding(), {100, 16});
  RowsOnGpu table(fake.box, job.worker, job.variable);
  const auto ids = table.put(std::vector<std::uint32_t>{3, 4});
  const auto floats = table.put(std::vector<float>(48, 1.0F));
  const std::span<const std::uint32_t> both(ids.on_device(), 2);
  for (const std::size_t count : {0, 16, 31, 33, 48}) {
    CHECK_THROWS_WITH_AS(table.rows->start_pull(both, {floats.on_device(), count}), doctest::Contains("16 elements"),
                         Error);
    CHECK_THROWS_WITH_AS(table.rows->start_push(both, {floats.on_device(), count}), doctest::Contains("16 elements"),
                         Error);
  }
  const Variable versioned = job.worker.variable({.name = "versioned", .shape = {10, 2}, .layout = Layout::kVersioned},
                                                 [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
  CHECK_THROWS_WITH_AS(RowsOnGpu(fake.box, job.worker, versioned), doctest::Contains("it is versioned"), Error);
  GpuRowsOptions options;
  options.device = 1;
  CHECK_THROWS_WITH_AS(device::make_gpu_rows(job.worker, job.variable, options, fake.cuda, fake.kernels),
                       doctest::Contains("a worker uses one GPU"), Error);
  options.device = 2;
  CHECK_THROWS_WITH_AS(device::make_gpu_rows(job.worker, job.variable, options, fake.cuda, fake.kernels),
                       doctest::Contains("no GPU 2"), Error);
}

TEST_CASE("gpu rows: any failing call is a warning or an error that names the GPU, without hangs or leaks") {
  struct Step {
    const char* call;
    device::CudaError error;
  };
  for (const Step& one : std::vector<Step>{{"device_count", device::kNoDevice},
                                           {"set_device", device::kInvalidDevice},
                                           {"load", 209},
                                           {"create_stream", device::kOutOfMemory},
                                           {"create_event", device::kOutOfMemory},
                                           {"allocate", device::kOutOfMemory},
                                           {"allocate_pinned", device::kOutOfMemory},
                                           {"host_register", device::kOutOfMemory},
                                           {"device_address", device::kInvalidValue},
                                           {"copy", 999},
                                           {"synchronize", 999},
                                           {"record", 999},
                                           {"pull_rows", 98},
                                           {"sort_rows_temp_bytes", 98},
                                           {"sort_rows", 98},
                                           {"send_rows", 98}})
    for (const bool is_registered : {true, false}) {
      std::size_t errors = 0, warnings = 0;
      for (int n = 0;; ++n) {
        REQUIRE(n < 200);
        INFO(std::string(one.call) << " " << n);
        Fake fake({.host_register = is_registered});
        RowsJob job(test::table_config(UpdateRule::kAdagrad, 2), {100, 16});
        const auto before = job.pull(ids_of_all(100));
        bool was_error = false;
        std::size_t warned = 0, uses = 0;
        {
          std::optional<RowsOnGpu> table;
          try {
            fake.cuda.fail(one.call, n, one.error);
            table.emplace(fake.box, job.worker, job.variable);
            static_cast<void>(table->pull(ids_of({5, 6, 5})));
            table->push(ids_of({5, 6, 5}), std::vector<float>(48, 1.0F));
            const auto pulled = table->pull(ids_of_all(100));
            CHECK(pulled == job.pull(ids_of_all(100)));
          } catch (const Error& error) {
            was_error = true;
            const std::string text = error.what();
            CHECK(text.find('\n') == std::string::npos);
            CHECK(text.find("GPU") != std::string::npos);
          }
          if (table) warned = table->warnings.size();
          uses = fake.cuda.count(one.call);
        }
        auto after = job.pull(ids_of_all(100));
        std::copy_n(before.begin() + 5 * 16, 2 * 16, after.begin() + 5 * 16);
        CHECK(after == before);  // in any case, no other row has changed
        if (uses <= static_cast<std::size_t>(n)) {
          CHECK_FALSE(was_error);
          break;
        }
        CHECK((was_error || warned != 0));
        errors += was_error;
        warnings += warned;
      }
      const std::string call = one.call;
      if (is_registered && call != "host_register") CHECK(errors > 0);
      if (is_registered && call == "host_register") CHECK(warnings > 0);
    }
}

TEST_CASE("gpu rows: a GPU that fails at work ends pull and push with an error, and applies nothing more") {
  for (const bool in_push : {false, true}) {
    Fake fake;
    RowsJob job(adding(), {100, 16});
    const auto before = job.pull(ids_of_all(100));
    RowsOnGpu table(fake.box, job.worker, job.variable);
    const auto ids = table.put(std::vector<std::uint32_t>{3});
    const auto floats = table.put(std::vector<float>(16, 1.0F));
    const std::span<const std::uint32_t> one(ids.on_device(), 1);
    fake.cuda.break_device(719);
    const auto use = [&] {
      if (in_push)
        table.rows->push(one, std::span<const float>(floats.on_device(), 16));
      else
        table.rows->pull(one, std::span<float>(floats.on_device(), 16));
    };
    CHECK_THROWS_WITH_AS(use(), doctest::Contains("fake error 719"), Error);
    CHECK(job.pull(ids_of_all(100)) == before);
  }
}
