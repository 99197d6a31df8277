// publish/<who>/floats:<n>: GB/s at which one process gives a model of four tensors to others as a whole, beside memcpy of
// as many bytes to shared pages. publish/<who>_beside_reader: the same while another process copies the newest model all
// the time; read_none: the share of its reads that got nothing. lease/...: ns to take the newest generation and to give
// it back.
//
// Rivals: a robust mutex around the model, and a sequence number around the whole of it, which readers check (seqlock).
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cases.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/base/atomic.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::uint64_t kTensors = 4;
constexpr std::uint64_t kSizes[] = {1'000, 1'000'000, 16'777'216};  // 4 KB, 4 MB, 64 MiB

BundleSpec spec_of(std::uint64_t floats) {
  static int number = 0;
  BundleSpec spec{.name = fmt::format("bench-{}-{}", getpid(), number++), .tensors = {}, .subscribers = 2};
  for (std::uint64_t tensor = 0; tensor < kTensors; ++tensor)
    spec.tensors.push_back({.name = fmt::format("t{}", tensor), .shape = {floats / kTensors}});
  return spec;
}

// A publication's name; what the measured processes have left of it goes with this object, in the process that made it.
struct PublicationEnd {
  explicit PublicationEnd(std::uint64_t floats) : spec(spec_of(floats)) {}
  ~PublicationEnd() { shm::unlink_segment(shm::bundle_name(spec.name)); }
  PublicationEnd(const PublicationEnd&) = delete;
  PublicationEnd& operator=(const PublicationEnd&) = delete;
  BundleSpec spec;
};

// Tensor by tensor, as all do here: what the library's memcpy does depends on the size of a call.
void copy_model(float* out, const float* in, std::uint64_t floats) {
  const std::uint64_t each = floats / kTensors;
  for (std::uint64_t tensor = 0; tensor < kTensors; ++tensor)
    std::memcpy(out + tensor * each, in + tensor * each, each * sizeof(float));
}

// A model in shared memory, written and read as a whole.
class Model {
 public:
  virtual ~Model() = default;
  virtual void write(const float* values) = 0;
  virtual bool read(float* out) = 0;  // false: the writer left it no time
};

class LockedModel : public Model {
 public:
  explicit LockedModel(std::uint64_t floats) : floats_(floats), lock_(sizeof(pthread_mutex_t)), values_(4 * floats) {
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex(), &shared);
  }
  void write(const float* values) override {
    pthread_mutex_lock(mutex());
    copy_model(values_.as<float>(), values, floats_);
    pthread_mutex_unlock(mutex());
  }
  bool read(float* out) override {
    pthread_mutex_lock(mutex());
    copy_model(out, values_.as<float>(), floats_);
    pthread_mutex_unlock(mutex());
    return true;
  }

 private:
  pthread_mutex_t* mutex() const { return lock_.as<pthread_mutex_t>(); }
  std::uint64_t floats_;
  SharedBytes lock_, values_;
};

class SequencedModel : public Model {
 public:
  explicit SequencedModel(std::uint64_t floats) : floats_(floats), sequence_(64), values_(4 * floats) {}
  void write(const float* values) override {
    auto& sequence = *sequence_.as<shm::AtomicShm<std::uint64_t>>();
    sequence.bump_relaxed(1);
    shm::fence_release();
    copy_model(values_.as<float>(), values, floats_);
    sequence.store_release(sequence.load_relaxed() + 1);
  }
  bool read(float* out) override {
    auto& sequence = *sequence_.as<shm::AtomicShm<std::uint64_t>>();
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::uint64_t before = sequence.load_acquire();
      if (before % 2 != 0) continue;
      copy_model(out, values_.as<float>(), floats_);  // floats: any bits are harmless (shm/base/racing.hpp)
      shm::fence_acquire();
      if (sequence.load_relaxed() == before) return true;
    }
    return false;
  }

 private:
  std::uint64_t floats_;
  SharedBytes sequence_, values_;
};

class PlainModel : public Model {
 public:
  explicit PlainModel(std::uint64_t floats) : floats_(floats), values_(4 * floats) {}
  void write(const float* values) override { copy_model(values_.as<float>(), values, floats_); }
  bool read(float* out) override { return copy_model(out, values_.as<float>(), floats_), true; }

 private:
  std::uint64_t floats_;
  SharedBytes values_;
};

// Each process has its own end of it: the first one to write publishes, the first one to read subscribes.
class PublishedModel : public Model {
 public:
  explicit PublishedModel(std::uint64_t floats) : floats_(floats), publication_(floats) {}
  void write(const float* values) override {
    if (!publisher_) publisher_.emplace(publication_.spec);
    const auto written = publisher_->publish([&](std::uint32_t tensor, std::span<std::byte> out) {
      std::memcpy(out.data(), values + tensor * (floats_ / kTensors), out.size());
    });
    if (!written) throw std::runtime_error("every record is in use");
  }
  bool read(float* out) override {
    if (!subscriber_) subscriber_.emplace(publication_.spec.name);
    const Generation newest = subscriber_->read();
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      const auto in = newest.tensor(tensor);
      std::memcpy(out + tensor * (floats_ / kTensors), in.data(), in.size());
    }
    return true;
  }

 private:
  std::uint64_t floats_;
  PublicationEnd publication_;
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
};

