#include "../sanitizers.hpp"
#include "grid.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#if defined(__x86_64__)
// Saves the registers that a call must preserve, and the stack; continues where `to` was left.
extern "C" void ps_on_cpu_switch(void** left, void* to);
asm(R"(
.text
.globl ps_on_cpu_switch
.hidden ps_on_cpu_switch
.type ps_on_cpu_switch, @function
ps_on_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ps_on_cpu_switch, .-ps_on_cpu_switch
)");
#else
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace ps_shm::on_cpu {

constinit thread_local Index threadIdx{}, blockIdx{}, blockDim{}, gridDim{};

namespace {

// Kernels need little stack; watchers run on that of the scheduler.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStack = std::size_t{64} << 10;
#else
constexpr std::size_t kStack = std::size_t{16} << 10;
#endif
constexpr unsigned kWarp = 32, kMostThreads = 1024;
constexpr std::size_t kSharedAlignment = 128;

enum class State { kReady, kAtBarrier, kInExchange, kDone };

// The point at which a fiber, or the scheduler, continues.
struct Place {
#if defined(__x86_64__)
  void* stack = nullptr;
#else
  ucontext_t context;
#endif
};

struct Fiber {
  Place place;
  State state = State::kDone;
  int line = 0;  // where it waits
  std::uint32_t value = 0;
  unsigned apart = 0;
  Index index{};
};

unsigned order_of_turns() {
  const char* wanted = std::getenv("PS_SHM_CUDA_ON_CPU_ORDER");
  return wanted == nullptr ? 0U : static_cast<unsigned>(std::strtoul(wanted, nullptr, 10));
}

// Memory mapped at these addresses later is not a stack: the sanitizer must forget the frames that it knew.
void drop_stacks(void* stacks, std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stacks, bytes);
#endif
  munmap(stacks, bytes);
}

// The block that an OS thread runs.
struct Block {
  std::vector<Fiber> fibers;
  std::vector<std::size_t> turns;
  std::size_t turn = 0;  // number of fibers of this round that have been considered
  std::byte* stacks = nullptr;
  std::size_t stack_count = 0;
  Place scheduler;
  Fiber* current = nullptr;
  const std::function<void()>* thread = nullptr;
  bool fact_now = false, fact_then = false;  // of the barrier that fibers are reaching; of the previous one
  const unsigned order = order_of_turns();
  std::mt19937 random{order};
  Watcher watcher;
  const Noted* noted = nullptr;  // by the fiber that has its turn, for the watcher
  std::vector<std::byte> shared;
#if defined(__SANITIZE_ADDRESS__)
  const void* scheduler_bottom = nullptr;
  std::size_t scheduler_size = 0;
#endif

  ~Block() {
    if (stacks != nullptr) drop_stacks(stacks, stack_count * kStack);
  }
  bool is_random() const { return order > 1; }
};
constinit thread_local Block* block = nullptr;

Block& use_block() {
  static thread_local Block own;
  block = &own;
  return own;
}

Loader& loader_of_thread() {
  static thread_local Loader loader;
  return loader;
}

void go(Place& from, Place& to) {
#if defined(__x86_64__)
  ps_on_cpu_switch(&from.stack, to.stack);
#else
  swapcontext(&from.context, &to.context);
#endif
}

// The fiber whose turn is next in this round; nullptr: the round is over.
Fiber* next_turn() {
  while (block->turn < block->turns.size()) {
    Fiber& fiber = block->fibers[block->turns[block->turn++]];
    if (fiber.state != State::kReady) continue;
    block->current = &fiber;
    threadIdx = fiber.index;
    return &fiber;
  }
  return nullptr;
}

// Continues with the next fiber, or the scheduler. The address sanitizer is informed only of switches to and from the
// scheduler.
void end_turn([[maybe_unused]] bool is_done) {
  Fiber& self = *block->current;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(is_done ? nullptr : &fake_stack, block->scheduler_bottom, block->scheduler_size);
  go(self.place, block->scheduler);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  Fiber* const next = block->noted == nullptr ? next_turn() : nullptr;
  if (next == &self) return;
  go(self.place, next != nullptr ? next->place : block->scheduler);
#endif
}

// The entry point of a fiber.
void live() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &block->scheduler_bottom, &block->scheduler_size);
#endif
  (*block->thread)();
  block->current->state = State::kDone;
  end_turn(true);
  std::abort();  // a finished fiber gets no more turns
}

