#include "shm/segment/truncation.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "shm/segment/layout.hpp"

namespace ps_shm::shm {
namespace {

// An entry is valid once `begin` is set, which is stored after `end`. The handler, in whichever thread, therefore
// never finds an incomplete entry. There are enough for several views of a job with all possible shards; a mapping
// without an entry is not protected.
struct Place {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> taken{false}, has_missed_pages{false};
};
constexpr int kPlaces = 256;
constinit Place places[kPlaces];
std::size_t page_bytes = kPage;  // of this machine, as of survive_truncation()
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free, "a signal handler must not wait");

void on_bus_error(int number, siginfo_t* info, void*) {
  const int before = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Place& place : places) {
    const std::uintptr_t begin = place.begin.load(std::memory_order_acquire);  // (truncation.T1) `end` with it
    if (begin == 0 || address < begin || address >= place.end.load(std::memory_order_relaxed)) continue;
    void* page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
    if (mmap(page, page_bytes, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
    place.has_missed_pages.store(true, std::memory_order_relaxed);  // relaxed: the reader itself is interrupted here
    errno = before;
    return;
  }
  signal(number, SIG_DFL);  // the access is repeated, and ends the process
  errno = before;
}

}  // namespace

void survive_truncation() noexcept {
  page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

TruncationWatch::TruncationWatch(const void* address, std::size_t bytes) noexcept {
  for (int i = 0; i < kPlaces; ++i) {
    Place& place = places[i];
    if (place.taken.exchange(true, std::memory_order_acq_rel)) continue;  // (truncation.T2) pairs with the destructor
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    place.has_missed_pages.store(false, std::memory_order_relaxed);
    place.end.store(begin + bytes, std::memory_order_relaxed);
    place.begin.store(begin, std::memory_order_release);  // (truncation.T1) pairs with the handler
    place_ = i;
    return;
  }
}

TruncationWatch::TruncationWatch(TruncationWatch&& other) noexcept : place_(std::exchange(other.place_, -1)) {}

TruncationWatch& TruncationWatch::operator=(TruncationWatch&& other) noexcept {
  std::swap(place_, other.place_);
  return *this;
}

TruncationWatch::~TruncationWatch() {
  if (place_ < 0) return;
  places[place_].begin.store(0, std::memory_order_relaxed);
  places[place_].taken.store(false, std::memory_order_release);  // (truncation.T2)
}

bool TruncationWatch::has_missed_pages() const noexcept {
  return place_ >= 0 && places[place_].has_missed_pages.load(std::memory_order_relaxed);
}

}  // namespace ps_shm::shm
