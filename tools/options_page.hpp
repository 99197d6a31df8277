// The page of all options (docs/options.md), made of the tables of settings.
#pragma once

#include <string>

namespace ps::tools {

std::string options_page();

}  // namespace ps::tools