void begin_life(Fiber& fiber, std::size_t number) {
  std::byte* const bottom = block->stacks + number * kStack;
#if defined(__SANITIZE_ADDRESS__)
  // frames of the previous fiber, which never returned
  __asan_unpoison_memory_region(bottom + kStack - (8 << 10), 8 << 10);
#endif
#if defined(__x86_64__)
  // Staggers the stacks: at equal offsets, they would compete for the same few cache lines.
  auto* top = reinterpret_cast<void**>(bottom + kStack - number % 32 * 128);
  *--top = nullptr;  // aligned as after a call
  *--top = reinterpret_cast<void*>(&live);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.place.stack = top;
#else
  getcontext(&fiber.place.context);
  fiber.place.context.uc_stack.ss_sp = bottom;
  fiber.place.context.uc_stack.ss_size = kStack;
  makecontext(&fiber.place.context, &live, 0);
#endif
  fiber.state = State::kReady;
  const auto at = static_cast<unsigned>(number);
  fiber.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
}

// Continues the fiber whose turn it is, and those after it. Returns when the scheduler has something to do.
void go_on() {
  for (;;) {
    Fiber& fiber = *block->current;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, block->stacks + (&fiber - block->fibers.data()) * kStack, kStack);
#endif
    go(block->scheduler, fiber.place);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    if (block->noted == nullptr) return;
    block->watcher(*std::exchange(block->noted, nullptr));
  }
}

void put_in_order(std::vector<std::size_t>& turns) {
  if (block->is_random()) std::shuffle(turns.begin(), turns.end(), block->random);
}

std::vector<std::size_t> numbers(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (block->order == 1) std::reverse(all.begin(), all.end());
  return all;
}

// Performs the exchanges of warps whose lanes have all reached one. Returns whether there was any.
bool exchange_values(std::size_t count) {
  bool has_exchanged = false;
  for (std::size_t begin = 0; begin < count; begin += kWarp) {
    const std::size_t end = std::min<std::size_t>(begin + kWarp, count);
    Fiber* const lanes = block->fibers.data() + begin;
    const auto waits = [](const Fiber& lane) { return lane.state == State::kInExchange; };
    if (end - begin < kWarp || !std::all_of(lanes, lanes + kWarp, waits)) continue;
    std::uint32_t values[kWarp];
    for (unsigned i = 0; i < kWarp; ++i) {
      threadIdx = lanes[i].index;
      if (lanes[i].line != lanes[0].line || lanes[i].apart != lanes[0].apart)
        fault("lanes of a warp exchange at different places", lanes[i].line);
      values[i] = lanes[i ^ lanes[i].apart].value;
    }
    for (unsigned i = 0; i < kWarp; ++i) {
      lanes[i].value = values[i];
      lanes[i].state = State::kReady;
    }
    has_exchanged = true;
  }
  return has_exchanged;
}

// Called when all fibers wait or are finished. Returns false if all are finished.
bool pass_barrier(std::size_t count) {
  const Fiber* first = nullptr;
  std::size_t done = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Fiber& fiber = block->fibers[i];
    threadIdx = fiber.index;
    if (fiber.state == State::kInExchange) fault("it waits for lanes of its warp that do not come", fiber.line);
    if (fiber.state == State::kDone) {
      ++done;
      continue;
    }
    if (first != nullptr && first->line != fiber.line) fault("threads wait at different barriers", fiber.line);
    first = &fiber;
  }
  if (first == nullptr) return false;
  if (done != 0) fault("it waits at a barrier, and others have ended", first->line);
  block->fact_then = std::exchange(block->fact_now, false);
  for (std::size_t i = 0; i < count; ++i) block->fibers[i].state = State::kReady;
  return true;
}

