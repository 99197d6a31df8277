// A publisher or a subscriber for the tests of the programs, until its standard input ends:
//
//   publication_peer publish NAME GENERATIONS   publishes so many generations of two tensors
//   publication_peer read NAME                  has the newest generation
//   publication_peer follow NAME                reads every one that it gets, of float32 that are all the same, until the
//                                               publisher ends; prints how many, and the last one's step and value
//
// Says "ready" when it has come so far.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "ps/errors.hpp"
#include "ps/publisher.hpp"
#include "ps/subscriber.hpp"

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
  else
    return 2;
} catch (const ps::Error& error) {
  std::fprintf(stderr, "publication_peer: %s\n", error.what());
  return 1;
}
