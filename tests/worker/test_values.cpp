// Values by every way: how they begin, and what pushes make of them, whatever their dtype and layout, and whether a
// worker reaches them as a whole, by rows or by keys.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <iterator>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "ps_shm/job_control.hpp"
#include "support/ways.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

const auto every_way = [](const Way&) { return true; };

Floats gradient_of(std::uint32_t rank, int step, std::size_t count) {
  Floats out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = float(int((i * 7 + std::size_t(step) * 31 + rank * 17) % 101) - 50) / 40;
  return out;
}

}  // namespace

TEST_CASE("values: a pull writes each row to its position, in any order, repeated or absent") {
  const auto single = [](const Way& way) { return way.is_single() && way.access != Access::kWhole; };
  for_ways_and_rules(single, [](const Way& way, UpdateRule rule) {
    for (const std::uint64_t width : way.is_plain() ? std::vector<std::uint64_t>{1, 2, 3, 4, 7, 16, 33} : Shape{3}) {
      CAPTURE(width);
      ValuesJob job(way, way.config(rule), {100, width});
      if (job.variable) {
        const Floats first = first_values(100 * width), all = job.pull();
        for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == doctest::Approx(first[i]).epsilon(1e-6));
        CHECK(pulled(job.worker, *job.variable) == all);
      }
      const Floats all = job.pull();
      for (const auto& ids : {Ids{5}, Ids{}, Ids{99, 0, 42}, Ids{7, 7, 3, 7}}) {
        const Floats some = job.pull(ids);
        for (std::size_t i = 0; i < some.size(); ++i) REQUIRE(some[i] == all[ids[i / width] * width + i % width]);
      }
    }
  });
}

TEST_CASE("values: pushes have the bits of the rule's float32 form, rounded to the dtype, in all that can be read") {
  // Several threads share no variables as small as these.
  const auto has_reference = [](const Way& way) { return way.threads == 1 && ValuesReference::has(way); };
  for_ways_and_rules(has_reference, [](const Way& way, UpdateRule rule) {
    if (traits_of(way.mode).has_staleness_bound && rule != UpdateRule::kAdam) return;
    const std::vector<Shape> plain_whole = {{}, {1}, {3}, {3001}, {1500, 2}};
    const std::vector<Shape> plain_rows = {{20, 1}, {20, 2}, {20, 3}, {20, 5}, {20, 8}, {20, 300}};
    const bool is_whole = way.access == Access::kWhole;
    const std::vector<Shape> others =
        is_whole && way.threads == 1 ? std::vector<Shape>{{20, 5}, {3001}} : std::vector<Shape>{{20, 5}};
    for (const Shape& shape : !way.is_plain() ? others : is_whole ? plain_whole : plain_rows) {
      CAPTURE(shape.size());
      CAPTURE(shape.empty() ? 0 : shape.back());
      ValuesJob job(way, way.config(rule, every_setting(way)), shape);
      ValuesReference reference(job);
      if (!job.table || rule != UpdateRule::kFtrl)  // what a key reads without a row is not computed from z
        CHECK(job.pull() == reference.values());
      std::mt19937_64 random(3);
      for (int round = 0; round < 12; ++round) {
        if (is_whole || (way.access == Access::kRows && round % 4 == 3)) {
          const Floats gradients = random_floats(random, job.count());
          job.worker.push(*job.variable, gradients);
          job.worker.step();
          reference.push(gradients);
          continue;
        }
        const Ids all = job.ids();
        Ids some;
        std::sample(all.begin(), all.end(), std::back_inserter(some), 13, random);
        if (round % 2 == 0) std::shuffle(some.begin(), some.end(), random);
        const Floats gradients = random_floats(random, some.size() * job.width());
        job.push(some, gradients);
        reference.push(some, gradients);
      }
      check_all(job, job, reference);
    }
  });
}

