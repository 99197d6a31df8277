// Checkpoints: a whole job saved to files, and a job that starts from them, whatever its configuration.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "persistence/checkpoint_folder.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/worker.hpp"
#include "support/checkpoint_job.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"
#include "support/rule_reference.hpp"

using namespace ps_shm;
using namespace ps_shm::test::checkpoints;
using test::config_of, test::contains, test::error_of;

TEST_CASE("a job that starts from a checkpoint continues as if it had not been interrupted") {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kAdagrad, UpdateRule::kAdam,
                                UpdateRule::kFtrl, UpdateRule::kRowwiseAdagrad})
    for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
      if (rule == UpdateRule::kRowwiseAdagrad && layout == Layout::kVersioned) continue;
      if (layout == Layout::kInplace && !test::works_in_place(rule)) continue;
      for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
        if (mode == Mode::kSync && layout == Layout::kInplace) continue;
        CAPTURE(to_string(rule));
        CAPTURE(to_string(layout));
        CAPTURE(to_string(mode));
        const test::Folder folder;
        const auto config = [&] {
          JobConfig made = config_of({.mode = mode,
                                      .layout = layout,
                                      .chunk_bytes = 1024,
                                      .optimizer = {.rule = rule, .ema = layout == Layout::kVersioned ? 0.9F : 0.0F}});
          return made;
        };
        TrainedJob whole(config());
        whole.train(7);
        TrainedJob half(config());
        half.train(3);
        const std::string saved = half.save(folder.path());
        CHECK(saved == folder.path("step-3"));
        half.train(1);  // after the checkpoint: is lost

        JobConfig other = config();
        other.restore = saved;
        other.ps_tasks = 3;
        other.placement = Placement::kPartition;
        if (layout == Layout::kInplace) other.partition_by = PartitionBy::kHash;
        TrainedJob rest(other);
        CHECK(rest.worker.global_step() == 3);
        CHECK(rest.worker.examples_before() == 96);
        // The pushes of steps 3 to 6, as in `whole`.
        for (int step = 3; step < 7; ++step) {
          for (const Variable& variable : rest.variables) {
            std::vector<float> gradient(variable.element_count());
            for (std::size_t k = 0; k < gradient.size(); ++k)
              gradient[k] = 0.05F * float((k + std::size_t(step)) % 13) - 0.2F;
            rest.worker.push(variable, gradient);
          }
          rest.worker.step();
        }
        CHECK(rest.digest() == whole.digest());
        const JobView a = whole.view(), b = rest.view();
        for (const VariableInfo& variable : a.variables())
          for (std::size_t slot = 0; slot + variable.row_slots < variable.slots.size(); ++slot)
            CHECK_MESSAGE(a.slot(variable.name, variable.slots[slot]) == b.slot(variable.name, variable.slots[slot]),
                          variable.slots[slot]);
      }
    }
}

TEST_CASE("a checkpoint describes its contents and returns them byte by byte") {
  const test::Folder folder;
  TrainedJob job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum}},
                 {{.name = "a", .shape = {50, 30}},
                  {.name = "tokens", .shape = {7}, .rule = UpdateRule::kAdd, .dtype = DType::kInt64},
                  {.name = "scalar", .shape = {}}});
  std::vector<std::byte> tokens(7 * 8);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = std::byte(i * 37);
  job.worker.assign(job.variables[1], std::span<const std::byte>(tokens));
  const Checkpoint saved(job.save(folder.path(), {.loss = 0.25}));
  CHECK(saved.global_step() == 0);
  CHECK(saved.loss() == 0.25);
  CHECK(saved.settings().at("optimizer") == "momentum");
  REQUIRE(saved.variables().size() == 3);
  CHECK(saved.variables()[0].slots == std::vector<std::string>{"momentum"});
  CHECK(saved.variables()[1].name == "scalar");
  CHECK(saved.variables()[2].dtype == DType::kInt64);
  std::vector<std::byte> read(7 * 8);
  saved.read("tokens", read);
  CHECK(read == tokens);
  std::vector<float> a(1500);
  saved.read("a", std::as_writable_bytes(std::span(a)));
  CHECK(a == job.view().values("a"));
  saved.read("a", std::as_writable_bytes(std::span(a)), "momentum");
  CHECK(a == std::vector<float>(1500));
  CHECK(contains(error_of([&] { saved.read("b", read); }), "has no variable 'b'"));
  CHECK(contains(error_of([&] { saved.read("a", read); }), "does not fit"));
  saved.verify();
}

TEST_CASE("a checkpoint of another model is refused with one error that names all differences") {
  const test::Folder folder;
  std::string saved;
  {
    TrainedJob job;
    saved = job.save(folder.path());
  }
  JobConfig config = config_of({.chunk_bytes = 1024, .restore = saved});
  const std::string error = error_of([&] {
    TrainedJob(config, {{.name = "a", .shape = {50, 31}}, {.name = "x", .shape = {2}}});
  });
  CHECK(contains(error, "a is float32 [50, 30] there and float32 [50, 31] here"));
  CHECK(contains(error, "it has no x"));
  CHECK(contains(error, "it has also b/c.d"));
}

