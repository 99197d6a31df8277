// Generates the page of all options (docs/options.md) from the tables of settings.
#pragma once

#include <string>

namespace ps_shm::tools {

std::string options_page();

}  // namespace ps_shm::tools
