// Pushes, pulls, sync steps, accumulators and recovery.
#include "scenes/slot_scene.hpp"

namespace ps_shm::test {
namespace {

using Made = std::unique_ptr<SlotScene>;
Made make(const Shape& shape) { return std::make_unique<SlotScene>(shape); }
std::vector<std::uint32_t> times(std::size_t count, std::uint32_t variable = 0) {
  return {std::vector(count, variable)};
}

// v's buffer of version 1 becomes w's buffer of version 1.
const std::vector<std::uint32_t> kExchange = {0, 0, 0, 0, 0, 1, 0};

struct Deaths {
  std::uint32_t pushes_of_other = 1, pushes_of_successor = 1, pulls = 0, images = 0;
  bool has_snapshot_point = false;
};

// Rank 0 dies at any access, rank 1 pushes, and the next owner of rank 0 recovers.
Made recovery_scene(const Deaths& deaths) {
  Made scene = make({.floats = 1, .is_recovered = true, .has_snapshot_point = deaths.has_snapshot_point});
  for (const std::uint32_t rank : {0U, 1U}) scene->attach(kRankByte + rank);
  scene->writer(0, times(1), {.may_die = true}).writer(1, times(deaths.pushes_of_other));
  scene->successor(0, scene->processes[0], times(deaths.pushes_of_successor), 1);
  if (deaths.pulls != 0) scene->reader(0, deaths.pulls);
  if (deaths.images != 0) scene->image_reader(0, deaths.images);
  return scene;
}

// Rank 0 dies at any access beside rank 1, and so does its next owner; the one after that recovers.
Made death_of_successor() {
  Made scene = make({.floats = 1, .is_recovered = true});
  for (const std::uint32_t rank : {0U, 1U}) scene->attach(kRankByte + rank);
  scene->writer(0, times(1), {.may_die = true}).writer(1, times(1));
  scene->successor(0, scene->processes[0], times(1), 1, true).successor(0, scene->processes[0], times(1), 5);
  return scene;
}

// Rank 0 dies at any access, and its next owner recovers, while two others push.
Made death_among_three() {
  Made scene = make({.floats = 1, .ranks = 3, .is_recovered = true});
  for (const std::uint32_t rank : {0U, 1U, 2U}) scene->attach(kRankByte + rank);
  scene->writer(0, times(1), {.may_die = true}).writer(1, times(1)).writer(2, times(1));
  scene->successor(0, scene->processes[0], {}, 1);
  return scene;
}

// Ranks 0 and 1 die at any access beside rank 2; their successors recover one after the other.
Made two_deaths(std::uint32_t first) {
  Made scene = make({.floats = 1, .ranks = 3, .is_recovered = true});
  scene->recovered_at_end(first);
  scene->attach(kRankByte + 2);
  scene->writer(0, times(1), {.may_die = true}).writer(1, times(1), {.may_die = true}).writer(2, times(1));
  return scene;
}

// Rank 0 dies at any access while it adds to a sum beside rank 1 and a helper, and its next owner adds what is missing.
Made death_of_contributor(std::uint64_t floats) {
  Made scene = make({.floats = floats, .is_recovered = true});
  for (const std::uint32_t rank : {0U, 1U}) scene->attach(kRankByte + rank);
  scene->contributor(0, 1, false, {.may_die = true}).contributor(1, 1, false);
  scene->successor_of_contributor(0, scene->processes[0], 1).summer(1);
  return scene;
}

// The only writer, who changes chunks in place or swaps them, dies at any access, and so do its successors but the
// last.
struct DeathsInPlace {
  std::uint64_t blocks = 2;
  std::vector<std::uint32_t> pushes = {1, 1};  // of each of them
  std::uint32_t of_block = 1, variables = 1, pulls = 0;
  bool has_swaps = false, has_one_log = false;
};
Made deaths_in_place(const DeathsInPlace& deaths) {
  Made scene = make({.floats = floats_of_blocks(deaths.blocks, deaths.of_block),
                     .variables = deaths.variables,
                     .ranks = 1,
                     .is_recovered = true,
                     .is_in_place = true,
                     .of_block = deaths.of_block,
                     .has_swaps = deaths.has_swaps,
                     .has_one_log = deaths.has_one_log});
  scene->attach(kRankByte);
  const std::uint32_t variable = deaths.variables > 1 ? kAnyVariable : 0;
  scene->writer(0, times(deaths.pushes[0], variable), {.may_die = true});
  for (std::size_t i = 1; i < deaths.pushes.size(); ++i)
    scene->successor(0, scene->processes[0], times(deaths.pushes[i], variable), (1U << i) - 1,
                     i + 1 < deaths.pushes.size());
  if (deaths.pulls != 0) scene->reader_in_place(deaths.pulls);
  return scene;
}

// Adds fibers to a scene of this shape.
template <class Add>
SceneCase scene_of(std::string name, const Shape& shape, Size size, Add add) {
  return {std::move(name),
          [=] {
            Made scene = make(shape);
            add(*scene);
            return scene;
          },
          size};
}

}  // namespace

std::vector<SceneCase> scenes_of_slots() {
  constexpr std::uint32_t kRound = kFreeBuffersPerClass + 2;  // pushes that use a free buffer again
  const Shape one{.floats = 1}, alone{.floats = 1, .ranks = 1}, two_floats{.floats = 2};
  const Shape chunks{.floats = 1, .variables = 2}, image{.floats = 1, .has_snapshot_point = true};
  const Shape in_place{.floats = floats_of_blocks(2), .ranks = 1, .is_in_place = true};
  return {
      scene_of("slot: two writers", one, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, times(2)).writer(1, times(1)); }),
      scene_of("slot: two writers of steps and adds", {.floats = 1, .has_adds = true}, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, times(2)).writer(1, times(1)); }),
      scene_of("slot: two writers of steps and adds exchange buffers of two chunks",
               {.floats = 1, .variables = 2, .has_adds = true}, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, kExchange).writer(1, times(2, 1)); }),
      scene_of("slot: a writer goes round its free buffers while another one sleeps", one, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(kRound)).writer(1, times(1)); }),
      scene_of("slot: a writer goes round its free buffers while a reader sleeps", {.floats = 2, .ranks = 1},
               Size::kSmall, [](SlotScene& scene) { scene.writer(0, times(kRound)).reader(0, 1); }),
      scene_of("slot: a writer, and a reader that pulls twice", alone, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, times(kRound)).reader(0, 2); }),
      scene_of("slot: a writer goes round its free buffers twice beside a reader that pulls twice",
               {.floats = 2, .ranks = 1}, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(2 * kFreeBuffersPerClass + 1)).reader(0, 2); }),
      scene_of("slot: two writers and a reader that pulls twice", one, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(2)).writer(1, times(2)).reader(0, 2); }),
      scene_of("slot: two writers and a reader of two floats", two_floats, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(2)).writer(1, times(2)).reader(0, 1); }),
      scene_of("slot: two chunks exchange their buffers", {.floats = 2, .variables = 2, .ranks = 1}, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, kExchange).reader(0, 1); }),
      scene_of("slot: two writers exchange buffers of two chunks", chunks, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, kExchange).writer(1, times(2, 1)).reader(0, 1); }),
      scene_of("slot: a writer changes a chunk in place beside a reader", in_place, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, times(1)).reader_in_place(1); }),
      scene_of("slot: a writer changes blocks of two floats in place beside a reader",
               {.floats = floats_of_blocks(2, 2), .ranks = 1, .is_in_place = true, .of_block = 2}, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(1)).reader_in_place(1); }),
      scene_of("slot: a writer changes a chunk in place or swaps it while a reader sleeps",
               {.floats = floats_of_blocks(2), .ranks = 1, .is_in_place = true, .has_swaps = true, .has_one_log = true},
               Size::kMedium, [](SlotScene& scene) { scene.writer(0, times(2)).reader_in_place(1); }),
      scene_of("slot: a writer changes a chunk in place twice beside a reader", in_place, Size::kLarge,
               [](SlotScene& scene) { scene.writer(0, times(2)).reader_in_place(2); }),
      scene_of("slot: a writer goes round its logs in place while a reader sleeps", in_place, Size::kLarge,
               [](SlotScene& scene) { scene.writer(0, times(kFreeBuffersPerClass + 1)).reader_in_place(1); }),
      scene_of("slot: a writer in place comes back to a chunk with the same log while a reader sleeps",
               {.floats = floats_of_blocks(2), .ranks = 1, .is_in_place = true, .has_one_log = true}, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(2)).reader_in_place(1); }),
      scene_of("slot: a writer changes a chunk of three blocks in place or swaps it while a reader sleeps",
               {.floats = floats_of_blocks(3), .ranks = 1, .is_in_place = true, .has_swaps = true, .has_one_log = true},
               Size::kLarge, [](SlotScene& scene) { scene.writer(0, times(3)).reader_in_place(1); }),
      scene_of("slot: a writer changes chunks in place or swaps them four times while a reader sleeps",
               {.floats = floats_of_blocks(3), .ranks = 1, .is_in_place = true, .has_swaps = true, .has_one_log = true},
               Size::kLarge, [](SlotScene& scene) { scene.writer(0, times(4)).reader_in_place(1); }),
      scene_of("slot: a writer changes chunks in place or swaps them beside a reader that pulls twice",
               {.floats = floats_of_blocks(2), .ranks = 1, .is_in_place = true, .has_swaps = true, .has_one_log = true},
               Size::kLarge, [](SlotScene& scene) { scene.writer(0, times(3)).reader_in_place(2); }),
      scene_of("slot: logs and buffers move between two chunks, in place and by swaps, while a reader sleeps",
               {.floats = floats_of_blocks(2),
                .variables = 2,
                .ranks = 1,
                .is_in_place = true,
                .has_swaps = true,
                .has_one_log = true},
               Size::kLarge, [](SlotScene& scene) { scene.writer(0, times(3, kAnyVariable)).reader_in_place(1); }),
      scene_of("slot: two helpers apply the same steps", one, Size::kSmall,
               [](SlotScene& scene) { scene.helper(0, 2).helper(1, 2); }),
      scene_of("slot: two helpers apply the same steps beside a reader", two_floats, Size::kMedium,
               [](SlotScene& scene) { scene.helper(0, 2).helper(1, 2).reader(0, 1); }),
      scene_of("slot: sums and their sets", two_floats, Size::kSmall,
               [](SlotScene& scene) { scene.contributor(0, 1, true).contributor(1, 1, false).summer(1); }),
      scene_of("slot: three contributors, and a helper that uses their sum", {.floats = 2, .ranks = 3}, Size::kMedium,
               [](SlotScene& scene) {
                 for (const std::uint32_t rank : {0U, 1U, 2U}) scene.contributor(rank, 1, false);
                 scene.summer(1);
               }),
      scene_of("slot: a contributor goes round its free buffers", {.floats = 2, .ranks = 1}, Size::kSmall,
               [](SlotScene& scene) { scene.contributor(0, kRound, false).summer(2); }),
      scene_of("slot: a contributor's buffer moves to another chunk", chunks, Size::kMedium,
               [](SlotScene& scene) { scene.contributors_of_two(); }),
      scene_of("snapshot: a writer goes round its free buffers while somebody looks at the image",
               {.floats = 1, .ranks = 1, .has_snapshot_point = true, .has_adds = true}, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, times(kRound)).image_reader(0, 1); }),
      scene_of("snapshot: two writers fork a chunk", image, Size::kSmall,
               [](SlotScene& scene) { scene.writer(0, times(1)).writer(1, times(1)).image_reader(0, 1); }),
      scene_of("snapshot: two writers fork a chunk, and one goes on", {.floats = 2, .has_snapshot_point = true},
               Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, times(2)).writer(1, times(1)).image_reader(0, 2); }),
      scene_of("snapshot: two chunks exchange their buffers",
               {.floats = 1, .variables = 2, .has_snapshot_point = true, .has_adds = true}, Size::kMedium,
               [](SlotScene& scene) { scene.writer(0, kExchange).writer(1, times(1, 1)).image_reader(0, 1); }),
  };
}

