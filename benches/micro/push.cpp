// push/<who>/floats:<n>/processes:<p>: GB/s of gradient, summed over the processes, that add to one vector. Ours are
// real jobs and Worker::push with rule sgd. push_rule/...: the same with each update rule; push_chunk/...: by rule and
// size of chunks.
#include <fmt/format.h>

#include <memory>

#include "cases.hpp"
#include "job.hpp"
#include "limits.hpp"
#include "rivals.hpp"
#include "socket_rival.hpp"
#include "update/rules.hpp"

namespace ps_shm::bench {
namespace {

struct Pushed {
  std::vector<Ran> ran;
  double lost = 0;
  Figures more;  // what else there is to say
};

std::uint64_t pushes_of(const std::vector<Ran>& ran, std::uint64_t floats) {
  return sum_of_rounds(ran) + ran.size() * warmups_for(floats);
}

std::vector<Ran> push_to(const Job& job, std::uint64_t floats, int processes) {
  return run_processes(processes, span_for(floats, processes),
                       [&](int number) { return push_work(job.join(number, floats), floats); });
}

Pushed push_job(const JobConfig& config, std::uint64_t floats, int processes) {
  const Job job(config);
  Pushed pushed{push_to(job, floats, processes), 0, {}};
  pushed.lost = job.lost(pushes_of(pushed.ran, floats));
  // Exact in-place adds repeat single exchanges, which nobody counts.
  if (config.layout == Layout::kVersioned) pushed.more = {{"retries", job.retries_per_push()}};
  return pushed;
}

Pushed push_rival(const Rival& rival, std::uint64_t floats, int processes) {
  RivalVector vector(floats);
  Pushed pushed;
  pushed.ran = run_processes(processes, span_for(floats, processes), [&](int number) {
    auto delta = std::make_shared<PrivateFloats>(floats, 1.0F);
    const std::uint64_t start = start_of(vector, number, processes);
    const auto rounds = [&, delta, start](std::uint64_t count) {
      std::uint64_t retries = 0;
      for (std::uint64_t round = 0; round < count; ++round) retries += rival.add(vector, delta->data(), start);
      return retries;
    };
    return Work{.prepare = [=] { rounds(warmups_for(floats)); }, .rounds = rounds};
  });
  pushed.lost = vector.lost(pushes_of(pushed.ran, floats));
  if (rival.is_exact) pushed.more = {{"retries", retries_per_round(pushed.ran)}};
  return pushed;
}

Pushed push_socket(std::uint64_t floats, int processes) {
  RivalVector vector(floats);
  const SocketServer server(vector, processes);
  Pushed pushed;
  pushed.ran = run_processes(processes, span_for(floats, processes), [&](int number) {
    auto delta = std::make_shared<PrivateFloats>(floats, 1.0F);
    const auto rounds = [&, number, delta](std::uint64_t count) -> std::uint64_t {
      for (std::uint64_t round = 0; round < count; ++round) server.push(number, delta->data());
      return 0;
    };
    return Work{.prepare = [=] { rounds(warmups_for(floats)); }, .rounds = rounds};
  });
  pushed.lost = vector.lost(pushes_of(pushed.ran, floats));
  return pushed;
}

// A vector that is added to in place is less memory than one that goes from buffer to buffer, so there are two limits.
Figures figures_of(const Pushed& pushed, std::uint64_t floats, const TriadRates& limit) {
  Figures figures = rate_with_limit("GB/s", gigabytes_per_second(floats, sum_of_rates(pushed.ran)),
                                    gigabytes_per_second(floats, limit.apart));
  figures.push_back({"limit_in_place", gigabytes_per_second(floats, limit.in_place)});
  figures.push_back({"lost_%", 100 * pushed.lost});
  figures.insert(figures.end(), pushed.more.begin(), pushed.more.end());
  return figures;
}

void add_push(const std::string& who, bool is_exact, const std::function<Pushed(std::uint64_t, int)>& push) {
  for (const std::uint64_t said : vector_sizes())
    for (const int processes : process_counts({1, 2, 4}))
      add_case(fmt::format("push/{}/floats:{}/processes:{}", who, said, processes), [=] {
        const std::uint64_t floats = floats_of(said);
        const TriadRates limit = triad_rates(floats, processes);
        const Pushed pushed = push(floats, processes);
        if (is_exact) require_exact(pushed.lost);
        return figures_of(pushed, floats, limit);
      });
}

// A push with this rule; `chunk_bytes`: 0 for the default.
Figures push_by_rule(UpdateRule rule, std::uint64_t floats, int processes, std::uint64_t chunk_bytes,
                     Layout layout = Layout::kVersioned) {
  JobConfig config = counting_config(processes);
  config.layout = layout;
  config.optimizer.rule = rule;
  config.optimizer.lr = 1e-6F;
  config.chunk_bytes = chunk_bytes;
  config.max_workers = processes;  // free buffers of 1 MiB for 16 take more than a container's /dev/shm
  const TriadRates limit = triad_rates(floats, processes, 1 + update::slots_per_element(rule, false));
  const Job job(config);
  Pushed pushed;
  pushed.ran = push_to(job, floats, processes);
  pushed.lost = job.lost_versions(pushes_of(pushed.ran, floats));
  pushed.more = {{"retries", job.retries_per_push()}};
  require_exact(pushed.lost);
  return figures_of(pushed, floats, limit);
}

void add_rule(UpdateRule rule, std::uint64_t said, int processes, Layout layout = Layout::kVersioned) {
  const char* const which = layout == Layout::kVersioned ? "" : "single-writer/";
  add_case(fmt::format("push_rule/{}{}/floats:{}/processes:{}", which, to_string(rule), said, processes),
           [=] { return push_by_rule(rule, floats_of(said), processes, 0, layout); });
}

void add_chunks(UpdateRule rule, std::uint64_t said, int processes) {
  for (std::uint64_t bytes = 4 << 10; bytes <= 1 << 20; bytes *= 2)
    add_case(fmt::format("push_chunk/{}/bytes:{}/floats:{}/processes:{}", to_string(rule), bytes, said, processes),
             [=] { return push_by_rule(rule, floats_of(said), processes, bytes); });
}

}  // namespace

void add_push_cases() {
  const auto job = [](Layout layout, Adds adds) {
    return [=](std::uint64_t floats, int processes) {
      JobConfig config = counting_config(processes);
      config.layout = layout;
      config.adds = adds;
      return push_job(config, floats, processes);
    };
  };
  add_push("versioned", true, job(Layout::kVersioned, Adds::kExact));
  add_push("inplace", true, job(Layout::kInplace, Adds::kExact));
  add_push("job_racy", false, job(Layout::kInplace, Adds::kRacy));
  for (const Rival& rival : rivals())
    add_push(rival.name, rival.is_exact,
             [&rival](std::uint64_t floats, int processes) { return push_rival(rival, floats, processes); });
  add_push("socket", true, push_socket);
  for (const UpdateRule rule :
       {UpdateRule::kAdd, UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdagrad,
        UpdateRule::kRmsProp, UpdateRule::kAdam, UpdateRule::kAdamW, UpdateRule::kFtrl})
    add_rule(rule, 1'000'000, 2);
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kAdam}) {
    add_rule(rule, 100'000'000, 1);
    add_rule(rule, 100'000'000, 1, Layout::kSingleWriter);
  }
  for (const std::uint64_t floats : {100'000, 1'000'000, 16'000'000}) add_chunks(UpdateRule::kSgd, floats, 2);
  for (const std::uint64_t floats : {1'000'000, 16'000'000})
    for (const int processes : {1, 2}) add_chunks(UpdateRule::kAdam, floats, processes);
}

}  // namespace ps_shm::bench
