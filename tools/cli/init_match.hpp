// --init-match: selects the variables that are initialised from a file.
#pragma once

#include <string>

namespace ps_shm::tools {

// Throws Error if the pattern is not a regular expression.
void check_init_match(const std::string& pattern);

// Whether a part of the name matches the pattern; an empty one matches all. Requires: check_init_match(pattern) passed.
bool matches_init(const std::string& pattern, const std::string& name);

}  // namespace ps_shm::tools
