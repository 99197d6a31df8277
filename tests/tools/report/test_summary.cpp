// The summary of a run, for workers without steps and for short times.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "report/gpu_summary.hpp"
#include "report/progress.hpp"
#include "report/summary.hpp"

using namespace ps_shm;
using namespace ps_shm::report;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

WorkerReport worker(std::uint32_t rank, std::uint64_t steps, std::optional<double> loss) {
  WorkerReport made;
  made.rank = rank;
  made.steps = steps;
  made.examples = 32 * steps;
  made.began_unix = 1e9;
  made.seconds = 0.25;
  made.loss = loss;
  made.staleness.count = steps;
  return made;
}

RunReport run_of(std::vector<WorkerReport> workers) {
  RunReport run;
  run.mode = "async";
  run.model = "mlp";
  run.workers = static_cast<std::uint32_t>(workers.size());
  run.steps = 100;
  run.per_worker = std::move(workers);
  run.test = Metrics{};
  run.staleness.count = run.steps;
  run.sum_up();
  return run;
}

}  // namespace

TEST_CASE("summary: a worker without steps has no loss, and the mean is that of the others") {
  WorkerInfo info;
  info.loss = 0;
  CHECK_FALSE(WorkerReport(info).loss.has_value());
  info.examples = 32;
  CHECK(WorkerReport(info).loss == 0.0);

  const RunReport run = run_of({worker(0, 50, 0.5), worker(1, 0, std::nullopt), worker(2, 50, 0.25)});
  CHECK(run.loss == 0.375);
  CHECK(has(to_text(run, std::nullopt), "training loss 0.3750\n"));
  CHECK(has(to_text(run, std::nullopt), " -          -"));
  const Json json = to_json(run);
  CHECK(json["training_loss"] == 0.375);
  CHECK(json["per_worker"][1]["training_loss"].is_null());
  CHECK(json["per_worker"][2]["training_loss"] == 0.25);
}

TEST_CASE("summary: without any step there is no loss at all") {
  const RunReport run = run_of({worker(0, 0, std::nullopt)});
  CHECK_FALSE(run.loss.has_value());
  CHECK(has(to_text(run, std::nullopt), "training loss -\n"));
  CHECK(to_json(run)["training_loss"].is_null());
}

TEST_CASE("summary: it names each worker of whose gradients more than 90 % were dropped") {
  RunReport run = run_of({worker(0, 50, 0.5), worker(1, 10, 0.5), worker(2, 9, 0.5), worker(3, 0, 0.5)});
  run.per_worker[1].dropped = 90;
  run.per_worker[2].dropped = 91;
  run.per_worker[3].dropped = 77;
  CHECK_FALSE(has(to_text(run, std::nullopt), "gradients were dropped"));  // the others have seen the same data
  run.has_own_data = true;
  const std::string text = to_text(run, std::nullopt);
  CHECK_FALSE(has(text, "worker 0:"));
  CHECK_FALSE(has(text, "worker 1:"));
  CHECK(has(text, "worker 2: 91 of its 100 gradients were dropped; what only it has seen is not in the model\n"));
  CHECK(has(text, "worker 3: 77 of its 77 gradients were dropped;"));
}

TEST_CASE("summary: staleness is for modes in which pushes may be stale, and the digest for the others") {
  RunReport run = run_of({worker(0, 50, 0.5), worker(1, 50, 0.5)});
  for (const auto& [mode, may_be_stale] :
       {std::pair("async", true), std::pair("ssp", true), std::pair("sync", false), std::pair("standalone", false)}) {
    run.mode = mode;
    const std::string text = to_text(run, std::nullopt);
    CHECK(has(text, "staleness mean") == may_be_stale);
    CHECK(has(text, "staleness  retries") == may_be_stale);
    CHECK(has(text, "0 retries, 0 dropped\n"));
    CHECK(has(text, "digest ") != may_be_stale);
    CHECK(to_json(run).contains("digest"));
  }
}

TEST_CASE("summary: staleness that was not measured is unknown") {
  RunReport run = run_of({worker(0, 50, 0.5), worker(1, 50, 0.5)});
  run.staleness = {.count = 2, .mean = 1.5};
  run.staleness_counts = {{1, 1}, {2, 1}};
  run.per_worker[1].staleness.count = 0;
  CHECK(has(to_text(run, std::nullopt), "staleness mean 1.50, p50 0, p99 0, max 0; 0 retries"));
  CHECK(has(to_text(run, std::nullopt), "0.00        0\n"));
  CHECK(has(to_text(run, std::nullopt), "-        0\n"));
  CHECK(to_json(run)["staleness"]["mean"] == 1.5);
  CHECK(to_json(run)["per_worker"][0]["staleness"]["mean"] == 0.0);
  CHECK(to_json(run)["per_worker"][1]["staleness"]["mean"].is_null());
  CHECK(to_json(run)["staleness"]["histogram"].size() == 2);
  run = run_of({worker(0, 0, 0.5)});
  run.staleness.count = 0;
  CHECK(has(to_text(run, std::nullopt), "staleness -; 0 retries"));
  CHECK_FALSE(has(to_text(run, std::nullopt), "0.00        0\n"));
  const Json json = to_json(run);
  for (const char* name : {"mean", "p50", "p99", "max"}) {
    CHECK(json["staleness"].at(name).is_null());
    CHECK(json["per_worker"][0]["staleness"].at(name).is_null());
  }
  CHECK(json["staleness"].at("histogram").is_null());
}

