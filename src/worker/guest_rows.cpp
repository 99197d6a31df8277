#include "worker/guest_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ps_shm/errors.hpp"
#include "shm/base/racing.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/table/table_segment.hpp"
#include "update/elements.hpp"
#include "update/hash.hpp"
#include "worker/table_state.hpp"

namespace ps_shm {
namespace {

// Makes the rows that a guest gives: with the values given, an initial state, and the mark.
class GivenRows final : public shm::RowMaker {
 public:
  GivenRows(const TableState& state, std::uint32_t mark) : state_(state), form_(state.form()), mark_(mark) {}

  void use(std::span<const std::uint64_t> keys, const float* const* values) noexcept { keys_ = keys, values_ = values; }

  void make(std::uint64_t key, float* elements) const noexcept override {
    const auto at = static_cast<std::size_t>(std::find(keys_.begin(), keys_.end(), key) - keys_.begin());
    const float rate = state_.core.live.settings.lr;
    form_.initialise(state_.settings, rate, values_[at], 0, form_.width(), elements);
    form_.initialise_row_state(state_.settings, rate, elements);
  }
  std::uint32_t mark() const noexcept override { return mark_; }

 private:
  const TableState& state_;
  shm::RowForm form_;
  std::uint32_t mark_;
  std::span<const std::uint64_t> keys_;
  const float* const* values_ = nullptr;
};

}  // namespace

GuestRows::GuestRows(const Table& table) : state_(*table.state_) {
  if (state_.spec.dtype != DType::kFloat32)
    throw Error(fmt::format("table '{}' has rows of {}, which a bridge does not exchange", state_.spec.name,
                            to_string(state_.spec.dtype)));
  for (auto& of_part : state_.lanes)
    for (shm::TableLane& lane : of_part) lane.is_guest = true;
}

std::uint64_t GuestRows::row_size() const noexcept { return state_.spec.row_size; }

// Calls body(part, lane, batch, places) in batches of one part each: key i of the batch is keys[places[i]].
template <class Body>
void GuestRows::for_batches(std::span<const std::uint64_t> keys, Body&& body) {
  const auto parts = static_cast<std::uint32_t>(state_.parts.size());
  const shm::KeyHash& hash = state_.core.job.key_hash();
  std::array<std::uint64_t, shm::kPins> some;
  std::array<std::size_t, shm::kPins> places;
  for (std::uint32_t p = 0; p < parts; ++p)
    for (std::size_t next = 0; next < keys.size();) {
      std::size_t count = 0;
      for (; next < keys.size() && count < shm::kPins; ++next)
        if (shm::part_of(hash, keys[next], parts) == p) some[count] = keys[next], places[count++] = next;
      shm::TablePart& part = *state_.parts[p];
      const shm::TablePart::Batch batch = part.ask(std::span(some).first(count));
      if (count != 0) body(part, state_.lanes[p].front(), batch, places);
    }
}

std::uint32_t GuestRows::changed_since(std::uint32_t since, MarkedRows& to) {
  const std::uint32_t dump = state_.parts.front()->next_dump();
  if (since >= dump) since = 0;  // of no dump yet
  std::vector<std::uint64_t> evicted;
  for (std::size_t p = 0; p < state_.parts.size(); ++p)
    static_cast<void>(state_.parts[p]->begin_dump(state_.lanes[p].front(), dump, 0, evicted));  // 0: no evictions
  const shm::RowForm form = state_.form();
  std::vector<float> raw(form.raw_size());
  std::uint64_t key = 0;
  std::uint32_t mark = 0;
  update::with_element_value(state_.settings, state_.core.live.settings.lr, [&](const auto& value_of) {
    for (const auto& part : state_.parts)
      part->for_each(
          since, false,
          [&](std::uint64_t found, const float* elements) {
            key = found, mark = shm::TablePart::mark_of(elements);
            shm::racing_copy(raw.data(), elements, raw.size());
          },
          [&] {
            to.keys.push_back(key), to.marks.push_back(mark);
            to.values.resize(to.values.size() + form.width());
            form.read_values(raw.data(), to.values.data() + to.values.size() - form.width(), value_of);
          });
  });
  return dump;
}

void GuestRows::read(std::span<const std::uint64_t> keys, std::span<float> values, std::span<std::uint32_t> marks,
                     std::span<std::uint8_t> found) {
  const std::uint64_t width = row_size(), record = state_.form().record();
  update::with_element_value(state_.settings, state_.core.live.settings.lr, [&](const auto& value_of) {
    for_batches(keys, [&](shm::TablePart& part, shm::TableLane& lane, const auto& batch, const auto& places) {
      for (std::size_t i = 0; i < batch.keys.size(); ++i)
        found[places[i]] = part.read(lane, batch, i, [&](const float* row) {
          marks[places[i]] = shm::TablePart::mark_of(row);
          shm::read_elements(values.data() + places[i] * width, row, record, width, value_of);
        });
    });
  });
}

GuestRows::Given GuestRows::give(std::uint32_t ticket, How how, std::span<const std::uint64_t> keys,
                                 std::span<const float> values, std::span<const float> bases) {
  const std::uint64_t width = row_size();
  const float rate = state_.core.live.settings.lr;
  Given given;
  GivenRows maker(state_, done(ticket));
  std::vector<float> lacking(width);
  const auto change_row = [&](float* row, update::Change change, const float* by) {
    update::with_element_change(state_.settings, change, rate,
                                [&](const auto& changed) { shm::update_row(row, by, width, Adds::kExact, changed); });
  };
  for_batches(keys, [&](shm::TablePart& part, shm::TableLane& lane, const auto& batch, const auto& places) {
    std::array<const float*, shm::kPins> wanted;
    std::array<float*, shm::kPins> rows;
    for (std::size_t i = 0; i < batch.keys.size(); ++i) wanted[i] = values.data() + places[i] * width;
    maker.use(batch.keys, wanted.data());
    part.pin(lane, batch, maker, true, rows.data());
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      if (rows[i] == nullptr) {
        ++given.absent;
        continue;
      }
      shm::AtomicShm<std::uint32_t>& mark = shm::TablePart::mark_of(rows[i]);
      const std::uint32_t before = mark.load_relaxed();  // relaxed: only guests write it, one at a time
      if (before == done(ticket)) continue;
      const bool is_in_doubt = how == How::kAdd && before % 2 != 0;
      bool is_different = is_in_doubt || how == How::kReset;
      if (how == How::kAdd && !is_in_doubt) {
        const float* const base = bases.data() + places[i] * width;
        for (std::uint64_t k = 0; k < width; ++k) lacking[k] = wanted[i][k] - base[k];
        if (before == 0)
          update::for_initial_values(state_.spec.seed, state_.spec.initial_range, width, batch.keys[i],
                                     [&](std::uint64_t k, float initial) { lacking[k] = wanted[i][k] - initial; });
        is_different = std::any_of(lacking.begin(), lacking.end(), [](float one) { return one != 0.0F; });
      }
      if (is_different) {
        mark.store_release(doing(ticket));  // (bridge.T3)
        shm::fault_point(shm::FaultPoint::kRowBeingGiven);
        if (how == How::kReset)
          change_row(rows[i], update::Change::kReset, wanted[i]);
        else if (is_in_doubt)
          change_row(rows[i], update::Change::kAssign, wanted[i]);
        else
          change_row(rows[i], update::Change::kAdd, lacking.data());
      }
      mark.store_release(done(ticket));  // (bridge.T3)
      shm::fault_point(shm::FaultPoint::kRowGiven);
      given.in_doubt += is_in_doubt;
    }
    part.unpin(lane);
  });
  return given;
}

}  // namespace ps_shm
