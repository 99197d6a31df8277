// A second program for the process tests. It plays one role until its standard input ends:
//
//   peer publish NAME GENERATIONS  publishes this many generations of two tensors
//   peer write NAME WRITER WRITERS GENERATIONS  as one of several writers, publishes its part of a tensor so many times
//   peer read NAME                 holds a lease of the newest generation
//   peer follow NAME               reads every generation that it gets, whose float32 elements are all equal, until the
//                                  publisher ends; prints how many there were, and the step and value of the last one
//   peer declare-half JOB          a worker of a job with variables `ready` and `awaited`; the initializer of the
//                                  second one does not return
//   peer declare-integers JOB N    a job with an `int64` and a `uint64` variable that hold the number N
//   peer declare-odd JOB           a job with a variable `odd` that holds -3, 4, NaN and both infinities
//   peer declare-table JOB         a job with a table `items` of 100 rows, of which that of key 7 is pushed most
//   peer declare-odd-table JOB     a job with a table `items` of 100 rows, of which those of keys 7 and 8 contain NaN
//   peer push JOB RANK N VALUE     pushes a gradient of VALUE to `w` N times, one step each
//   peer late JOB                  two workers of a job whose quorum is one; the second one is late in each of 20 steps
//   peer hammer JOB RANK           pushes zeros to `w` every 200 ms, one step each
//   peer stop-within JOB           a worker of a job; on a line of input it pushes, makes a step and pushes in one
//                                  group, and stops itself before the second push
//   peer hold-snapshot JOB         takes a snapshot of a job and keeps it
//   peer declare JOB               a job with a variable of each dtype, named after the dtype, that holds 1, 2 and 3
//   peer train JOB MIB             a job of about MIB MiB, half of them in chunks and half in rows, and a worker that
//                                  pushes to parts of it until its standard input ends
//
// Prints "ready" once its role is set up.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/worker.hpp"

namespace {

void wait_for_end() {
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}

void publish(const std::string& name, int generations) {
  ps_shm::Publisher publisher(
      {.name = name,
       .tensors = {{.name = "w", .shape = {1000}}, {.name = "steps", .dtype = ps_shm::DType::kInt64}},
       .subscribers = 4});
  for (int i = 1; i <= generations; ++i)
    publisher.publish([](std::uint32_t, std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); },
                      10 * static_cast<std::uint64_t>(i));
  wait_for_end();
}

void write(const std::string& name, std::uint32_t writer, std::uint32_t writers, int generations) {
  ps_shm::WritePlan plan;
  for (std::uint64_t one = 0; one < writers; ++one) plan.push_back({{0, {100 * one}, {100}}});
  ps_shm::Publisher publisher({.name = name,
                               .tensors = {{.name = "w", .shape = {std::uint64_t{100} * writers}}},
                               .subscribers = 4,
                               .writers = writers},
                              {.plan = plan, .writer = writer});
  const std::vector<float> values(100, 1);
  for (int i = 1; i <= generations; ++i)
    publisher.publish_slices([&](std::uint32_t, ps_shm::Publisher::SliceOutput& out) { out.write_floats(values); },
                             10 * static_cast<std::uint64_t>(i));
  wait_for_end();
}

void follow(const std::string& name) {
  ps_shm::Subscriber subscriber(name);
  std::uint64_t generations = 0, step = 0;
  float value = 0;
  try {
    for (std::uint64_t number = 0;; ++generations) {
      const ps_shm::Generation generation = subscriber.read(number);
      const float first = generation.values<float>(0).front();
      for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor)
        for (const float one : generation.values<float>(tensor))
          if (one != first) throw ps_shm::Error("a generation is mixed");
      if (first < value || generation.step() < step) throw ps_shm::Error("a generation is older than the one before");
      number = generation.number(), step = generation.step(), value = first;
    }
  } catch (const ps_shm::PublisherGone&) {
  }
  std::printf("%llu %llu %.0f\n", static_cast<unsigned long long>(generations), static_cast<unsigned long long>(step),
              static_cast<double>(value));
}

ps_shm::JobConfig config_of(const std::string& job) {
  ps_shm::JobConfig config;
  config.job = job;
  return config;
}

ps_shm::WorkerOptions options_of(const std::string& job) {
  ps_shm::WorkerOptions options;
  options.job = job;
  return options;
}

// A job that this process serves, and its worker.
struct OwnJob {
  explicit OwnJob(const std::string& job) : server(config_of(job)), worker(options_of(job)) {}
  ps_shm::Server server;
  ps_shm::Worker worker;
};

