// Libraries that only a Python package has: pip installs CUDA's as nvidia/*/lib in the folder of packages.
#pragma once

#include <string>
#include <vector>

namespace ps_shm::train {

// The paths of this library in the packages of the Pythons on PATH (a virtual environment is there while it is active),
// and of the user's own.
std::vector<std::string> libraries_of_python_packages(const std::string& library);

}  // namespace ps_shm::train
