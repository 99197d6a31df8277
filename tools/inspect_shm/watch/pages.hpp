// The pages of inspect_shm watch as styled lines, computed from a model by pure functions, without a terminal.
#pragma once

#include <cstddef>
#include <vector>

#include "inspect_shm/watch/model.hpp"
#include "inspect_shm/watch/text.hpp"

namespace ps_shm::watch {

inline constexpr std::size_t kLast = ~std::size_t{0};  // PageState::selected: the last entry

struct Screenful {
  std::vector<Line> lines;         // as many as there are rows, none wider than the columns
  std::vector<std::size_t> shown;  // the items of the list's lines: ranks, numbers of variables, ...
  std::size_t count = 0;           // number of entries of the page, after filtering
  std::size_t selected = kLast;    // the selected item; kLast: none
  std::size_t columns = 0;         // number of columns by which the list can be sorted
};

// Also adjusts `view` such that the selected entry is on the page.
Screenful draw(const Model& model, ViewState& view, std::size_t rows, std::size_t columns);

// One line, for output that is not a terminal.
std::string plain_line(const Model& model);

}  // namespace ps_shm::watch