void declare(const std::string& job) {
  OwnJob own(job);
  ps_shm::Worker& worker = own.worker;
  const auto variable = [&](ps_shm::DType dtype, auto one, auto two, auto three) {
    const decltype(one) values[] = {one, two, three};
    worker.assign(
        worker.variable({.name = ps_shm::to_string(dtype), .shape = {3}, .dtype = dtype}, [](std::span<float>) {}),
        std::as_bytes(std::span(values)));
  };
  variable(ps_shm::DType::kFloat32, 1.0F, 2.0F, 3.0F);
  variable(ps_shm::DType::kFloat64, 1.0, 2.0, 3.0);
  variable(ps_shm::DType::kBFloat16, std::uint16_t{0x3f80}, std::uint16_t{0x4000}, std::uint16_t{0x4040});
  variable(ps_shm::DType::kFloat16, std::uint16_t{0x3c00}, std::uint16_t{0x4000}, std::uint16_t{0x4200});
  variable(ps_shm::DType::kInt64, std::int64_t{1}, std::int64_t{2}, std::int64_t{3});
  variable(ps_shm::DType::kInt32, std::int32_t{1}, std::int32_t{2}, std::int32_t{3});
  variable(ps_shm::DType::kInt16, std::int16_t{1}, std::int16_t{2}, std::int16_t{3});
  variable(ps_shm::DType::kInt8, std::int8_t{1}, std::int8_t{2}, std::int8_t{3});
  variable(ps_shm::DType::kUint64, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3});
  variable(ps_shm::DType::kUint32, std::uint32_t{1}, std::uint32_t{2}, std::uint32_t{3});
  variable(ps_shm::DType::kUint16, std::uint16_t{1}, std::uint16_t{2}, std::uint16_t{3});
  variable(ps_shm::DType::kUint8, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3});
  variable(ps_shm::DType::kBool, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3});
  wait_for_end();
}

void declare_integers(const std::string& job, std::uint64_t number) {
  OwnJob own(job);
  ps_shm::Worker& worker = own.worker;
  for (const ps_shm::DType dtype : {ps_shm::DType::kInt64, ps_shm::DType::kUint64})
    worker.assign(
        worker.variable({.name = ps_shm::to_string(dtype), .shape = {1}, .dtype = dtype}, [](std::span<float>) {}),
        std::as_bytes(std::span(&number, 1)));
  wait_for_end();
}

void declare_table(const std::string& job) {
  OwnJob own(job);
  ps_shm::Table table =
      own.worker.table({.name = "items", .row_size = 3, .max_rows = 1000, .evict = ps_shm::Evict::kLfu});
  std::vector<std::uint64_t> keys(100);
  for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<float> gradients(300, 1.0F);
  table.push(keys, gradients);
  const std::uint64_t hot[] = {7};
  table.push(hot, std::span(gradients).first(3));
  wait_for_end();
}

void declare_odd_table(const std::string& job) {
  OwnJob own(job);
  ps_shm::Table table = own.worker.table({.name = "items", .row_size = 3, .max_rows = 1000});
  std::vector<std::uint64_t> keys(100);
  for (std::uint64_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<float> gradients(300, 1.0F);
  gradients[3 * 7 + 2] = gradients[3 * 8] = NAN;
  table.push(keys, gradients);
  wait_for_end();
}

void declare_odd(const std::string& job) {
  OwnJob own(job);
  ps_shm::Worker& worker = own.worker;
  worker.variable({.name = "odd", .shape = {5}}, [](std::span<float> out) {
    const float values[] = {-3, INFINITY, 4, NAN, -INFINITY};
    std::copy(std::begin(values), std::end(values), out.begin());
  });
  wait_for_end();
}

struct Pusher {
  ps_shm::Worker worker;
  ps_shm::Variable w;

  Pusher(const std::string& job, int rank)
      : worker({.job = job, .rank = static_cast<std::uint32_t>(rank)}),
        w(worker.variable({.name = "w", .shape = {3000}},
                          [](std::span<float> out) { std::fill(out.begin(), out.end(), 1.0F); })) {}
  void push(float value) {
    worker.push(w, std::vector<float>(w.element_count(), value));
    worker.step();
  }
};

void push(const std::string& job, int rank, int count, float value) {
  Pusher pusher(job, rank);
  for (int i = 0; i < count; ++i) pusher.push(value);
  wait_for_end();
}

void late(const std::string& job) {
  ps_shm::WorkerOptions options;
  options.job = job;
  ps_shm::Worker first(options), second(options);
  const auto zero = [](std::span<float> out) { out[0] = 0; };
  const ps_shm::Variable a = first.variable({.name = "w", .shape = {1}}, zero);
  const ps_shm::Variable b = second.variable({.name = "w", .shape = {1}}, zero);
  for (int step = 0; step < 20; ++step) {
    static_cast<void>(second.pull(b));
    first.push(a, 1);
    first.step();
    second.push(b, 1);
    second.step();
  }
  wait_for_end();
}

void hammer(const std::string& job, int rank) {
  Pusher pusher(job, rank);
  pusher.push(0);
  std::puts("ready");
  std::fflush(stdout);
  for (pollfd end{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}; poll(&end, 1, 200) == 0;) pusher.push(0);
}

// Keeps the initializer of the second variable waiting.
void declare_half(const std::string& job) {
  ps_shm::WorkerOptions options;
  options.job = job;
  ps_shm::Worker worker(options);
  worker.variable({.name = "ready", .shape = {4}}, [](std::span<float>) {});
  worker.variable({.name = "awaited", .shape = {4}}, [](std::span<float>) { wait_for_end(); });
}

void train(const std::string& job, std::uint64_t mebibytes) {
  constexpr std::uint64_t kWidth = 64, kSmall = 16, kIds = 100;
  ps_shm::JobConfig config;
  config.job = job, config.max_workers = 2;
  ps_shm::Server server(config);
  ps_shm::WorkerOptions options;
  options.job = job;
  ps_shm::Worker worker(options);
  const std::uint64_t half = mebibytes * (1 << 18) / 2;
  const auto ones = [](std::span<float> values) { std::fill(values.begin(), values.end(), 1.0F); };
  std::vector<ps_shm::Variable> chunks;
  for (std::uint64_t i = 0; i < kSmall; ++i)
    chunks.push_back(worker.variable({.name = "chunks" + std::to_string(i), .shape = {half / kSmall}}, ones));
  const std::uint64_t rows = half / kWidth;
  const ps_shm::Variable table =
      worker.variable({.name = "rows", .shape = {rows, kWidth}, .layout = ps_shm::Layout::kInplace}, ones);
  const std::vector<float> gradient(std::max(half / kSmall, kIds * kWidth), 1e-6F);
  std::vector<std::uint64_t> ids(kIds);
  std::puts("ready");
  std::fflush(stdout);
  pollfd input = {.fd = 0, .events = POLLIN, .revents = 0};
  for (std::uint64_t step = 0; poll(&input, 1, 0) == 0; ++step) {
    for (std::uint64_t i = 0; i < kIds; ++i) ids[i] = (step * step * 7919 + i * i * 104729) % rows;
    worker.push_rows(table, ids, std::span(gradient).first(kIds * kWidth));
    if (step % 100 == 0) worker.push(chunks[step / 100 % kSmall], std::span(gradient).first(half / kSmall));
    worker.step();
  }
}

// Ten steps; when it is told to end, one more addition outside any step.
void push_late(const std::string& job) {
  ps_shm::Worker worker(options_of(job));
  const ps_shm::Variable w = worker.variable(
      {.name = "w", .shape = {1000}}, [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); });
  const std::vector<float> ones(w.element_count(), 1.0F);
  for (int i = 0; i < 10; ++i) {
    worker.add(w, ones);
    worker.step();
  }
  wait_for_end();
  worker.add(w, ones);
}

