// The pages of inspect_shm watch, as lines of styled text made of a model: pure functions, which know no terminal.
#pragma once

#include <cstddef>
#include <vector>

#include "watch/model.hpp"
#include "watch/text.hpp"

namespace ps::watch {

inline constexpr std::size_t kLast = ~std::size_t{0};  // PageState::selected: whatever is the last one

struct Screenful {
  std::vector<Line> lines;         // as many as there are rows, none wider than the columns
  std::vector<std::size_t> shown;  // what the lines of the page's list are about: ranks, numbers of variables, ...
  std::size_t count = 0;           // of what the page lists, filtered
  std::size_t selected = kLast;    // what the selected line is about; kLast: there is none
  std::size_t columns = 0;         // that the list can be sorted by
};

// Brings `view` in order, too: what is selected is on the page.
Screenful draw(const Model& model, ViewState& view, std::size_t rows, std::size_t columns);

// One line for where there is no terminal.
std::string plain_line(const Model& model);

}  // namespace ps::watch
