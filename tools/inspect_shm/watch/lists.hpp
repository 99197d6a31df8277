// The list pages: workers, variables, events, and the hottest rows. Sorted and filtered, with one line selected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect_shm/watch/model.hpp"
#include "inspect_shm/watch/pages.hpp"
#include "inspect_shm/watch/text.hpp"

namespace ps_shm::watch {

// "14:03:07", in local time.
std::string time_of(std::uint64_t unix_ns);

// The list of the view's page. Records in `screen` what it shows.
std::vector<Line> list_of(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                          Screenful& screen);

// The hottest rows of the chosen variable, after a line about their location.
std::vector<Line> row_list(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                           Screenful& screen);

}  // namespace ps_shm::watch
