// The version of the programs, and what --version prints.
#pragma once

#include <string>

namespace ps_shm::tools {

const char* version_number();

// The path of the file NOTICE that was installed with the program, or that it is in the sources.
std::string notice_place();

// The program's version, its build, the CUDA that it was built for, the compiler and the licences, a line each.
std::string version_text(const char* program);

}  // namespace ps_shm::tools
