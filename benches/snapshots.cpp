// What snapshots cost those who push: how long a push waits for a snapshot point, and how much of its rate a trainer
// loses beside a process that copies a snapshot, against one that copies as many private bytes.
//
//     snapshots [--variables 256] [--mib 4] [--rounds 20]     a Markdown table; twice the model in /dev/shm, and some
//
// A push is one variable's, with SGD. The time that a process waited for a core (/proc/self/schedstat) is taken off.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "processes.hpp"
#include "ps_shm/job_view.hpp"
#include "report.hpp"
#include "shm/base/clock.hpp"
#include "trainer.hpp"

namespace {

using namespace ps_shm;
using bench::median_of, bench::PushLog, bench::SharedBytes, bench::TrainedJob;

struct Options : bench::Model {
  std::uint32_t rounds = 20;
};

double percentile(std::vector<std::uint64_t> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return double(values[std::min(values.size() - 1, std::size_t(share * double(values.size())))]);
}

struct Span {
  std::uint64_t begin, end;
};

// Of the pushes that overlap one of the spans, or of those that overlap none.
std::vector<std::uint64_t> times_of(const PushLog& log, const std::vector<Span>& spans, bool overlaps) {
  std::vector<std::uint64_t> times;
  for (std::uint64_t i = 0; i < log.pushes; ++i) {
    const bench::Push& push = log.all[i];
    const bool is_in = std::any_of(spans.begin(), spans.end(),
                                   [&](const Span& span) { return push.begin < span.end && push.end > span.begin; });
    if (is_in == overlaps) times.push_back(push.ns);
  }
  return times;
}

void print_times(const char* what, const std::vector<std::uint64_t>& times) {
  fmt::print("| {} | {} | {:.3f} | {:.3f} | {:.3f} |\n", what, times.size(), percentile(times, 0.5) * 1e-6,
             percentile(times, 0.99) * 1e-6, percentile(times, 1) * 1e-6);
}

std::uint64_t copy_all(const Snapshot& snapshot, const Options& options, const bench::PrivateFloats& buffer) {
  for (std::uint32_t i = 0; i < options.variables; ++i)
    snapshot.copy(bench::variable_name(i), {buffer.data(), options.elements()});
  return options.variables * options.elements() * sizeof(float);
}

// How long pushes of two workers take: with nothing else, while a snapshot point is made, and while a snapshot is
// copied.
void measure_delays(const Options& options) {
  TrainedJob job(options, 2);
  SharedBytes logs(2 * sizeof(PushLog));
  PushLog* const log = logs.as<PushLog>();
  for (std::uint32_t rank = 0; rank < 2; ++rank) job.add_trainer(rank, static_cast<int>(rank), log[rank]);
  const bench::PrivateFloats buffer(options.elements());
  JobView view(job.name());
  std::vector<Span> cuts, copies;
  double first = 0;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    usleep(200'000);
    const std::uint64_t begin = shm::now_ns();
    const Snapshot snapshot = view.snapshot();
    const std::uint64_t taken = shm::now_ns();
    if (!snapshot.partial_ranks().empty()) throw std::runtime_error("a snapshot point was split");
    if (round == 0)
      first = double(taken - begin) * 1e-6;
    else
      cuts.push_back({begin, taken});
    copy_all(snapshot, options, buffer);
    copies.push_back({round == 0 ? begin : taken, shm::now_ns()});
  }
  job.stop();
  std::vector<Span> any = cuts;
  any.insert(any.end(), copies.begin(), copies.end());
  std::vector<std::uint64_t> alone, at_snapshot_point, copying;
  for (int rank = 0; rank < 2; ++rank) {
    const auto add = [&](std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& times) {
      to.insert(to.end(), times.begin(), times.end());
    };
    add(alone, times_of(log[rank], any, false));
    add(at_snapshot_point, times_of(log[rank], cuts, true));
    add(copying, times_of(log[rank], copies, true));
  }
  fmt::print("\n| pushes of {} MiB, two workers | number | p50, ms | p99, ms | max, ms |\n|---|---|---|---|---|\n",
             options.mib);
  print_times("no snapshot", alone);
  print_times("while a snapshot point is made", at_snapshot_point);
  print_times("while a snapshot is copied", copying);
  std::vector<std::uint64_t> taking;
  for (const Span& cut : cuts) taking.push_back(cut.end - cut.begin);
  fmt::print(
      "\nTaking a snapshot: {:.3f} ms (median), {:.3f} ms at most; the first one, with its reserves, {:.1f} ms.\n",
      percentile(taking, 0.5) * 1e-6, percentile(taking, 1) * 1e-6, first);
}

// One trainer on core 0, that computes for so much of its time; on core 1 nothing, a copier of private bytes, or one of
// snapshots, in turns.
void measure_losses(const Options& options, double computing) {
  TrainedJob job(options, 1);
  SharedBytes logs(sizeof(PushLog));
  PushLog* const log = logs.as<PushLog>();
  job.add_trainer(0, 0, *log, computing);
  bench::pin_to(1);
  JobView view(job.name());
  const bench::PrivateFloats buffer(options.elements()), from(options.elements() * std::min(options.variables, 64U));
  std::vector<std::vector<double>> rates(3), copied(3);
  for (std::uint32_t round = 0; round < options.rounds; ++round)
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const std::uint64_t before = log->pushes, begin = shm::now_ns();
      std::uint64_t bytes = 0;
      const auto is_over = [&] { return shm::now_ns() - begin > 1'000'000'000; };
      if (kind == 0) usleep(1'000'000);
      while (kind == 1 && !is_over())
        for (std::uint64_t at = 0; at < from.size() && !is_over(); at += options.elements()) {
          std::memcpy(buffer.data(), from.data() + at, options.elements() * sizeof(float));
          bytes += options.elements() * sizeof(float);
        }
      while (kind == 2 && !is_over()) bytes += copy_all(view.snapshot(), options, buffer);
      const double seconds = double(shm::now_ns() - begin) * 1e-9;
      rates[kind].push_back(double(log->pushes - before) / seconds);
      copied[kind].push_back(double(bytes) / seconds);
    }
  fmt::print("\nA trainer that computes for {:.0f} % of its time:\n\n", computing * 100);
  fmt::print("| on the other core | pushes a second | of alone | copied, GB/s |\n|---|---|---|---|\n");
  const char* const names[] = {"nothing", "a copier of private bytes", "a copier of snapshots"};
  for (std::size_t kind = 0; kind < 3; ++kind)
    fmt::print("| {} | {:.0f} | {:.3f} | {:.2f} |\n", names[kind], median_of(rates[kind]),
               median_of(rates[kind]) / median_of(rates[0]), median_of(copied[kind]) * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string argument = argv[i];
    const auto value = static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (argument == "--variables") options.variables = value;
    if (argument == "--mib") options.mib = value;
    if (argument == "--rounds") options.rounds = value;
  }
  if (!bench::may_report("snapshots")) return 1;
  try {
    fmt::print("{} variables of {} MiB, medians of {} rounds\n", options.variables, options.mib, options.rounds);
    measure_delays(options);
    for (const double computing : {0.0, 0.9}) measure_losses(options, computing);
  } catch (const std::exception& error) {
    fmt::print(stderr, "snapshots: {}\n", error.what());
    return 1;
  }
  return 0;
}
