// Any bytes as a job's records: an order in which all of them can be replayed, or an Error. A record begins where its
// magic number does.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "ps_shm/errors.hpp"
#include "record/order.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ps_shm::record::Cursor;
  using What = ps_shm::record::Event::What;
  constexpr std::size_t kMost = 6;
  std::vector<ps_shm::record::Recorded> records;
  const std::span<const std::byte> all = std::as_bytes(std::span(data, size));
  const std::byte magic[] = {std::byte{'p'}, std::byte{'s'}, std::byte{'.'}, std::byte{'r'}};
  for (auto from = all.begin(); from != all.end() && records.size() < kMost;) {
    const auto to = std::search(from + 1, all.end(), std::begin(magic), std::end(magic));
    records.push_back({fmt::format("{}", records.size()), {from, to}});
    from = to;
  }
  try {
    const ps_shm::record::Order order(records);
    std::uint64_t pulls = 0, counted = 0, pushes = 0;
    for (std::uint32_t i = 0; i < records.size(); ++i)
      for (Cursor cursor(records[i].name, records[i].bytes);
           cursor.peek().what != What::kEnd && cursor.peek().what != What::kLeft; cursor.next()) {
        const auto& event = cursor.peek();
        if (event.what != What::kPull && event.what != What::kPush) continue;
        const std::uint64_t chunk = order.chunk(cursor.variables()[event.variable].name, event.piece);
        if (chunk >= order.chunks()) abort();
        pulls += event.what == What::kPull;
        pushes += event.what == What::kPush && (!event.is_tried || order.was_made(chunk, event.version, i));
        counted += event.what == What::kPull && order.pulls(chunk, event.version) > 0;
      }
    if (pulls != counted || pushes != order.pushes()) abort();
  } catch (const ps_shm::Error&) {
  }
  return 0;
}
