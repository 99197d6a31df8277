// The pages that are lists: workers, variables, events, and the hottest rows. Sorted, filtered, with one line selected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "watch/model.hpp"
#include "watch/pages.hpp"
#include "watch/text.hpp"

namespace ps::watch {

// "14:03:07", in local time.
std::string time_of(std::uint64_t unix_ns);

// The list of the view's page. Says in `screen` what it shows.
std::vector<Line> list_of(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                          Screenful& screen);

// The chosen variable's hottest rows, below a word on where they are.
std::vector<Line> row_list(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                           Screenful& screen);

}  // namespace ps::watch
