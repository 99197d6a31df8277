// GpuTable on the fake: the cases of gpu_table_cases.hpp, rows and lists that change at chosen accesses of a kernel, damage,
// what goes through the host, and a failure of each CUDA call.
#include <doctest/doctest.h>

#include <optional>

#include "ps_shm/job_view.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/table_layout.hpp"
#include "support/fake_gpu.hpp"
#include "support/gpu_table_cases.hpp"

using namespace ps_shm;
using on_cpu::Access;
using on_cpu::Noted;
using test::FakeGpu;
using test::Floats;
using test::Keys;
using test::order_of;
using test::TableJob;
using test::TableOnGpu;

namespace {

constexpr std::uint64_t kWidth = 8;

TableSpec small_spec() {
  TableSpec spec = test::spec_of(64, kWidth);
  spec.initial_range = 0;
  return spec;
}

// Keys of one bucket of a new table, in the order of its list.
Keys keys_of_one_bucket(std::size_t count) {
  Keys keys;
  for (std::uint64_t key = 1; keys.size() < count; ++key)
    if (order_of(key) >> 55 == 200) keys.push_back(key);
  std::sort(keys.begin(), keys.end(), [](std::uint64_t a, std::uint64_t b) { return order_of(a) < order_of(b); });
  return keys;
}
// A key behind all of these.
std::uint64_t key_behind() {
  std::uint64_t key = 1;
  while (order_of(key) >> 55 != 300) ++key;
  return key;
}

void assign(Table& table, std::uint64_t key, float value) { table.assign({&key, 1}, Floats(kWidth, value)); }

// A job with a table, its worker on a fake GPU, and another worker that changes the table at an access of a kernel.
struct Scene {
  FakeGpu fake;
  TableJob job{small_spec()};
  Worker other{test::options(job.config)};
  Table table = other.table(small_spec());
  TableOnGpu on_gpu{fake.box, job.worker, job.table};
  shm::Segment segment;

