// How the programs show the library's messages.
#pragma once

#include <string>

namespace ps::tools {

// With each setting, which stands in backquotes there, as the option that it is: "raise `max-workers`" becomes
// "raise --max-workers".
std::string with_option_names(const std::string& message);

}  // namespace ps::tools
