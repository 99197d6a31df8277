// Short waits: a launch until its effect is seen, and a stream that waits for a word of another process, against a
// processor that waits for it and launches then.
#include <memory>

#include "on_gpu.hpp"
#include "shm/base/atomic.hpp"

namespace ps_shm::bench {
namespace {

// One page between this process and the writer.
struct Words {
  shm::AtomicShm<std::uint32_t> asked, word;
  shm::AtomicShm<double> written_at;  // the clock is the machine's
};

// The second process: stores each number that is asked for, a little later, and when.
[[noreturn]] void write_what_is_asked(Words& words) {
  for (std::uint32_t number = 1;; ++number) {
    while (words.asked.load_acquire() != number) spin_pause();
    const double until = now_seconds() + 100e-6;
    while (now_seconds() < until) spin_pause();
    words.written_at.store_relaxed(now_seconds());
    words.word.store_release(number);
  }
}

// The smallest kernel there is: sends four bytes and sets a flag behind them.
class Flag {
 public:
  explicit Flag(const device::OwnStream& stream)
      : stream_(stream), value_(cuda(), 1), landing_(cuda(), 1), piece_(cuda(), 1), flag_(cuda(), 1) {
    *piece_.on_host() = {.from = value_.on_device(), .to = landing_.on_device(), .count = 1, .pad = 0};
  }
  void launch() {
    flag_.on_host()->store_release(0);
    check(kernels().send_pieces(piece_.on_device(), 1, reinterpret_cast<std::uint32_t*>(flag_.on_device()), false,
                                nullptr, kernels::kSenders, stream_.get()),
          "launch a kernel");
  }
  bool is_set() const noexcept { return flag_.on_host()->load_acquire() == 1; }

 private:
  const device::OwnStream& stream_;
  device::DeviceMemory<float> value_;
  device::PinnedMemory<float> landing_;
  device::PinnedMemory<kernels::SentPiece> piece_;
  device::PinnedMemory<shm::AtomicShm<std::uint32_t>> flag_;
};

void require(bool fact, const char* otherwise) {
  if (!fact) throw std::runtime_error(otherwise);
}

}  // namespace

Json waits(const SectionOptions& options) {
  const double patience = 2.0 * options.patience;  // seconds; a wait takes microseconds
  const SharedBytes memory(sizeof(Words));
  Words& words = *memory.as<Words>();
  const Helper writer([&] { write_what_is_asked(words); });
  begin_gpu();
  const device::OwnStream stream(cuda());
  Flag flag(stream);
  const Registered registered(memory.as<void>(), 4096);
  auto* const word_on_device = &registered.on_device<Words>()->word;
  std::uint32_t number = 0;

  const auto launched = [&] {
    return seconds_of([&] {
      flag.launch();
      require(comes_true(patience, [&] { return flag.is_set(); }), "a kernel's flag was not seen");
    });
  };
  const auto synchronized = [&] {
    return seconds_of([&] {
      flag.launch();
      check(cuda().synchronize(stream.get()), "finish its work");
    });
  };
  const auto by_processor = [&] {
    words.asked.store_release(++number);
    require(comes_true(patience, [&] { return words.word.load_acquire() == number; }), "the writer says nothing");
    flag.launch();
    require(comes_true(patience, [&] { return flag.is_set(); }), "a kernel's flag was not seen");
    return now_seconds() - words.written_at.load_relaxed();
  };
  const auto by_stream = [&] {
    check(cuda().wait_value(stream.get(), word_on_device, ++number), "wait for a word");
    flag.launch();
    require(!flag.is_set(), "the stream did not wait for the word");
    words.asked.store_release(number);
    const bool came = comes_true(patience, [&] { return flag.is_set(); });
    const double now = now_seconds();
    require(comes_true(patience, [&] { return words.word.load_acquire() == number; }), "the writer says nothing");
    require(came, "the stream does not see what another process stores");
    return now - words.written_at.load_relaxed();
  };

  std::vector<std::function<double()>> turns{launched, synchronized, by_processor};
  const bool can_wait = cuda().can_wait_value();
  if (can_wait) turns.emplace_back(by_stream);
  const std::vector<Times> times = take_turns(options.quick ? 50 : 1000, options.quick ? 1 : 5, turns);
  Json found = {{"launch_until_flag_us", microseconds(times[0])},
                {"launch_until_synchronized_us", microseconds(times[1])},
                {"word_until_flag_by_processor_us", microseconds(times[2])}};
  found["stream_waits_for_other_process"] = can_wait;
  if (can_wait) found["word_until_flag_by_stream_us"] = microseconds(times[3]);
  return found;
}

}  // namespace ps_shm::bench
