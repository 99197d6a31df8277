#include "ps_shm/version.hpp"

namespace ps_shm {

const char* library_version() noexcept { return PS_SHM_VERSION; }

}  // namespace ps_shm