TEST_CASE("summary: how a rank of several processes has spent its time is unknown") {
  RunReport run = run_of({worker(0, 50, 0.5)});
  run.per_worker[0].phases.emplace().pull = 0.125;
  CHECK(to_json(run)["per_worker"][0]["seconds_in"]["pull"] == 0.125);
  run.per_worker[0].extend_to(1e9 - 1);
  const Json json = to_json(run)["per_worker"][0];
  CHECK(json.at("seconds_in").is_null());
  CHECK(json["seconds"] == 1.25);
}

TEST_CASE("summary: times below a second are in milliseconds") {
  RunReport run = run_of({worker(0, 50, 0.5), worker(1, 50, 0.5)});
  CHECK(has(to_text(run, std::nullopt), "100 steps in 250 ms: 400 steps/s"));
  run.seconds = 12.34;
  CHECK(has(to_text(run, std::nullopt), "100 steps in 12.3 s: 8.10 steps/s"));
}

TEST_CASE("summary: it reports the number of evaluations and the best one, even if a test gave NaN") {
  const auto evaluation = [](std::uint64_t step, double loss) {
    Metrics metrics;
    metrics.loss = loss;
    metrics.accuracy = 0.5;
    const auto point = read_evaluation(Json::parse(evaluation_json(3, step, 1e9 + double(step), metrics)));
    REQUIRE(point);
    CHECK(point->seconds == 1e9 + double(step));
    CHECK(point->metrics.accuracy == 0.5);
    return *point;
  };
  RunReport run = run_of({worker(0, 50, 0.5)});
  CHECK_FALSE(has(to_text(run, std::nullopt), "evaluated"));
  CHECK_FALSE(to_json(run).contains("evaluations"));
  const double nan = std::nan("");
  run.evaluations = {evaluation(1, nan), evaluation(10, 0.75), evaluation(20, 0.25), evaluation(30, nan)};
  CHECK(has(to_text(run, std::nullopt), "  evaluated 4 times: the lowest loss was 0.2500 at step 20\n"));
  CHECK(to_json(run)["evaluations"][1]["loss"] == 0.75);
  CHECK(to_json(run)["evaluations"][1]["step"] == 10);
  run.evaluations = {evaluation(1, nan)};
  CHECK(has(to_text(run, std::nullopt), "  evaluated 1 time: the lowest loss was nan at step 1\n"));
  CHECK_FALSE(read_evaluation(Json::parse(R"({"publication": "a"})")));
  CHECK_FALSE(read_evaluation(Json()));
}

TEST_CASE("summary: its lines fit, and lose nothing") {
  RunReport run = run_of({worker(0, 50, 0.5), worker(1, 50, 0.5)});
  run.data = "/a/folder/with/a/long/name/and/another/one/in/it/where/the/images/are";
  const std::string text = to_text(run, 40);
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) CHECK(end - begin <= 40);
  for (const char* words : {"worker", "steps", "time", "examples/s", "loss", "staleness", "retries"})
    CHECK(has(text, words));
}

TEST_CASE("summary: a worker's line has a time that is distinguishable from 0") {
  const train::TrainStatus status{
      .steps = 1700, .global_steps = 5021, .loss = 0.2155, .examples_per_second = 161000, .seconds_per_batch = 4e-5};
  CHECK(worker_line("worker 0", status) ==
        "worker 0: after 1700 training steps (5021 global steps), loss on training batch is 0.2155 (161000 examples/s, "
        "0.04 ms/batch)");
  CHECK(interruption_line("worker 0", 1700, 5021) ==
        "worker 0: interrupted after 1700 training steps (5021 global steps)");
}

TEST_CASE("summary: how a GPU transfers has its reasons, of dense and sparse models, as text and as JSON") {
  train::GpuReport dense, sparse;
  dense.device = sparse.device = "H200";
  dense.transfers.strategy = "pulls by a kernel";
  dense.transfers.reasons = "It is small.";
  dense.transfers.threads = 3;
  GpuRowTransfers& rows = sparse.rows.emplace();
  rows.strategy = "pulls rows by a kernel";
  rows.reasons = "They are scattered.";
  for (const train::GpuReport& report : {dense, sparse}) {
    const bool is_dense = !report.rows;
    const std::string reasons = is_dense ? "It is small." : "They are scattered.";
    const std::string way = is_dense ? "H200: pulls by a kernel, applied by 3 threads"
                                     : "H200: pulls rows by a kernel, applied by one thread";
    const Json json = report::to_json(report);
    CHECK(json["reasons"] == reasons);
    CHECK(json["threads"] == (is_dense ? 3 : 1));
    const std::string text = report::to_text(report);
    CHECK(has(text, "GPU " + way + "; 0.0 MiB registered"));
    CHECK(has(text, "\n  " + reasons));

    RunReport run = run_of({worker(0, 50, 0.5), worker(1, 50, 0.5), worker(2, 50, 0.5)});
    CHECK_FALSE(has(to_text(run, std::nullopt), "GPU"));
    run.per_worker[2].gpu = json;
    CHECK(has(to_text(run, std::nullopt), "\n  GPU of worker 2: " + way + "\n    " + reasons + "\n"));
    run.per_worker[0].gpu = json;
    CHECK(has(to_text(run, std::nullopt), "\n  GPU of workers 0, 2: " + way + "\n    " + reasons + "\n"));
    run.per_worker[0].gpu["strategy"] = "otherwise";
    CHECK(has(to_text(run, std::nullopt), "\n  GPU of worker 0: H200: otherwise"));
    CHECK(has(to_text(run, std::nullopt), "\n  GPU of worker 2: " + way));
  }
}