using MakeModel = std::unique_ptr<Model> (*)(std::uint64_t floats);
template <class Kind>
std::unique_ptr<Model> make(std::uint64_t floats) {
  return std::make_unique<Kind>(floats);
}

Work write_work(const std::shared_ptr<Model>& model, std::uint64_t floats) {
  auto values = std::make_shared<PrivateFloats>(floats, 1.0F);
  const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
    for (std::uint64_t round = 0; round < count; ++round) model->write(values->data());
    return 0;
  };
  return {.prepare = [=] { rounds(8); }, .rounds = rounds};  // every slot has been touched then
}

Work read_work(const std::shared_ptr<Model>& model, std::uint64_t floats) {
  auto out = std::make_shared<PrivateFloats>(floats);
  const auto rounds = [=](std::uint64_t count) {
    std::uint64_t none = 0;
    for (std::uint64_t round = 0; round < count; ++round) none += model->read(out->data()) ? 0 : 1;
    return none;
  };
  return {.prepare = [=] { rounds(1); }, .rounds = rounds};
}

double write_rate(MakeModel make_model, std::uint64_t floats) {
  const std::shared_ptr<Model> model = make_model(floats);
  return sum_of_rates(run_processes(1, span_for(floats, 1), [&](int) { return write_work(model, floats); }));
}

Figures publish(MakeModel make_model, std::uint64_t floats) {
  const double limit = write_rate(make<PlainModel>, floats), rate = write_rate(make_model, floats);
  return rate_with_limit("GB/s", gigabytes_per_second(floats, rate), gigabytes_per_second(floats, limit));
}

Figures publish_beside_reader(MakeModel make_model, std::uint64_t floats) {
  const auto run = [&](MakeModel of) {
    const std::shared_ptr<Model> model = of(floats);
    return run_processes(2, span_for(floats, 2), [&](int number) {
      return number == 0 ? write_work(model, floats) : read_work(model, floats);
    });
  };
  const auto limit = run(make<PlainModel>), ran = run(make_model);
  Figures figures = rate_with_limit("GB/s", gigabytes_per_second(floats, ran[0].rate()),
                                    gigabytes_per_second(floats, limit[0].rate()));
  const double none = double(ran[1].retries) / double(ran[1].rounds);
  figures.push_back({"read_GB/s", gigabytes_per_second(floats, ran[1].rate()) * (1 - none)});
  figures.push_back({"read_none", none});
  return figures;
}

// Takes the newest generation and gives it back; the model is small, so that nothing else counts.
Figures lease(bool is_beside_publisher) {
  const PublicationEnd publication(1'000);
  Publisher publisher(publication.spec);
  const auto write = [](std::uint32_t, std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); };
  publisher.publish(write);
  std::optional<Helper> other;
  if (is_beside_publisher) {
    { const Publisher gone = std::move(publisher); }
    other.emplace([&] {
      Publisher own(publication.spec);
      for (;;) own.publish(write);
    });
  }
  const auto ran = run_processes(1, span_for(1, 1), [&](int) -> Work {
    auto subscriber = std::make_shared<Subscriber>(publication.spec.name);
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      for (std::uint64_t round = 0; round < count; ++round)
        if (!subscriber->try_read()) throw std::runtime_error("no generation");
      return 0;
    };
    return {.prepare = [=] { static_cast<void>(subscriber->read()); }, .rounds = rounds};
  });
  return {{"ns", 1e9 / sum_of_rates(ran)}};
}

}  // namespace

void add_publish_cases() {
  const std::pair<const char*, MakeModel> kinds[] = {{"publication", make<PublishedModel>},
                                                     {"mutex", make<LockedModel>},
                                                     {"seqlock", make<SequencedModel>},
                                                     {"memcpy", make<PlainModel>}};
  for (const auto& [who, make_model] : kinds)
    for (const std::uint64_t said : kSizes) {
      add_case(fmt::format("publish/{}/floats:{}", who, said),
               [=, make_model = make_model] { return publish(make_model, floats_of(said)); });
      add_case(fmt::format("publish/{}_beside_reader/floats:{}", who, said),
               [=, make_model = make_model] { return publish_beside_reader(make_model, floats_of(said)); });
    }
  add_case("lease/alone", [] { return lease(false); });
  add_case("lease/beside_publisher", [] { return lease(true); });
}

}  // namespace ps_shm::bench