TEST_CASE("a job does not begin with a checkpoint whose files have changed") {
  const test::Folder folder;
  std::string saved;
  {
    TrainedJob job;
    saved = job.save(folder.path());
  }
  {
    std::fstream file(saved + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end).put(static_cast<char>(last ^ 1));
  }
  const JobConfig config = config_of({.chunk_bytes = 1024, .restore = saved});
  CHECK(contains(error_of([&] { TrainedJob again(config); }), "model.safetensors are not what was written"));
  CHECK(!std::filesystem::exists("/dev/shm/ps_shm." + config.job));
}

TEST_CASE("a job does not begin at the step of a checkpoint without the checkpoint") {
  const test::JobName name;
  JobConfig config = test::with_name({}, name.text());
  config.first_step = 7;
  CHECK_THROWS_WITH_AS(Server{config}, doctest::Contains("leave it 0"), Error);
  CHECK(name.segments().empty());
}

TEST_CASE("slots that a checkpoint lacks start from zero, the others continue") {
  const test::Folder folder;
  std::string saved;
  std::vector<float> values;
  {
    TrainedJob job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum}});
    job.train(4);
    values = job.view().values("a");
    saved = job.save(folder.path());
  }
  const TrainedJob job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdagrad}, .restore = saved});
  const JobView view = job.view();
  CHECK(view.values("a") == values);
  CHECK(view.slot("a", "n") == std::vector<float>(1500, job.config.optimizer.initial_accumulator));
  CHECK(view.variables()[0].updates == 0);  // for Adam's bias correction
}

TEST_CASE("in-place Adam continues from a checkpoint of versioned chunks, with their number of updates") {
  if (!test::works_in_place(UpdateRule::kAdam)) return;
  const test::Folder folder;
  TrainedJob whole({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdam}});
  whole.train(3);
  TrainedJob rest({.layout = Layout::kInplace,
                   .chunk_bytes = 1024,
                   .optimizer = {.rule = UpdateRule::kAdam},
                   .restore = whole.save(folder.path())});
  whole.train(1);
  rest.train(1);
  const std::vector<float> expected = whole.view().values("a");
  const std::vector<float> values = rest.view().values("a");
  REQUIRE(values.size() == expected.size());
  for (std::size_t k = 0; k < values.size(); ++k) REQUIRE(values[k] == doctest::Approx(expected[k]).epsilon(1e-6));
  CHECK(rest.view().slot("a", "t") == std::vector<float>(1500, 4.0F));
}

TEST_CASE("versioned Adam continues from a checkpoint of in-place elements, with their number of steps") {
  if (!test::works_in_place(UpdateRule::kAdam)) return;
  const test::Folder folder;
  const Optimizer adam{.rule = UpdateRule::kAdam};
  TrainedJob whole({.chunk_bytes = 1024, .optimizer = adam});
  whole.train(20);
  TrainedJob between({.layout = Layout::kInplace, .optimizer = adam, .restore = whole.save(folder.path())});
  between.worker.add(between.variables[0], std::vector<float>(1500, 0.25F));
  whole.worker.add(whole.variables[0], std::vector<float>(1500, 0.25F));
  for (TrainedJob* const job : {&whole, &between}) job->train(2);
  const std::string saved = between.save(folder.path());
  CHECK(Checkpoint(saved).variables()[0].updates == 22);
  TrainedJob rest({.chunk_bytes = 1024, .optimizer = adam, .restore = saved});
  for (TrainedJob* const job : {&whole, &rest}) job->train(10);
  const std::vector<float> values = rest.view().values("a"), expected = whole.view().values("a");
  for (std::size_t k = 0; k < values.size(); ++k) REQUIRE(values[k] == doctest::Approx(expected[k]).epsilon(1e-5));
}

TEST_CASE("in-place FTRL begins with the values of a checkpoint, at whatever rate and after whatever rule") {
  const auto of = [](UpdateRule rule, Layout layout, float lr) {
    return JobConfig{.layout = layout, .optimizer = {.rule = rule, .lr = lr, .l1 = 0.01F}};
  };
  const std::vector<VariableSpec> specs = {{.name = "a", .shape = {50, 30}},
                                           {.name = "half", .shape = {70}, .dtype = DType::kBFloat16}};
  for (const auto& from :
       {std::pair(UpdateRule::kFtrl, Layout::kVersioned), std::pair(UpdateRule::kFtrl, Layout::kInplace),
        std::pair(UpdateRule::kAdagrad, Layout::kVersioned)})
    for (const float lr : {0.05F, 0.5F}) {
      CAPTURE(to_string(from.first));
      CAPTURE(to_string(from.second));
      CAPTURE(lr);
      const test::Folder folder;
      TrainedJob before(of(from.first, from.second, 0.05F), specs);
      const std::vector<std::uint16_t> quarters(70, 0x3e80);  // 0.25 in bfloat16
      before.worker.assign(before.variables[1], std::as_bytes(std::span(quarters)), Slots::kReset);
      before.train(5);
      JobConfig config = of(UpdateRule::kFtrl, Layout::kInplace, lr);
      config.restore = before.save(folder.path());
      TrainedJob after(config, specs);
      const std::vector<float> was = before.view().values("a"), is = after.view().values("a");
      CHECK(was[1] != 0);
      for (std::size_t k = 0; k < was.size(); ++k) REQUIRE(is[k] == doctest::Approx(was[k]).epsilon(1e-5));
      const std::vector<float> halves = before.view().values("half"), half = after.view().values("half");
      for (std::size_t k = 0; k < half.size(); ++k) REQUIRE(half[k] == doctest::Approx(halves[k]).epsilon(1.0 / 128));
    }
}

