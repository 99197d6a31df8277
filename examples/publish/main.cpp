// A publisher and a subscriber, each a process. The reader waits for newer generations, and never sees half of one.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include <ps_shm/errors.hpp>
#include <ps_shm/publisher.hpp>
#include <ps_shm/subscriber.hpp>

namespace {

constexpr std::uint64_t kGenerations = 5;

int read_all(const std::string& name) try {
  ps_shm::Subscriber subscriber(name);  // waits until it is there
  std::uint64_t seen = 0;
  while (seen < kGenerations) {
    const ps_shm::Generation generation = subscriber.read(seen);  // waits for a newer one
    seen = generation.number();
    const std::span<const float> w = generation.values<float>(subscriber.find("w"));  // where it lies: no copy
    const std::span<const float> b = generation.values<float>(subscriber.find("b"));
    const bool is_whole = std::all_of(w.begin(), w.end(), [&](float value) { return value == b[0]; });
    std::printf("generation %llu: w[0] = %g, b[0] = %g, %s\n", static_cast<unsigned long long>(seen), double(w[0]),
                double(b[0]), is_whole ? "whole" : "MIXED");
  }
  return 0;
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "publish: the reader: %s\n", error.what());
  return 1;
}

}  // namespace

int main() try {
  const std::string name = "example-publish-" + std::to_string(getpid());
  const pid_t reader = fork();
  if (reader == 0) return read_all(name);

  ps_shm::BundleSpec spec;
  spec.name = name;
  spec.tensors = {{.name = "w", .dtype = ps_shm::DType::kFloat32, .shape = {1000}},
                  {.name = "b", .dtype = ps_shm::DType::kFloat32, .shape = {1}}};
  ps_shm::Publisher publisher(spec);
  int status = 0;
  for (std::uint64_t i = 1; i <= kGenerations; ++i) {
    publisher.publish([&](std::uint32_t, std::span<std::byte> out) {  // writes into shared memory
      const std::span<float> values{reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)};
      std::fill(values.begin(), values.end(), static_cast<float>(i));
    });
    usleep(20'000);  // stands for computing a policy; nothing depends on how long it takes
  }
  waitpid(reader, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "publish: %s\n", error.what());
  return 1;
}
