#include "processes.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>

namespace ps::bench {

void* shared_bytes(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

std::vector<double> run_processes(int count, const std::function<Task(int)>& make) {
  struct Gate {
    std::atomic<int> ready;
    double seconds[64];
  };
  Gate* gate = new (shared_bytes(sizeof(Gate))) Gate{};
  std::vector<pid_t> children;
  for (int number = 0; number < count; ++number) {
    const pid_t child = fork();
    if (child == 0) {
      int status = 0;
      try {
        Task task = make(number);
        task.prepare();
        gate->ready.fetch_add(1);
        while (gate->ready.load() < count) {
        }
        const auto begin = std::chrono::steady_clock::now();
        task.work();
        gate->seconds[number] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "process %d: %s\n", number, error.what());
        gate->ready.fetch_add(count);  // the others must not wait for this one
        status = 1;
      }
      _exit(status);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::vector<double> seconds(gate->seconds, gate->seconds + count);
  munmap(gate, sizeof(Gate));
  return good ? seconds : std::vector<double>();
}

}  // namespace ps::bench