TEST_CASE("adam continues from a checkpoint with the count of its steps since its state was reset") {
  const test::Folder folder;
  TrainedJob whole({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdam}});
  whole.train(30);
  whole.worker.assign(whole.worker.variable("a"), std::vector<float>(1500, 4.0F), Slots::kReset);
  whole.train(2);
  TrainedJob rest(
      {.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdam}, .restore = whole.save(folder.path())});
  for (TrainedJob* const job : {&whole, &rest}) job->train(3);
  CHECK(rest.view().values("a") == whole.view().values("a"));
  CHECK(rest.view().variables()[0].updates == 5);
}

TEST_CASE("a different number of workers shares out the examples seen so far") {
  const test::Folder folder;
  std::string saved;
  {
    TrainedJob job({.chunk_bytes = 1024});
    job.train(5);
    Worker second = job.join(1);
    second.report(1, 40);
    saved = job.save(folder.path());
  }
  CHECK(Checkpoint(saved).examples() == std::vector<std::uint64_t>{160, 40});
  TrainedJob job({.workers = 4, .chunk_bytes = 1024, .restore = saved});
  CHECK(job.worker.examples_before() == 50);
  job.worker.report(1, 32);
  CHECK(Checkpoint(job.save(folder.path())).examples().front() == 82);
}

TEST_CASE("large models are saved in several files, with an index") {
  const test::Folder folder;
  TrainedJob job(config_of({.chunk_bytes = 1024}),
                 {{.name = "a", .shape = {100}}, {.name = "b", .shape = {100}}, {.name = "c", .shape = {300}}});
  const std::string saved = job.save(folder.path(), {.max_file_bytes = 850});
  CHECK(fs::exists(saved + "/model-00001-of-00002.safetensors"));
  CHECK(fs::exists(saved + "/model-00002-of-00002.safetensors"));
  std::ifstream file(saved + "/model.safetensors.index.json");
  const std::string index{std::istreambuf_iterator<char>(file), {}};
  CHECK(contains(index, R"("total_size": 2000)"));
  CHECK(contains(index, R"("c": "model-00002-of-00002.safetensors")"));
  std::vector<float> c(300);
  Checkpoint(saved).read("c", std::as_writable_bytes(std::span(c)));
  CHECK(c == job.view().values("c"));
}

TEST_CASE("sync: each rank's data position is that of the snapshot point, whatever it has counted since") {
  const test::Folder folder;
  TrainedJob job({.mode = Mode::kSync, .chunk_bytes = 1024});
  job.train(2);
  job.worker.report(1, 3 * 32);  // of a third step, which the others do not know yet
  CHECK(Checkpoint(job.save(folder.path())).examples() == std::vector<std::uint64_t>{64});
}

TEST_CASE("a variable or slot that a checkpoint does not have is reported with those that it has") {
  const test::Folder folder;
  TrainedJob job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum}});
  job.train(1);
  const Checkpoint checkpoint(job.save(folder.path()));
  const std::string name = checkpoint.variables()[0].name;
  std::vector<std::byte> out(4);
  for (const auto& [variable, slot, said] : {std::tuple(name + "x", std::string(), "it has " + name),
                                             std::tuple(name, std::string("v"), std::string("it has m"))}) {
    try {
      checkpoint.read(variable, out, slot);
      FAIL("read");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kNotFound);
      CHECK_MESSAGE(contains(error.what(), said), error.what());
    }
  }
}

TEST_CASE("a name in checkpoint.json cannot lead outside the folder") {
  const test::Folder folder;
  TrainedJob job;
  const std::string saved = job.save(folder.path());
  replace_in(saved + "/checkpoint.json", "\"model.safetensors\"", "\"../../etc/passwd\"");
  CHECK(contains(error_of([&] { Checkpoint checkpoint(saved); }), "is not a file name"));
}

TEST_CASE("a folder's name may contain spaces and non-ASCII letters") {
  const test::Folder folder;
  const std::string dir = folder.path("two wörds 100%");
  TrainedJob job;
  job.train(2);
  const TrainedJob next({.chunk_bytes = 1024, .restore = job.save(dir)});
  CHECK(next.digest() == job.digest());
  CHECK(next.view().info().config.restore == dir + "/step-2");
}
