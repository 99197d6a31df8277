#include "support/fake_cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "shm/base/atomic.hpp"
#include "support/device_memory.hpp"

namespace ps_shm::test {

using namespace device;
using Clock = std::chrono::steady_clock;

struct FakeCuda::FakeEvent {
  struct Moment {
    bool done = false;
    Clock::time_point time;
  };
  // an event that was never recorded counts as complete
  std::shared_ptr<Moment> last = std::make_shared<Moment>(Moment{true, {}});
};

struct FakeCuda::FakeGraph {
  std::vector<Work> work;
  bool was_launched = false;
};

struct FakeCuda::FakeStream final : on_cpu::Queue {
  FakeCuda& cuda;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  std::uint64_t enqueued = 0, done = 0;
  bool is_running = false, is_ending = false, is_capturing = false, is_capture_spoilt = false;
  std::atomic<bool> is_at_word{false};
  std::vector<Work> captured;
  CudaError error = kSuccess;
  std::thread thread;

  explicit FakeStream(FakeCuda& owner) : cuda(owner) {}

  cudaError_t enqueue(Work work, const void* kernel) override {
    cuda.before_launch(kernel);
    return static_cast<cudaError_t>(cuda.enqueue(handle(), std::move(work)));
  }
  Stream handle() { return reinterpret_cast<Stream>(static_cast<on_cpu::Queue*>(this)); }

  // An operation that waits for the stream cannot be captured: it invalidates the capture. The caller holds the mutex.
  CudaError refuse_in_capture() {
    if (!is_capturing) return kSuccess;
    is_capture_spoilt = true;
    return kCaptureUnsupported;
  }

  void run() {
    unlock_device_memory();
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return is_ending || !queue.empty(); });
      if (queue.empty()) return;
      const Work work = std::move(queue.front());
      queue.pop_front();
      is_running = true;
      const bool skip = error != kSuccess;
      lock.unlock();
      CudaError found = kSuccess;
      if (!skip) try {
          work();
        } catch (const CudaError number) {
          found = number;
        }
      lock.lock();
      if (found != kSuccess) error = found;
      is_running = false;
      ++done;
      changed.notify_all();
    }
  }

  bool is_abandoned() {
    const std::lock_guard lock(mutex);
    return is_ending;
  }
};

FakeCuda::FakeCuda(const FakeBox& box) : box_(box) {}

FakeCuda::~FakeCuda() {
  while (!streams_.empty()) destroy_stream(streams_.back()->handle());
  for (const Range& range : ranges_) drop_device_memory(range.device, range.bytes);
}

FakeCuda::FakeStream& FakeCuda::of(Stream stream) {
  return static_cast<FakeStream&>(*reinterpret_cast<on_cpu::Queue*>(stream));
}

void FakeCuda::fail(const std::string& call, int n, CudaError error) {
  const std::lock_guard lock(mutex_);
  failures_.emplace(call, std::pair(n, error));
}

void FakeCuda::break_device(CudaError error) {
  const std::lock_guard lock(mutex_);
  broken_ = error;
}

std::vector<std::string> FakeCuda::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::size_t FakeCuda::count(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      calls_.begin(), calls_.end(), [&](const std::string& line) { return line.substr(0, line.find(' ')) == call; }));
}

std::vector<std::string> FakeCuda::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

std::size_t FakeCuda::live_allocations() const {
  const std::lock_guard lock(mutex_);
  return ranges_.size() + streams_.size() + events_.size() + graphs_.size();
}

std::size_t FakeCuda::bytes_to_host() const {
  const std::lock_guard lock(mutex_);
  return to_host_;
}

void FakeCuda::note_sent(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  to_host_ += bytes;
}

CudaError FakeCuda::enter(const std::string& call, const std::string& arguments) {
  const std::lock_guard lock(mutex_);
  if (!box_.is_simulated) calls_.push_back(arguments.empty() ? call : call + ' ' + arguments);
  const auto [begin, end] = failures_.equal_range(call);
  for (auto failure = begin; failure != end; ++failure)
    if (failure->second.first-- == 0) return pending_ = failure->second.second;
  return kSuccess;
}

std::string FakeCuda::error_text(CudaError error) { return fmt::format("fake error {}", error); }

CudaError FakeCuda::last_error() {
  static_cast<void>(enter("last_error"));
  const std::lock_guard lock(mutex_);
  return std::exchange(pending_, kSuccess);
}

CudaError FakeCuda::set_device(int device) {
  if (const CudaError error = enter("set_device", fmt::to_string(device))) return error;
  return device >= 0 && device < box_.devices ? kSuccess : kInvalidDevice;
}