TEST_CASE("values: pushes follow the formulas of every update rule, and do not change other rows") {
  const auto floats_in_place = [](const Way& way) { return way.is_inplace() && !way.is_bfloat16(); };
  for_ways_and_rules(floats_in_place, [](const Way& way, UpdateRule rule) {
    for (const std::uint64_t width : way.is_plain() ? Shape{1, 3, 8} : Shape{3}) {
      CAPTURE(width);
      const JobConfig config = way.config(rule, {.l1 = 0.05F});
      ValuesJob job(way, config, {20, width});
      const update::Settings settings = update::settings_of(config.optimizer, rule, true);
      std::vector<ReferenceRow> reference;
      const Floats first = job.pull();
      const auto row_of = [&](const Floats& all, std::size_t i) {
        return Floats{all.begin() + std::ptrdiff_t(i * width), all.begin() + std::ptrdiff_t((i + 1) * width)};
      };
      for (std::size_t row = 0; row < 20; ++row) reference.emplace_back(settings, 0.1, row_of(first, row));
      std::mt19937_64 random(7);
      std::uniform_real_distribution<float> draw(-1, 1);
      for (int push = 0; push < 40; ++push) {
        const Ids ids = way.access == Access::kWhole
                            ? job.ids()
                            : Ids{std::uint32_t(random() % 5), std::uint32_t(5 + random() % 5)};
        Floats gradients(ids.size() * width);
        for (float& g : gradients) g = draw(random);
        job.push(ids, gradients);
        for (std::size_t i = 0; i < ids.size(); ++i) reference.at(ids[i]).push(row_of(gradients, i));
      }
      const Floats all = job.pull();
      for (std::size_t i = 0; i < all.size(); ++i)
        REQUIRE(all[i] == doctest::Approx(reference.at(i / width).values()[i % width]).epsilon(2e-4));
    }
  });
}

TEST_CASE("values: the gradients of a repeated row are one update of their sum") {
  const auto by_row = [](const Way& way) { return way.access != Access::kWhole; };
  for_ways_and_rules(by_row, [](const Way& way, UpdateRule rule) {
    if (!way.is_single() && rule != UpdateRule::kAdam) return;
    const JobConfig config = way.config(rule);
    ValuesJob repeated(way, config, {10, 3}), summed(way, way.config(rule), {10, 3});
    repeated.push({4, 9, 4, 0, 4}, {1, 2, 3, 4, 5, 6, 10, 20, 30, 7, 8, 9, 100, 200, 300});
    summed.push({0, 4, 9}, {7, 8, 9, 111, 222, 333, 4, 5, 6});
    CHECK(repeated.pull() == summed.pull());
  });
}

TEST_CASE("values: Hogwild! updates and several threads have the same bits, as long as nobody else pushes") {
  const auto pushed = [](const Way& way, UpdateRule rule, const Shape& shape) {
    ValuesJob job(way, way.config(rule), shape);
    Floats gradients(job.count());
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = float(i % 89) / 89 - 0.5F;
    for (int round = 0; round < 3; ++round) {
      job.push(gradients);
      if (way.access == Access::kRows) job.worker.push(*job.variable, gradients);
    }
    return job.pull();
  };
  const auto racy_or_shared = [](const Way& way) { return way.adds == Adds::kRacy || way.threads > 1; };
  for_ways(racy_or_shared, [&](const Way& way) {
    Way simple = way;
    simple.adds = Adds::kExact, simple.threads = 1;
    for (const Shape& shape : {Shape{4000, 5}, {500, 64}, {20, 5000}})  // several threads share them
      CHECK(pushed(way, UpdateRule::kSgd, shape) == pushed(simple, UpdateRule::kSgd, shape));
    CHECK(pushed(way, UpdateRule::kAdd, {500, 64}) == pushed(simple, UpdateRule::kAdd, {500, 64}));
  });
}

TEST_CASE("values: the mean of many small changes is that of float32, where rounding to nearest loses them") {
  constexpr int kPushes = 40;
  const auto check = [](const Way& way, const auto& change) {
    ValuesJob job(way, way.config(UpdateRule::kSgd), {500, 8});
    job.assign(Floats(job.count(), 1.0F));
    for (int round = 0; round < kPushes; ++round) change(job);
    check_mean_of_small_steps(job.pull(), kPushes);
  };
  const auto of_bfloat16 = [](const Way& way) { return way.is_bfloat16(); };
  for_ways(of_bfloat16, [&](const Way& way) {
    check(way, [](ValuesJob& job) { job.push(Floats(job.count(), -kSmallStep / 0.1F)); });
    if (way.is_inplace() && way.access != Access::kKeys)
      check(way, [](ValuesJob& job) { job.add(Floats(job.count(), kSmallStep)); });
  });
}

