// Another program, for the tests of those that people run, until its standard input ends:
//
//   peer publish NAME GENERATIONS  publishes so many generations of two tensors
//   peer read NAME                 has the newest generation
//   peer follow NAME               reads every one that it gets, of float32 that are all the same, until the publisher
//                                  ends; prints how many, and the last one's step and value
//   peer declare JOB               a job with a variable of each dtype, called that, of the numbers 1, 2 and 3
//
// Says "ready" when it has come so far.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ps/errors.hpp"
#include "ps/publisher.hpp"
#include "ps/server.hpp"
#include "ps/subscriber.hpp"
#include "ps/worker.hpp"

namespace {

void wait_for_end() {
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}

void publish(const std::string& name, int generations) {
  ps::Publisher publisher({.name = name,
                           .tensors = {{.name = "w", .shape = {1000}}, {.name = "steps", .dtype = ps::DType::kInt64}},
                           .subscribers = 4});
  for (int i = 1; i <= generations; ++i)
    publisher.publish([](std::uint32_t, std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); },
                      10 * static_cast<std::uint64_t>(i));
  wait_for_end();
}

void follow(const std::string& name) {
  ps::Subscriber subscriber(name);
  std::uint64_t generations = 0, step = 0;
  float value = 0;
  try {
    for (std::uint64_t number = 0;; ++generations) {
      const ps::Generation generation = subscriber.read(number);
      const float first = generation.values<float>(0).front();
      for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor)
        for (const float one : generation.values<float>(tensor))
          if (one != first) throw ps::Error("a generation is mixed");
      if (first < value || generation.step() < step) throw ps::Error("a generation is older than the one before");
      number = generation.number(), step = generation.step(), value = first;
    }
  } catch (const ps::PublisherGone&) {
  }
  std::printf("%llu %llu %.0f\n", static_cast<unsigned long long>(generations), static_cast<unsigned long long>(step),
              static_cast<double>(value));
}

void declare(const std::string& job) {
  ps::JobConfig config;
  config.job = job;
  ps::Server server(config);
  ps::WorkerOptions options;
  options.job = job;
  ps::Worker worker(options);
  const auto variable = [&](ps::DType dtype, auto one, auto two, auto three) {
    const decltype(one) values[] = {one, two, three};
    worker.assign(
        worker.variable({.name = ps::to_string(dtype), .shape = {3}, .dtype = dtype}, [](std::span<float>) {}),
        std::as_bytes(std::span(values)));
  };
  variable(ps::DType::kFloat32, 1.0F, 2.0F, 3.0F);
  variable(ps::DType::kFloat64, 1.0, 2.0, 3.0);
  variable(ps::DType::kBFloat16, std::uint16_t{0x3f80}, std::uint16_t{0x4000}, std::uint16_t{0x4040});
  variable(ps::DType::kFloat16, std::uint16_t{0x3c00}, std::uint16_t{0x4000}, std::uint16_t{0x4200});
  variable(ps::DType::kInt64, std::int64_t{1}, std::int64_t{2}, std::int64_t{3});
  variable(ps::DType::kInt32, std::int32_t{1}, std::int32_t{2}, std::int32_t{3});
  variable(ps::DType::kInt16, std::int16_t{1}, std::int16_t{2}, std::int16_t{3});
  variable(ps::DType::kInt8, std::int8_t{1}, std::int8_t{2}, std::int8_t{3});
  variable(ps::DType::kUint64, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3});
  variable(ps::DType::kUint32, std::uint32_t{1}, std::uint32_t{2}, std::uint32_t{3});
  variable(ps::DType::kUint16, std::uint16_t{1}, std::uint16_t{2}, std::uint16_t{3});
  variable(ps::DType::kUint8, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3});
  variable(ps::DType::kBool, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3});
  wait_for_end();
}

void read(const std::string& name) {
  ps::Subscriber subscriber(name);
  const ps::Generation newest = subscriber.read();
  wait_for_end();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string role = argc > 2 ? argv[1] : "";
  if (role == "publish" && argc == 4)
    publish(argv[2], std::atoi(argv[3]));
  else if (role == "read")
    read(argv[2]);
  else if (role == "follow")
    follow(argv[2]);
  else if (role == "declare")
    declare(argv[2]);
  else
    return 2;
} catch (const ps::Error& error) {
  std::fprintf(stderr, "peer: %s\n", error.what());
  return 1;
}
