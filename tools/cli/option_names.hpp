// Converts the library's messages for the programs.
#pragma once

#include <string>

namespace ps_shm::tools {

// Replaces each setting in backquotes by its option: "raise `max-workers`" becomes
// "raise --max-workers".
std::string with_option_names(const std::string& message);

}  // namespace ps_shm::tools