  Scene() {
    REQUIRE(segment.open(shm::table_name(job.config.job, 0, 0), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  }
  shm::TableShm& record() { return *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset); }
  shm::TableRowShm& row(std::uint64_t number) {
    return *reinterpret_cast<shm::TableRowShm*>(segment.data() + record().rows_offset + number * record().row_bytes);
  }
  std::uint64_t number_of(std::uint64_t key) {
    for (std::uint64_t number = 0; number < record().rows_next.load_acquire(); ++number)
      if (row(number).key.load_relaxed() == key &&
          shm::state_of(row(number).word.load_acquire()) == shm::RowState::kLive)
        return number;
    FAIL("no row of the key");
    return 0;
  }
  // Runs `change` once, before the first access of this kind behind `skipped` others.
  void at(Access access, std::size_t bytes, int skipped, std::function<void()> change) {
    fake.cuda.during_keys = [=, this](const Noted& one) mutable {
      if (!change || one.access != access || one.bytes != bytes || skipped-- > 0) return;
      std::exchange(change, nullptr)();
      has_changed = true;
    };
  }
  bool has_changed = false;
};

}  // namespace

TEST_CASE("gpu table: a pull gives the same bits as the CPU's, whatever the rule, width and number of parts") {
  FakeGpu fake;
  test::pulls_keys_as_the_processor_does(fake.box);
  CHECK(fake.cuda.count("pull_keys") > 0);
}

TEST_CASE("gpu table: pushes give the same bits as the CPU's, whatever the rule and number of parts") {
  FakeGpu fake;
  test::pushes_keys_as_the_processor_does(fake.box);
}

TEST_CASE("gpu table: rows that are made while the GPU uses the table are pulled") {
  FakeGpu fake;
  test::follows_a_table_that_grows(fake.box);
}

TEST_CASE("gpu table: no pull has an element of another key, while rows are evicted and made") {
  FakeGpu fake;
  test::pulls_no_row_of_another_key(fake.box, 20);
}

TEST_CASE("gpu table: a row that becomes another key's before or during its copy is pulled by the CPU") {
  for (const int elements : {0, 1, int(kWidth) - 1}) {
    Scene scene;
    const Keys keys = keys_of_one_bucket(2);
    assign(scene.table, keys[0], 5);
    const std::uint64_t number = scene.number_of(keys[0]);
    scene.at(Access::kLoad, sizeof(float), elements, [&] {
      scene.table.evict({&keys[0], 1});
      assign(scene.table, keys[1], 6);
    });
    const auto pulled = scene.on_gpu.pull({keys[0]});
    REQUIRE(scene.has_changed);
    CHECK(scene.number_of(keys[1]) == number);
    CHECK(pulled.is_redone);
    CHECK(pulled.rows == Floats(kWidth, 0.0F));  // its initial values
    CHECK(pulled.found[0] == 0);
    CHECK(scene.on_gpu.rows->transfers().bounced_rows == 1);
  }
}

TEST_CASE("gpu table: a row on the way that becomes another key's does not hide the rows behind it") {
  for (const bool is_at_key : {false, true}) {
    Scene scene;
    const Keys keys = keys_of_one_bucket(2);
    const std::uint64_t far = key_behind();
    assign(scene.table, keys[0], 5);
    assign(scene.table, keys[1], 6);
    const std::uint64_t number = scene.number_of(keys[0]);
    const auto change = [&] {
      scene.table.evict({&keys[0], 1});
      assign(scene.table, far, 7);
    };
    // Accesses of the search: whether the bucket is linked, its word, then the first row's word and key.
    if (is_at_key)
      scene.at(Access::kLoad, sizeof(std::uint64_t), 0, change);
    else
      scene.at(Access::kLoadAcquire, sizeof(std::uint64_t), 2, change);
    const auto pulled = scene.on_gpu.pull({keys[1]});
    REQUIRE(scene.has_changed);
    CHECK(scene.number_of(far) == number);
    CHECK(pulled.found[0] == 1);
    CHECK(pulled.rows == Floats(kWidth, 6.0F));
    CHECK_FALSE(pulled.is_redone);
  }
}

TEST_CASE("gpu table: a path that changes again and again is left to the CPU") {
  Scene scene;
  const Keys keys = keys_of_one_bucket(12);
  assign(scene.table, keys[0], 5);
  assign(scene.table, keys[11], 6);
  std::size_t next = 10, searches = 0;
  scene.fake.cuda.during_keys = [&](const Noted& one) {
    // Before each look at the path there is another row in front of the one that was met.
    if (one.access != Access::kFence || next == 0) return;
    scene.table.evict({&keys[next == 10 ? 0 : next + 1], 1});
    assign(scene.table, keys[next--], 5);
    ++searches;
  };
  const auto pulled = scene.on_gpu.pull({keys[11]});
  CHECK(searches >= 4);
  CHECK(pulled.is_redone);
  CHECK(pulled.found[0] == 1);
  CHECK(pulled.rows == Floats(kWidth, 6.0F));
}

TEST_CASE("gpu table: sealed and new rows are the keys', dead and free ones are left to the CPU") {
  struct State {
    shm::RowState state;
    bool is_bounced, is_found;
  };
  for (const State& one : {State{shm::RowState::kSealed, false, true}, State{shm::RowState::kNew, false, true},
                           State{shm::RowState::kDead, true, false}}) {
    Scene scene;
    const Keys keys = keys_of_one_bucket(2);
    assign(scene.table, keys[0], 5);
    assign(scene.table, keys[1], 6);
    auto& word = scene.row(scene.number_of(keys[0])).word;
    word.store_release(shm::next_word(word.load_acquire(), one.state, shm::reference_of(word.load_acquire())));
    const auto pulled = scene.on_gpu.pull({keys[0]});
    CHECK(pulled.is_redone == one.is_bounced);
    CHECK(pulled.found[0] == one.is_found);
    CHECK(pulled.rows == Floats(kWidth, one.is_found ? 5.0F : 0.0F));
    CHECK(scene.on_gpu.pull({keys[1]}).rows == Floats(kWidth, 6.0F));
  }
}

TEST_CASE("gpu table: a bucket that nobody has linked is entered by the one that it was split from") {
  FakeGpu fake;
  TableJob job(test::spec_of(4000, kWidth));
  TableOnGpu on_gpu(fake.box, job.worker, job.table);
  const Keys keys = test::some_keys(400);
  job.push(Keys(keys.begin(), keys.begin() + 300), 1.0F);
  shm::Segment segment;
  REQUIRE(segment.open(shm::table_name(job.config.job, 0, 0), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  auto& record = *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset);
  REQUIRE(record.bits.load_acquire() == 9);
  record.bits.store_relaxed(11);  // as if it had grown, by buckets that no worker has used
  const auto pulled = on_gpu.pull(keys);
  CHECK_FALSE(pulled.is_redone);
  job.pull(Keys(keys.begin(), keys.begin() + 150));  // links their buckets, which are on the way to other keys' rows
  CHECK(on_gpu.pull(keys) == pulled);
  CHECK(pulled == test::pulled_by(job.table, keys));  // links the others
  CHECK(on_gpu.pull(keys) == pulled);
  CHECK(on_gpu.rows->transfers().bounced_rows == 0);
}

TEST_CASE("gpu table: a table of more than 2^31 rows and buckets") {
  FakeGpu fake;
  TableJob job(test::spec_of(shm::kMaxTableRows, kWidth));  // the file is sparse
  shm::Segment segment;
  REQUIRE(segment.open(shm::table_name(job.config.job, 0, 0), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  auto& record = *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset);
  REQUIRE(record.max_bits == 32);
  record.bits.store_relaxed(32);  // as if so many rows were there
  const Keys keys = test::some_keys(100);
  job.push(Keys(keys.begin(), keys.begin() + 50), 1.0F);
  TableOnGpu on_gpu(fake.box, job.worker, job.table);
  const auto pulled = on_gpu.pull(keys);
  CHECK_FALSE(pulled.is_redone);
  CHECK(pulled == test::pulled_by(job.table, keys));
}

TEST_CASE("gpu table: rows that the CPU decides go to the GPU in one copy, however many they are") {
  constexpr std::uint64_t kOfRow = 250;
  for (const bool has_flags : {true, false}) {
    FakeGpu fake;
    TableJob job(test::spec_of(40'000, kOfRow));
    const Keys keys = test::some_keys(32'500);
    job.push(Keys(keys.begin(), keys.begin() + 30'000), 1.0F);
    TableOnGpu on_gpu(fake.box, job.worker, job.table);
    Keys some(keys.begin() + 30'000, keys.end());
    job.push(some, 2.0F);
    some[7] = 12345;  // without a row
    const auto keys_there = on_gpu.put(some);
    const device::DeviceMemory<float> out(fake.cuda, some.size() * kOfRow);
    const device::DeviceMemory<bool> found(fake.cuda, some.size());
    const std::size_t copies = fake.cuda.count("copy");
    on_gpu.rows->start_pull({keys_there.on_device(), some.size()}, {out.on_device(), out.count()},
                            {found.on_device(), has_flags ? found.count() : 0});
    CHECK(on_gpu.rows->finish_pull());
    CHECK(fake.cuda.count("copy") - copies <= 4);
    CHECK(fake.cuda.count("put_rows") == 1);
    CHECK(on_gpu.rows->transfers().bounced_rows > 2000);
    TableOnGpu::Pulled pulled{Floats(out.count()), std::vector<std::uint8_t>(some.size())};
    on_gpu.move(pulled.rows.data(), out.on_device(), out.bytes());
    if (has_flags) on_gpu.move(pulled.found.data(), found.on_device(), found.bytes());
    const auto expected = test::pulled_by(job.table, some);
    CHECK(pulled.rows == expected.rows);
    if (has_flags) CHECK(pulled.found == expected.found);
  }
}

TEST_CASE("gpu table: a failure to put rows in their places is an error, and the next pull works") {
  for (const char* call : {"allocate", "allocate_pinned", "copy", "put_rows"}) {
    CAPTURE(std::string(call));
    Scene scene;
    const Keys keys = keys_of_one_bucket(1);
    assign(scene.table, keys[0], 5);
    auto& word = scene.row(scene.number_of(keys[0])).word;
    const std::uint64_t live = word.load_acquire();
    CHECK_FALSE(scene.on_gpu.pull(keys).is_redone);
    word.store_release(shm::next_word(live, shm::RowState::kDead, shm::reference_of(live)));
    const auto keys_there = scene.on_gpu.put(keys);
    const device::DeviceMemory<float> out(scene.fake.cuda, kWidth);
    const auto pull = [&] {
      scene.on_gpu.rows->start_pull({keys_there.on_device(), 1}, {out.on_device(), kWidth});
      static_cast<void>(scene.on_gpu.rows->finish_pull());
    };
    scene.fake.cuda.fail(call, 0, device::kOutOfMemory);
    CHECK_THROWS_WITH_AS(pull(), doctest::Contains("the GPU cannot"), Error);
    pull();
  }
}

TEST_CASE("gpu table: what has memory is registered when it is an eighth or 64 MiB more") {
  constexpr std::uint64_t kOfRow = 250;
  struct Case {
    std::uint64_t rows, more;
  };
  FakeGpu fake;
  TableJob job(test::spec_of(4'000'000, kOfRow));  // the file is sparse
  shm::Segment segment;
  REQUIRE(segment.open(shm::table_name(job.config.job, 0, 0), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  auto& record = *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset);
  const std::uint64_t of_64_mib = (std::uint64_t{64} << 20) / record.row_bytes;
  for (const Case& one : {Case{8'000, 1'000}, Case{1'000'000, of_64_mib}}) {
    record.rows_backed.store_relaxed(one.rows);  // as if so many had memory
    TableOnGpu on_gpu(fake.box, job.worker, job.table);
    const std::uint64_t registered = on_gpu.rows->transfers().registered_bytes;
    record.rows_backed.store_relaxed(one.rows + one.more);
    static_cast<void>(on_gpu.pull({1}));
    CHECK(on_gpu.rows->transfers().registered_bytes == registered);
    record.rows_backed.store_relaxed(one.rows + one.more + 1);
    static_cast<void>(on_gpu.pull({1}));
    CHECK(on_gpu.rows->transfers().registered_bytes > registered);
  }
}

TEST_CASE("gpu table: a damaged list ends no pull late, and the CPU tells it") {
  for (const bool leads_nowhere : {false, true}) {
    Scene scene;
    const Keys keys = keys_of_one_bucket(3);
    assign(scene.table, keys[0], 5);
    assign(scene.table, keys[1], 6);
    const std::uint64_t second = scene.number_of(keys[1]);
    auto& word = scene.row(second).word;
    word.store_release(shm::next_word(word.load_acquire(), shm::RowState::kLive, leads_nowhere ? 0xfffffffd : second));
    std::size_t accesses = 0;
    scene.fake.cuda.during_keys = [&](const Noted&) { ++accesses; };
    CHECK(test::error_of([&] { scene.on_gpu.pull({keys[2]}); }).find("is damaged") != std::string::npos);
    CHECK(accesses < 2000);
    CHECK(scene.on_gpu.pull({keys[0]}).rows == Floats(kWidth, 5.0F));
  }
}

TEST_CASE("gpu table: a search fences between a row and the look at its path, a copy between its bytes and the word") {
  Scene scene;
  const Keys keys = keys_of_one_bucket(2);
  assign(scene.table, keys[0], 5);
  assign(scene.table, keys[1], 6);
  std::vector<Noted> seen;
  scene.fake.cuda.during_keys = [&](const Noted& one) { seen.push_back(one); };
  CHECK(scene.on_gpu.pull({keys[1]}).rows == Floats(kWidth, 6.0F));
  // The bucket twice; a row's word, its key, the look; the next row's word and key.
  const std::vector<Access> search = {Access::kLoadAcquire, Access::kLoadAcquire, Access::kLoadAcquire, Access::kLoad,
                                      Access::kFence,       Access::kLoad,        Access::kLoadAcquire, Access::kLoad};
  REQUIRE(seen.size() > search.size());
  for (std::size_t i = 0; i < search.size(); ++i) CHECK(seen[i].access == search[i]);
  CHECK(seen[5].address == seen[1].address);
  std::map<unsigned, std::pair<std::size_t, std::size_t>> of_thread;  // its last element, and its fence
  for (std::size_t i = search.size(); i + 1 < seen.size(); ++i)
    (seen[i].access == Access::kFence ? of_thread[seen[i].thread].second : of_thread[seen[i].thread].first) = i;
  CHECK(of_thread.size() == 2);  // of eight floats in two vectors
  for (const auto& [thread, last] : of_thread) CHECK(last.second > last.first);
  CHECK(seen.back().access == Access::kLoad);
  CHECK(seen.back().address == seen[6].address);
}

TEST_CASE("gpu table: pulls go through the host without registration, where they count as uses, and of bfloat16") {
  for (const int why : {0, 1, 2, 3}) {
    FakeGpu fake({.host_register = why != 0});
    if (why == 1) fake.cuda.fail("host_register", 1, device::kOutOfMemory);
    TableSpec spec = test::spec_of(1000, 3);
    spec.touch_on_pull = why == 2;
    spec.dtype = why == 3 ? DType::kBFloat16 : DType::kFloat32;
    TableJob job(spec);
    TableOnGpu on_gpu(fake.box, job.worker, job.table);
    const Keys keys = test::some_keys(300);
    CHECK(on_gpu.push(keys, Floats(900, 1.0F)).updated == 300);
    Keys more = keys;
    more.push_back(77);
    CHECK(on_gpu.pull(more) == test::pulled_by(job.table, more));
    CHECK(on_gpu.pull({}).rows.empty());
    CHECK(on_gpu.warnings.size() == (why == 0 ? 0 : 1));
    const std::string because[] = {"attribute 99", "cudaHostRegister", "count as uses", "are bfloat16"};
    CHECK(on_gpu.rows->transfers().reasons.find(because[why]) != std::string::npos);
    CHECK(on_gpu.rows->transfers().strategy == "pulls rows through host memory, pushes staged");
    CHECK(fake.cuda.count("pull_keys") == 0);
    CHECK(on_gpu.rows->transfers().registered_bytes == 0);
    CHECK(JobView(job.config.job).workers().at(0).gpu.value().pulls == "through host");
  }
}

TEST_CASE("gpu table: the inspector shows its GPU, and what all tables of the worker have registered") {
  FakeGpu fake;
  TableJob job(test::spec_of(1000, 3));
  TableSpec other = test::spec_of(1000, 5);
  other.name = "other";
  const auto shown = [&] { return JobView(job.config.job).workers().at(0).gpu.value(); };
  const TableOnGpu first(fake.box, job.worker, job.table);
  {
    const TableOnGpu second(fake.box, job.worker, job.worker.table(other));
    const GpuUse found = shown();
    CHECK(found.uuid == "01234567-89ab-cdef-fedc-ba9876543210");
    CHECK(found.pulls == "kernel");
    CHECK(found.pushes == "staged");
    CHECK_FALSE(found.native_adds);
    CHECK(first.rows->transfers().registered_bytes > 0);
    CHECK(found.registered_bytes ==
          first.rows->transfers().registered_bytes + second.rows->transfers().registered_bytes);
  }
  const TableOnGpu third(fake.box, job.worker, job.worker.table(other));
  CHECK(shown().registered_bytes ==
        first.rows->transfers().registered_bytes + third.rows->transfers().registered_bytes);
}

TEST_CASE("gpu table: a push tells what became of its keys") {
  FakeGpu fake;
  TableSpec spec = test::spec_of(64, 3);
  spec.evict = Evict::kNone;
  spec.admit_after = 2;
  TableJob job(spec);
  TableOnGpu on_gpu(fake.box, job.worker, job.table);
  const Keys keys = test::some_keys(200);
  CHECK(on_gpu.push(keys, Floats(600, 1.0F)).unadmitted > 150);
  const PushedKeys pushed = on_gpu.push(keys, Floats(600, 1.0F));
  CHECK(pushed.updated == 64);
  CHECK(pushed.refused > 0);  // of 136: counts are halved while the 64 rows are made, so some keys are not admitted yet
  CHECK(pushed.updated + pushed.unadmitted + pushed.refused == 200);
}

TEST_CASE("gpu table: arguments that do not fit together are an error, and pulls and pushes take turns") {
  FakeGpu fake;
  TableJob job(test::spec_of(1000, 3));
  TableOnGpu on_gpu(fake.box, job.worker, job.table);
  const auto keys = on_gpu.put(Keys{3, 4});
  const auto floats = on_gpu.put(Floats(9, 1.0F));
  const device::DeviceMemory<bool> flags(fake.cuda, 3);
  const std::span<const std::uint64_t> both(keys.on_device(), 2);
  for (const std::size_t count : {0, 3, 5, 9}) {
    CHECK_THROWS_WITH_AS(on_gpu.rows->start_pull(both, {floats.on_device(), count}), doctest::Contains("3 elements"),
                         Error);
    CHECK_THROWS_WITH_AS(on_gpu.rows->start_push(both, {floats.on_device(), count}), doctest::Contains("3 elements"),
                         Error);
  }
  CHECK_THROWS_WITH_AS(on_gpu.rows->start_pull(both, {floats.on_device(), 6}, {flags.on_device(), 3}),
                       doctest::Contains("space for 3 answers"), Error);
  on_gpu.rows->start_push(both, {floats.on_device(), 6});
  CHECK_THROWS_WITH_AS(on_gpu.rows->start_push(both, {floats.on_device(), 6}), doctest::Contains("still in progress"),
                       Error);
  CHECK(on_gpu.rows->finish_push().updated == 2);
  CHECK(on_gpu.rows->finish_push().updated == 0);
  on_gpu.rows->start_pull(both, {floats.on_device(), 6});
  CHECK_THROWS_WITH_AS(on_gpu.rows->start_pull(both, {floats.on_device(), 6}), doctest::Contains("still in progress"),
                       Error);
  CHECK_FALSE(on_gpu.rows->finish_pull());
  CHECK_FALSE(on_gpu.rows->finish_pull());
}

TEST_CASE("gpu table: any failing call is a warning or an error that names the GPU, without hangs or leaks") {
  for (const char* call : {"device_count", "set_device", "load", "create_stream", "create_event", "allocate",
                           "allocate_pinned", "host_register", "device_address", "copy", "synchronize", "record",
                           "pull_keys", "sort_rows_temp_bytes", "sort_rows", "send_rows"}) {
    std::size_t told = 0;
    for (int n = 0;; ++n) {
      REQUIRE(n < 200);
      INFO(std::string(call) << " " << n);
      FakeGpu fake;
      TableJob job(test::spec_of(1000, 3));
      bool was_error = false;
      std::size_t warned = 0, uses = 0;
      {
        std::optional<TableOnGpu> on_gpu;
        try {
          fake.cuda.fail(call, n, std::string(call) == "device_count" ? device::kNoDevice : device::kOutOfMemory);
          on_gpu.emplace(fake.box, job.worker, job.table);
          on_gpu->push({5, 6, 5}, Floats(9, 1.0F));
          const auto pulled = on_gpu->pull({5, 6, 7});
          CHECK(pulled == test::pulled_by(job.table, {5, 6, 7}));
        } catch (const Error& error) {
          was_error = true;
          CHECK_MESSAGE(std::string(error.what()).find("GPU") != std::string::npos, error.what());
        }
        if (on_gpu) warned = on_gpu->warnings.size();
        uses = fake.cuda.count(call);
      }
      if (uses <= static_cast<std::size_t>(n)) {
        CHECK_FALSE(was_error);
        break;
      }
      CHECK((was_error || warned != 0));
      ++told;
    }
    CHECK(told > 0);
  }
}