TEST_CASE("values: no push is lost, and none is applied twice, beside others") {
  constexpr int kWorkers = 3;
  const auto beside_others = [](const Way& way) {
    return !way.steps_together() && way.adds == Adds::kExact && way.layout != Layout::kSingleWriter;
  };
  for_ways(beside_others, [](const Way& way) {
    const int pushes = way.is_plain() ? 5000 : 300;
    const Shape shape = {5, 15};  // exchanges of 16, 8, 4 and 2 bytes
    ValuesJob job(way, way.config(UpdateRule::kAdd), shape);
    job.assign(Floats(job.count(), 0.0F));
    std::latch all_are_there(kWorkers);
    std::vector<std::thread> pushers;
    for (int w = 0; w < kWorkers; ++w)
      pushers.emplace_back([&] {
        Values mine(way, job.options({}, way.threads), shape);
        const Floats up(mine.count(), 1.0F), down(mine.count(), -1.0F);
        const Ids ids = mine.ids();
        const auto push = [&](const Floats& gradients) {
          if (mine.table)
            mine.table->push(mine.keys, gradients);
          else if (way.access == Access::kRows)
            mine.worker.push_rows(*mine.variable, ids, gradients);
          else
            mine.worker.push(*mine.variable, gradients);
        };
        all_are_there.arrive_and_wait();
        for (int i = 0; i < pushes; ++i) {
          push(up);
          if (way.access == Access::kRows && i % 2 == 0)
            mine.worker.push(*mine.variable, down);
          else
            push(down);
          if (!mine.has_sum()) continue;
          mine.worker.add(*mine.variable, up);
          if (way.access == Access::kRows)
            mine.worker.add_rows(*mine.variable, ids, down);
          else
            mine.worker.add(*mine.variable, down);
        }
        push(up);
      });
    for (std::thread& one : pushers) one.join();
    for (const float value : job.pull()) REQUIRE(value == float(kWorkers));
  });
}

TEST_CASE("values: three workers in sync mode compute the same bits, whoever applies a chunk") {
  constexpr std::uint32_t kWorkers = 3;
  constexpr int kSteps = 6;
  const Shape shape = {3000, 2};
  const auto ordered = [](const Way& way) { return way.steps_together() && way.reduce == Reduce::kOrdered; };
  for_ways_and_rules(ordered, [&](const Way& way, UpdateRule rule) {
    for (const float clip_norm : {0.0F, 20.0F}) {
      CAPTURE(clip_norm);
      Optimizer optimizer = every_setting(way);
      optimizer.clip_norm = clip_norm;
      JobConfig config = way.config(rule, optimizer);
      config.workers = kWorkers;
      const Job job(config);
      std::vector<std::thread> threads;
      for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
        threads.emplace_back([&, rank] {
          Values mine(way, job.options(rank, way.threads), shape);
          const std::span<float> buffer = mine.worker.gradient(*mine.variable);
          for (int step = 0; step < kSteps; ++step) {
            Floats g = gradient_of(rank, step, 6000);
            if (rank == 0) {
              mine.worker.push(*mine.variable, g);
            } else if (rank == 1) {  // from where it lies already
              std::copy(g.begin(), g.end(), buffer.begin());
              mine.worker.push(*mine.variable, buffer);
            } else {  // in two pushes, which add up
              for (float& one : g) one *= 0.5F;
              mine.worker.push(*mine.variable, g);
              mine.worker.push(*mine.variable, g);
            }
            mine.worker.step();
          }
        });
      for (std::thread& thread : threads) thread.join();
      Twin twin(job.config, rule, first_values(6000), way.dtype);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<Floats> gradients;
        std::vector<update::Contribution> contributions;
        for (std::uint32_t rank = 0; rank < kWorkers; ++rank) gradients.push_back(gradient_of(rank, step, 6000));
        for (const Floats& g : gradients) {
          const bool is_clipped = clip_norm > 0 && !update::traits_of(rule).is_sum;
          const float scale = is_clipped ? update::clip_scale(update::squared_norm(g.data(), g.size()), clip_norm) : 1;
          CHECK((scale < 1) == is_clipped);
          contributions.push_back({g.data(), scale});
        }
        twin.step(std::uint64_t(step), job.config.optimizer.schedule.rate(0.1F, std::uint64_t(step)), contributions);
      }
      Values late(way, job.options(0, way.threads), shape);
      check_all(job, late, twin);
    }
  });
}