// One step; when told to continue, a group of two pushes, between which it makes another one and stops itself.
void stop_within(const std::string& job) {
  ps_shm::Worker worker(options_of(job));
  const auto zeros = [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); };
  const ps_shm::Variable a = worker.variable({.name = "a", .shape = {4}, .rule = ps_shm::UpdateRule::kAdd}, zeros);
  const ps_shm::Variable b = worker.variable({.name = "b", .shape = {4}, .rule = ps_shm::UpdateRule::kAdd}, zeros);
  const std::vector<float> ones(4, 1.0F);
  worker.step();
  std::puts("ready");
  std::fflush(stdout);
  std::getchar();
  {
    const ps_shm::PushGroup group = worker.group_pushes();
    worker.push(a, ones);
    worker.step();  // here: a ps that publishes each step sees this one with a part of the group, however late it looks
    std::raise(SIGSTOP);
    worker.push(b, ones);
  }
  while (std::getchar() != EOF) {
  }
}

void hold_snapshot(const std::string& job) {
  const ps_shm::JobView view(job);
  const ps_shm::Snapshot snapshot = view.snapshot();
  wait_for_end();
}

void read(const std::string& name) {
  ps_shm::Subscriber subscriber(name);
  const ps_shm::Generation newest = subscriber.read();
  wait_for_end();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string role = argc > 2 ? argv[1] : "";
  if (role == "publish" && argc == 4)
    publish(argv[2], std::atoi(argv[3]));
  else if (role == "write" && argc == 6)
    write(argv[2], static_cast<std::uint32_t>(std::atoi(argv[3])), static_cast<std::uint32_t>(std::atoi(argv[4])),
          std::atoi(argv[5]));
  else if (role == "read")
    read(argv[2]);
  else if (role == "follow")
    follow(argv[2]);
  else if (role == "declare")
    declare(argv[2]);
  else if (role == "declare-integers" && argc == 4)
    declare_integers(argv[2], std::strtoull(argv[3], nullptr, 10));
  else if (role == "declare-odd")
    declare_odd(argv[2]);
  else if (role == "declare-table")
    declare_table(argv[2]);
  else if (role == "declare-odd-table")
    declare_odd_table(argv[2]);
  else if (role == "push" && argc == 6)
    push(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::strtof(argv[5], nullptr));
  else if (role == "push-late")
    push_late(argv[2]);
  else if (role == "stop-within")
    stop_within(argv[2]);
  else if (role == "hold-snapshot")
    hold_snapshot(argv[2]);
  else if (role == "hammer" && argc == 4)
    hammer(argv[2], std::atoi(argv[3]));
  else if (role == "late")
    late(argv[2]);
  else if (role == "train" && argc == 4)
    train(argv[2], std::strtoull(argv[3], nullptr, 10));
  else if (role == "declare-half")
    declare_half(argv[2]);
  else
    return 2;
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "peer: %s\n", error.what());
  return 1;
}
