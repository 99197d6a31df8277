// Damaged publications: every word altered, every length truncated. A process that inspects, reads or takes over works
// or gets an Error: never a signal, never a hang.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "support/hostile.hpp"
#include "support/test_bundle.hpp"

namespace {

using namespace ps_shm;
using test::Bytes;
using test::SegmentFile;

constexpr unsigned kSeconds = 60;  // for one case, which takes milliseconds

// A publication with a history: generations, a dead subscriber's lease, a publisher that died.
struct PastPublication {
  test::PublicationName name;
  BundleSpec spec = test::bundle_of(name);
  Bytes healthy;

  PastPublication() {
    spec.records = 4;
    Publisher publisher(spec);
    for (int i = 0; i < 5; ++i) test::publish_next(publisher);
    Subscriber subscriber(name.text());
    const Generation held = subscriber.read();
    test::publish_next(publisher);
    healthy = SegmentFile(name.file()).read();
  }

  // Of all words before the tensors' values. What lies between these areas is padding up to a page.
  std::vector<std::size_t> offsets() const {
    const shm::BundlePlaces places(3, spec.subscribers, spec.records, spec.writers);
    std::vector<std::size_t> all;
    const auto add = [&](std::size_t begin, std::size_t end) {
      for (std::size_t offset = begin; offset < end; offset += 4) all.push_back(offset);
    };
    add(0, shm::kNewestOffset + sizeof(shm::NewestShm));
    add(shm::kWaitersOffset, shm::kSubscribersOffset + spec.subscribers * sizeof(shm::SubscriberShm));
    add(places.tensors, places.records + spec.records * places.record_stride);
    return all;
  }

  template <class Damage>
  void damage(Damage&& how) const {
    shm::unlink_segment(name.file());
    const SegmentFile file(name.file(), O_RDWR | O_CREAT);
    file.replace(healthy);
    how(file);
  }
  template <class Damage>
  void use(Damage&& how) const {
    damage(how);
    test::use_publication(spec);
  }
};

void report(const test::Cases& cases, std::size_t count, const auto& name_of) {
  for (const auto& wrong : cases.wrong) FAIL_CHECK(fmt::format("{}: {}", name_of(wrong.number), wrong.reason));
  if (cases.wrong.empty()) CHECK(cases.worked + cases.refused == count);
}

}  // namespace

TEST_CASE("hostile publication: without damage it works") {
  const PastPublication past;
  const test::Cases cases(1, kSeconds, [&](std::size_t) { past.use([](const SegmentFile&) {}); });
  CHECK(cases.worked == 1);
}

TEST_CASE("hostile publication: any word altered") {
  const PastPublication past;
  constexpr std::uint64_t kValues[] = {0, 1, 0xff, 0x7fffffff, ~std::uint64_t{0}, std::uint64_t{1} << 40};
  struct Case {
    std::size_t offset;
    std::uint64_t value;
  };
  std::vector<Case> all;
  for (const std::size_t offset : past.offsets())
    for (const std::uint64_t value : kValues) all.push_back({offset, value});
  const test::Cases cases(all.size(), kSeconds, [&](std::size_t i) {
    past.use([&](const SegmentFile& file) { file.write(all[i].offset, &all[i].value, i % 2 == 0 ? 4 : 8); });
  });
  report(cases, all.size(), [&](std::size_t i) { return fmt::format("at {}: {:#x}", all[i].offset, all[i].value); });
  CHECK(cases.refused != 0);
}

TEST_CASE("hostile publication: any word of a round altered") {
  const test::PublicationName name;
  const BundleSpec spec{
      .name = name.text(), .tensors = {{.name = "w", .shape = {8}}}, .subscribers = 1, .records = 4, .writers = 1};
  const auto publish = [&spec](double seconds) {
    const std::vector<float> values(8, 1.0F);
    Publisher publisher(spec, {.wait = Seconds(0.001), .plan = {{{0, {0}, {8}}}}, .writer = 0});
    const auto write = [&](std::uint32_t, Publisher::SliceOutput& out) { out.write_floats(values); };
    for (std::uint64_t step = 1; step <= 3; ++step) publisher.publish_slices(write, step, Seconds(seconds));
  };
  Bytes healthy;
  {
    publish(60);
    Publisher publisher(spec, {.plan = {{{0, {0}, {8}}}}, .writer = 0});
    healthy = SegmentFile(name.file()).read();
  }
  const shm::BundlePlaces places(1, spec.subscribers, spec.records, spec.writers);
  constexpr std::uint64_t kValues[] = {0, 1, 0xff, 0x7fffffff, ~std::uint64_t{0}, std::uint64_t{1} << 40};
  const std::size_t words = (sizeof(shm::RoundShm) + sizeof(shm::WriterShm)) / 4, count = words * std::size(kValues);
  const test::Cases cases(count, kSeconds, [&](std::size_t i) {
    shm::unlink_segment(name.file());
    const SegmentFile file(name.file(), O_RDWR | O_CREAT);
    file.replace(healthy);
    file.write(places.round + i % words * 4, &kValues[i / words], i % 2 == 0 ? 4 : 8);
    publish(0.001);
  });
  report(cases, count, [&](std::size_t i) { return fmt::format("word {}: {:#x}", i % words, kValues[i / words]); });
}

TEST_CASE("hostile publication: truncated to any length") {
  const PastPublication past;
  std::vector<std::size_t> lengths = {0, 1, 8, 511, 512, 513, 4095, 4096, past.healthy.size() - 1};
  for (std::size_t length = 64; length < past.healthy.size(); length += 320) lengths.push_back(length);
  const test::Cases cases(lengths.size(), kSeconds,
                          [&](std::size_t i) { past.use([&](const SegmentFile& file) { file.cut(lengths[i]); }); });
  report(cases, lengths.size(), [&](std::size_t i) { return fmt::format("cut to {}", lengths[i]); });
  CHECK(cases.worked == 0);
}

TEST_CASE("hostile publication: truncated, with a header that matches the new length") {
  const PastPublication past;
  past.damage([](const SegmentFile& file) {
    const std::uint64_t bytes = sizeof(shm::HeaderShm);
    file.write(offsetof(shm::HeaderShm, initial_bytes), &bytes, sizeof bytes);
    file.cut(bytes);
  });
  CHECK_THROWS_WITH_AS(Subscriber(past.name.text(), test::hasty()), doctest::Contains("it has been truncated"), Error);
}