TEST_CASE("values: the norm of gradients is limited over all of their elements") {
  for_ways(every_way, [](const Way& way) {
    ValuesJob job(way, way.config(UpdateRule::kSgd, {.lr = 1.0F, .clip_norm = 10}), {20, 5});
    const Floats before = job.pull();
    job.push(Floats(100, 2));  // its norm is 20
    const Floats after = job.pull();
    for (std::size_t i = 0; i < 100; ++i)
      REQUIRE(std::abs(after[i] - (before[i] - 1)) <= (way.is_bfloat16() ? 0.02F : 1e-6F));
  });
}

TEST_CASE("values: a changed momentum applies from the next step on") {
  for_ways(every_way, [](const Way& way) {
    for (const UpdateRule rule : {UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdam})
      for (const Shape& shape : {Shape{4, 2}, Shape{}}) {
        if (!way.has(rule) || (shape.empty() && way.access != Access::kWhole)) continue;
        CAPTURE(std::string(to_string(rule)));
        const JobConfig config = way.config(rule, {.lr = 1.0F, .momentum = 0.5F, .beta1 = 0.5F});
        ValuesJob job(way, config, shape);
        const float first = job.pull()[0], one = 1.0F;
        job.push(Floats(job.count(), one));
        JobControl(job.config.job).change([&](LiveSettings& live) {
          (rule == UpdateRule::kAdam ? live.beta1 : live.momentum) = 0.25F;
        });
        job.worker.step();  // reads the changed settings
        job.push(Floats(job.count(), one));
        Floats expected{first, 0, 0}, next(3);  // the same, by the arithmetic alone
        for (const float momentum : {0.5F, 0.25F}) {
          Optimizer optimizer = config.optimizer;
          optimizer.momentum = optimizer.beta1 = momentum;
          update::apply(update::settings_of(optimizer, rule, false), {1.0F, momentum == 0.5F ? 0U : 1U}, next.data(),
                        expected.data(), 1, &one, 1.0F, 1);
          expected.swap(next);
        }
        // In place, Adam rounds otherwise.
        CHECK(std::abs(job.pull()[0] - expected[0]) <= (way.is_bfloat16() ? 0.06F : 1e-5F));
      }
  });
}

TEST_CASE("values: each variable and table may multiply the job's rate and weight decay") {
  for_ways_and_rules(every_way, [](const Way& way, UpdateRule rule) {
    if (update::traits_of(rule).is_sum || (!(way.is_single() && way.parts == 1) && rule != UpdateRule::kAdamW)) return;
    const bool is_ftrl = rule == UpdateRule::kFtrl;
    const auto values = [&](float lr, float l2, float decay, float lr_scale, float regularize, bool are_set = false) {
      const JobConfig config = way.config(rule, {.lr = lr, .l2 = l2, .weight_decay = is_ftrl ? 0 : decay});
      // `are_set`: the factors are others until the first push.
      ValuesJob job(way, config, {5, 1}, are_set ? 0 : regularize, are_set ? 3 : lr_scale);
      if (are_set) job.worker.set_factors(*job.variable, lr_scale, regularize);
      for (int step = 0; step < 3; ++step) job.push(Floats(5, 1.0F));
      if (job.variable) {
        const VariableInfo info = job.view().variables()[0];
        CHECK(info.lr_scale == lr_scale);
        CHECK(info.regularize == regularize);
        CHECK(job.pull() == job.view().values("v"));
      }
      return job.pull();
    };
    const Floats scaled = values(0.25F, 0.5F, 0.125F, 0.5F, 2.0F);
    CHECK(scaled == values(0.125F, 1.0F, 0.25F, 1.0F, 1.0F));
    CHECK(scaled != values(0.25F, 0.5F, 0.125F, 1.0F, 1.0F));
    if (way.access != Access::kKeys && !is_ftrl) CHECK(scaled == values(0.25F, 0.5F, 0.125F, 0.5F, 2.0F, true));
  });
}

