// The version of the programs, and what --version prints.
#pragma once

#include <string>

namespace ps_shm::tools {

const char* version_number();

// The program's version, its build, the CUDA that it was built for and the compiler, a line each.
std::string version_text(const char* program);

}  // namespace ps_shm::tools