CudaError FakeCuda::yield_in_waits(int device) {
  if (const CudaError error = enter("yield_in_waits", fmt::to_string(device))) return error;
  return device >= 0 && device < box_.devices ? kSuccess : kInvalidDevice;
}

// Waits as the real calls do, which is why nothing may be released while a stream waits for its own thread.
void FakeCuda::wait_for_all(const char* call) {
  std::vector<std::shared_ptr<FakeStream>> all;
  {
    const std::lock_guard lock(mutex_);
    all = streams_;
  }
  for (const std::shared_ptr<FakeStream>& stream : all) wait_for(*stream, call);
}

void FakeCuda::wait_for(FakeStream& stream, const char* call) {
  std::unique_lock lock(stream.mutex);
  const std::uint64_t now = stream.enqueued;
  for (bool is_stuck = false; !is_stuck;) {
    const std::uint64_t before = stream.done;
    if (stream.changed.wait_for(lock, std::chrono::seconds(5), [&] { return stream.done >= now; })) return;
    is_stuck = stream.is_at_word && stream.done == before;
  }
  lock.unlock();
  const std::lock_guard guard(mutex_);
  faults_.push_back(fmt::format("{} while a stream waits", call));
}

void FakeCuda::note_loaded(const void* kernel) {
  const std::lock_guard lock(mutex_);
  loaded_.insert(kernel);
}

void FakeCuda::before_launch(const void* kernel) {
  if (kernel == nullptr || box_.is_simulated) return;
  {
    const std::lock_guard lock(mutex_);
    if (!loaded_.insert(kernel).second) return;
  }
  static_cast<void>(enter("first_launch"));
  wait_for_all("the first launch of a kernel");
}

CudaError FakeCuda::create_stream(Stream& stream) {
  if (const CudaError error = enter("create_stream")) return error;
  auto made = std::make_shared<FakeStream>(*this);
  made->thread = std::thread([s = made.get()] { s->run(); });
  stream = made->handle();
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::move(made));
  return kSuccess;
}

CudaError FakeCuda::destroy_stream(Stream stream) {
  auto* fake = &of(stream);
  {
    const std::lock_guard lock(fake->mutex);
    fake->is_ending = true;
  }
  fake->changed.notify_all();
  fake->thread.join();
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [&](const auto& one) { return one.get() == fake; });
  return kSuccess;
}

CudaError FakeCuda::status_of(FakeStream& stream) { return stream.error; }

CudaError FakeCuda::synchronize(Stream stream) {
  const CudaError error = enter("synchronize");
  auto& fake = of(stream);
  std::unique_lock lock(fake.mutex);
  if (const CudaError refused = fake.refuse_in_capture()) return refused;
  fake.changed.wait(lock, [&] { return fake.queue.empty() && !fake.is_running; });
  return error != kSuccess ? error : status_of(fake);
}

CudaError FakeCuda::query(Stream stream) {
  auto& fake = of(stream);
  const std::lock_guard lock(fake.mutex);
  if (const CudaError refused = fake.refuse_in_capture()) return refused;
  if (fake.error != kSuccess) return fake.error;
  return fake.queue.empty() && !fake.is_running ? kSuccess : kNotReady;
}

CudaError FakeCuda::enqueue(Stream stream, Work work) {
  auto& fake = of(stream);
  CudaError broken = kSuccess;
  {
    const std::lock_guard lock(mutex_);
    broken = broken_;
  }
  const std::lock_guard lock(fake.mutex);
  if (fake.error != kSuccess) return fake.error;
  if (broken != kSuccess) work = [broken] { throw broken; };
  if (fake.is_capturing) {
    fake.captured.push_back(std::move(work));
  } else {
    fake.queue.push_back(std::move(work));
    ++fake.enqueued;
    fake.changed.notify_all();
  }
  return kSuccess;
}

CudaError FakeCuda::create_event(bool, Event& event) {
  if (const CudaError error = enter("create_event")) return error;
  const std::lock_guard lock(mutex_);
  event = reinterpret_cast<Event>(events_.emplace_back(std::make_unique<FakeEvent>()).get());
  return kSuccess;
}

CudaError FakeCuda::destroy_event(Event event) {
  const std::lock_guard lock(mutex_);
  std::erase_if(events_, [&](const auto& one) { return one.get() == reinterpret_cast<FakeEvent*>(event); });
  return kSuccess;
}

CudaError FakeCuda::record(Event event, Stream stream) {
  if (const CudaError error = enter("record")) return error;
  auto moment = std::make_shared<FakeEvent::Moment>();
  {
    const std::lock_guard lock(mutex_);
    reinterpret_cast<FakeEvent*>(event)->last = moment;
  }
  return enqueue(stream, [this, moment] {
    const std::lock_guard lock(mutex_);
    moment->time = Clock::now();
    moment->done = true;
  });
}