TEST_CASE("values: a step that one worker applies alone, as the other is held up, has the same bits") {
  constexpr int kHeldUp = 2;
  const Shape shape = {3001};
  const auto ordered = [](const Way& way) { return way.steps_together() && way.reduce == Reduce::kOrdered; };
  for_ways(ordered, [&](const Way& way) {
    JobConfig config = way.config(UpdateRule::kAdam, every_setting(way));
    config.workers = 2;
    const Job job(config);
    std::promise<void> released;
    std::thread other([&] {
      int step = 0;
      WorkerOptions given = job.options(1);
      given.on_part = [&](const char* part, std::uint64_t, std::uint64_t) {  // the step is decided, and nothing applied
        if (step == kHeldUp && std::strcmp(part, "wait") == 0) released.get_future().wait(), step = -1;
      };
      Values mine(way, given, shape);
      for (int number = 0; number <= kHeldUp; step = ++number) mine.push(gradient_of(1, number, 3001));
    });
    Values mine(way, job.options(0, way.threads), shape);
    Twin twin(job.config, UpdateRule::kAdam, first_values(3001), way.dtype);
    for (int number = 0; number <= kHeldUp; ++number) {
      const Floats ours = gradient_of(0, number, 3001), theirs = gradient_of(1, number, 3001);
      mine.push(ours);
      const auto step = std::uint64_t(number);
      twin.step(step, job.config.optimizer.schedule.rate(0.1F, step), {{ours.data()}, {theirs.data()}});
    }
    check_all(job, mine, twin);
    released.set_value();
    other.join();  // what it computes now comes too late, and changes nothing
    check_all(job, mine, twin);
  });
}

TEST_CASE("values: a sync step assigns the highest rank's values, and then applies the others' gradients") {
  const Shape shape = {1001};
  const auto together = [](const Way& way) { return way.steps_together(); };
  for_ways(together, [&](const Way& way) {
    JobConfig config = way.config(UpdateRule::kMomentum, every_setting(way));
    config.workers = 2;
    const Job job(config);
    const Floats values(1001, 0.5F), g = gradient_of(0, 0, 1001);
    std::thread other([&] { Values(way, job.options(1), shape).assign(values, Slots::kReset); });
    Values mine(way, job.options(0, way.threads), shape);
    mine.push(g);
    other.join();
    Twin twin(job.config, UpdateRule::kMomentum, values, way.dtype);
    twin.step(0, job.config.optimizer.schedule.rate(0.1F, 0), {{g.data()}});
    check_all(job, mine, twin);
  });
}

TEST_CASE("values: a row of bfloat16 that is longer than a block, whose blocks begin anywhere") {
  constexpr std::uint64_t kRows = 3, kWidth = 10'001;
  const auto rows_of_bfloat16 = [](const Way& way) {
    return way.is_plain() && way.is_bfloat16() && way.access == Access::kRows;
  };
  for_ways(rows_of_bfloat16, [&](const Way& way) {
    for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kAdam}) {
      CAPTURE(std::string(to_string(rule)));
      ValuesJob job(way, way.config(rule), {kRows, kWidth});
      const std::uint64_t of_block = job.view().variables()[0].parts[0].chunk_elements;
      REQUIRE(of_block < kWidth);
      const std::uint64_t seed = update::rounding_seed(*job.config.seed, "v");
      TwinRows reference(job.config.optimizer, 1, 1, 0.1F);  // of rows of one element
      const Floats first = first_values(job.count());
      for (std::uint32_t i = 0; i < first.size(); ++i) reference.begin(i, &first[i]);
      std::mt19937_64 random(4);
      for (std::uint64_t round = 0; round < 3; ++round) {
        const Floats gradients = random_floats(random, first.size());
        job.worker.push(*job.variable, gradients);
        for (std::uint64_t i = 0; i < first.size(); ++i) {
          const std::uint64_t begin = i / of_block * of_block;
          reference.push(i, &gradients[i], shm::rounding_of_block(seed, begin, 0, round).key, i - begin);
        }
      }
      const Ids all = ids_of_all(first.size());
      CHECK(pulled(job.worker, *job.variable) == reference.values(all));
      CHECK(job.pull({1}) == reference.values(Ids(all.begin() + kWidth, all.begin() + 2 * kWidth)));
    }
  });
}