void run_block(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) begin_life(block->fibers[i], i);
  for (;;) {
    put_in_order(block->turns);
    bool has_run = false;
    block->turn = 0;
    while (next_turn() != nullptr) {
      has_run = true;
      go_on();
    }
    if (!exchange_values(count) && !has_run && !pass_barrier(count)) return;
  }
}

}  // namespace

void fault(const char* what, int line) {
  std::fprintf(stderr, "kernel fault at line %d, block (%u, %u), thread (%u, %u): %s\n", line, blockIdx.x, blockIdx.y,
               threadIdx.x, threadIdx.y, what);
  std::abort();
}

void watch(Watcher watcher) { use_block().watcher = std::move(watcher); }

void watch_loads(Loader loader) { loader_of_thread() = std::move(loader); }

void load(const void* kernel) {
  if (loader_of_thread()) loader_of_thread()(kernel);
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* kernel) {
  if (stream == nullptr) return cudaErrorInvalidValue;
  return reinterpret_cast<Queue*>(stream)->enqueue(std::move(work), kernel);
}

bool may_launch(dim3 grid, dim3 size) {
  const auto most_of = [](unsigned value, unsigned most) { return value != 0 && value <= most; };
  return most_of(grid.x, 0x7fffffffU) && most_of(grid.y, 0xffffU) && grid.z == 1 && most_of(size.x, kMostThreads) &&
         most_of(size.y, kMostThreads) && most_of(size.z, 64) && std::size_t{size.x} * size.y * size.z <= kMostThreads;
}

void run_grid(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& thread) {
  use_block();
  const std::size_t count = std::size_t{size.x} * size.y * size.z;
  if (block->stack_count < count) {
    if (block->stacks != nullptr) drop_stacks(block->stacks, block->stack_count * kStack);
    void* const made =
        mmap(nullptr, count * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) std::abort();
    madvise(made, count * kStack, MADV_HUGEPAGE);  // a block touches all of them at every barrier
    block->stacks = static_cast<std::byte*>(made);
    block->stack_count = count;
    block->fibers.resize(count);
  }
  block->thread = &thread;
  block->turns = numbers(count);
  gridDim = {grid.x, grid.y, grid.z};
  blockDim = {size.x, size.y, size.z};
  block->shared.resize(shared_bytes == 0 ? 0 : shared_bytes + kSharedAlignment);
  std::vector<std::size_t> blocks = numbers(std::size_t{grid.x} * grid.y);
  put_in_order(blocks);
  for (const std::size_t number : blocks) {
    blockIdx = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x), 0};
    std::fill(block->shared.begin(), block->shared.end(), std::byte{0xff});
    run_block(count);
  }
  block->current = nullptr;
}

std::byte* dynamic_shared() {
  std::byte* const begin = block->shared.data();
  return begin + (kSharedAlignment - reinterpret_cast<std::size_t>(begin) % kSharedAlignment) % kSharedAlignment;
}

bool is_made_at_once() { return block->is_random() ? block->random() % 2 == 0 : block->order == 1; }

void note(Access access, const void* address, std::size_t bytes) {
  if (block->watcher) {
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const Noted noted{access, address, bytes, blockIdx.y * gridDim.x + blockIdx.x, thread};
    block->noted = &noted;
    end_turn(false);
  } else if (block->is_random() && block->random() % 32 == 0) {
    end_turn(false);
  }
}

const void* whole(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::size_t>(address) % bytes != 0) fault("a vector access that is not aligned", 0);
  return address;
}

bool meet(int line, bool fact) {
  block->fact_now |= fact;
  block->current->line = line;
  block->current->state = State::kAtBarrier;
  end_turn(false);
  return block->fact_then;
}

std::uint32_t exchange(int line, unsigned mask, std::uint32_t value, unsigned apart) {
  if (mask != 0xffffffffU || apart >= kWarp) fault("an exchange of less than the whole warp", line);
  Fiber& self = *block->current;
  self.line = line;
  self.value = value;
  self.apart = apart;
  self.state = State::kInExchange;
  end_turn(false);
  return self.value;
}

}  // namespace ps_shm::on_cpu