CudaError FakeCuda::record_in_graph(Event event, Stream stream) {
  if (const CudaError error = enter("record_in_graph")) return error;
  return enqueue(stream, [this, event] {  // until then the event is that of the launch before, as a device may have it
    auto moment = std::make_shared<FakeEvent::Moment>();
    const std::lock_guard lock(mutex_);
    moment->time = Clock::now();
    moment->done = true;
    reinterpret_cast<FakeEvent*>(event)->last = moment;
  });
}

CudaError FakeCuda::query(Event event) {
  const std::lock_guard lock(mutex_);
  if (broken_ != kSuccess) return broken_;
  if (reinterpret_cast<FakeEvent*>(event)->last->done) return kSuccess;
  for (const auto& stream : streams_) {
    const std::lock_guard inner(stream->mutex);
    if (stream->error != kSuccess) return stream->error;
  }
  return kNotReady;
}

CudaError FakeCuda::synchronize(Event event) {
  if (const CudaError error = enter("synchronize")) return error;
  for (;;) {
    if (const CudaError status = query(event); status != kNotReady) return status;
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

CudaError FakeCuda::wait(Stream stream, Event event) {
  if (const CudaError error = enter("wait")) return error;
  std::shared_ptr<FakeEvent::Moment> moment;
  {
    const std::lock_guard lock(mutex_);
    moment = reinterpret_cast<FakeEvent*>(event)->last;
  }
  auto* fake = &of(stream);
  return enqueue(stream, [this, moment, fake] {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (moment->done) return;
      }
      if (fake->is_abandoned()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  });
}

CudaError FakeCuda::elapsed_ms(Event begin, Event end, float& milliseconds) {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<FakeEvent*>(begin)->last, last = reinterpret_cast<FakeEvent*>(end)->last;
  if (!first->done || !last->done) return kNotReady;
  milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return kSuccess;
}

CudaError FakeCuda::wait_value(Stream stream, void* device_word, std::uint32_t value) {
  if (const CudaError error = enter("wait_value", fmt::to_string(value))) return error;
  if (!box_.stream_waits || box_.refuses_waits) return kNotSupported;
  auto* fake = &of(stream);
  return enqueue(stream, [=, this] {
    look_up(device_word, sizeof value, false);
    const auto& word = *static_cast<const shm::AtomicShm<std::uint32_t>*>(device_word);
    fake->is_at_word = true;
    while (static_cast<std::int32_t>(word.load_acquire() - value) < 0 && !fake->is_abandoned())
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    fake->is_at_word = false;
  });
}

CudaError FakeCuda::begin_capture(Stream stream) {
  if (const CudaError error = enter("begin_capture")) return error;
  auto& fake = of(stream);
  const std::lock_guard lock(fake.mutex);
  if (fake.is_capturing) return kInvalidValue;
  fake.is_capturing = true;
  fake.is_capture_spoilt = false;
  fake.captured.clear();
  return kSuccess;
}

CudaError FakeCuda::end_capture(Stream stream, Graph& graph, std::size_t& operations) {
  auto& fake = of(stream);
  std::vector<Work> captured;
  {
    const std::lock_guard lock(fake.mutex);
    if (!fake.is_capturing) return kInvalidValue;
    fake.is_capturing = false;
    if (fake.is_capture_spoilt) return kCaptureInvalidated;
    captured = std::move(fake.captured);
  }
  if (const CudaError error = enter("end_capture")) return error;
  const std::lock_guard lock(mutex_);
  auto& made = graphs_.emplace_back(std::make_unique<FakeGraph>());
  operations = captured.size();
  made->work = std::move(captured);
  graph = reinterpret_cast<Graph>(made.get());
  return kSuccess;
}

CudaError FakeCuda::launch(Graph graph, Stream stream) {
  if (const CudaError error = enter("launch")) return error;
  auto& launched = *reinterpret_cast<FakeGraph*>(graph);
  if (!std::exchange(launched.was_launched, true)) wait_for(of(stream), "the first launch of a graph");
  for (const Work& work : launched.work)
    if (const CudaError error = enqueue(stream, work)) return error;
  return kSuccess;
}

CudaError FakeCuda::destroy_graph(Graph graph) {
  const std::lock_guard lock(mutex_);
  std::erase_if(graphs_, [&](const auto& one) { return one.get() == reinterpret_cast<FakeGraph*>(graph); });
  return kSuccess;
}

}  // namespace ps_shm::test