std::vector<SceneCase> scenes_of_deaths() {
  return {
      {"deaths: a writer dies, and its successor recovers", [] { return recovery_scene({}); }},
      {"deaths: a writer dies while another one goes on, and its successor recovers",
       [] { return recovery_scene({.pushes_of_other = 2}); }, Size::kMedium},
      {"deaths: a writer dies, and then its successor", [] { return death_of_successor(); }, Size::kMedium},
      {"deaths: a writer dies while two others go on, and its successor recovers", [] { return death_among_three(); },
       Size::kMedium},
      {"deaths: a writer dies while a reader sleeps, and its successor recovers",
       [] { return recovery_scene({.pulls = 1}); }, Size::kMedium},
      {"deaths: a writer of two chunks dies, which exchange their buffers, and its successor recovers",
       [] {
         Made scene = make({.floats = 1, .variables = 2, .is_recovered = true});
         for (const std::uint32_t rank : {0U, 1U}) scene->attach(kRankByte + rank);
         scene->writer(0, {0, 1}, {.may_die = true}).writer(1, {0, 1}).successor(0, scene->processes[0], {}, 1);
         return scene;
       },
       Size::kMedium},
      {"deaths: two writers die beside a third one, and the first one is recovered first", [] { return two_deaths(0); },
       Size::kMedium},
      {"deaths: two writers die beside a third one, and the second one is recovered first",
       [] { return two_deaths(1); }, Size::kMedium},
      {"deaths: a writer dies after a snapshot point, and its successor recovers",
       [] { return recovery_scene({.pushes_of_other = 2, .has_snapshot_point = true}); }, Size::kMedium},
      {"deaths: a writer dies while somebody looks at the image, and its successor recovers",
       [] { return recovery_scene({.pushes_of_successor = 0, .images = 1, .has_snapshot_point = true}); },
       Size::kMedium},
      {"deaths: a contributor dies, and its successor adds what is missing", [] { return death_of_contributor(1); },
       Size::kMedium},
      {"deaths: a writer dies in place, and its successor recovers", [] { return deaths_in_place({}); }},
      {"deaths: a writer dies within a block in place, and its successor recovers",
       [] { return deaths_in_place({.of_block = 2}); }},
      {"deaths: a writer dies within a block in place beside a reader, and its successor recovers",
       [] { return deaths_in_place({.of_block = 2, .pulls = 1}); }, Size::kMedium},
      {"deaths: a writer dies within a block in place, and so does its successor",
       [] {
         return deaths_in_place({.pushes = {1, 1, 1}, .of_block = 2});
       }},
      {"deaths: a writer dies within a block in place beside a reader, and its successor when it takes that back",
       [] {
         return deaths_in_place({.pushes = {1, 0, 0}, .of_block = 2, .pulls = 1});
       },
       Size::kMedium},
      {"deaths: a writer dies in place beside a reader, and its successor recovers",
       [] { return deaths_in_place({.pulls = 2}); }, Size::kMedium},
      {"deaths: a writer dies in place or in a swap beside a reader, and its successor recovers",
       [] {
         return deaths_in_place({.blocks = 3, .pushes = {2, 1}, .pulls = 1, .has_swaps = true, .has_one_log = true});
       },
       Size::kLarge},
      {"deaths: a writer dies in place or in a swap, and so does its successor",
       [] {
         return deaths_in_place({.blocks = 3, .pushes = {2, 1, 1}, .has_swaps = true, .has_one_log = true});
       }},
      {"deaths: a writer dies in place or in a swap beside a reader, and so does its successor in the next one",
       [] {
         return deaths_in_place({.pushes = {1, 1, 0}, .pulls = 1, .has_swaps = true, .has_one_log = true});
       },
       Size::kLarge},
      {"deaths: a writer dies in place or in a swap beside a reader, and its successor when it recovers",
       [] {
         return deaths_in_place({.pushes = {2, 0, 0}, .pulls = 1, .has_swaps = true, .has_one_log = true});
       },
       Size::kLarge},
      {"deaths: a writer of two chunks dies in place or in a swap beside a reader, and its successor recovers",
       [] {
         return deaths_in_place({.pushes = {2, 1}, .variables = 2, .pulls = 1, .has_swaps = true, .has_one_log = true});
       },
       Size::kLarge},
  };
}

}  // namespace ps_shm::test
