#include "shm/segment/damage.hpp"

#include <fmt/format.h>

#include "ps_shm/errors.hpp"

namespace ps_shm::shm {

void fail_damaged(const std::string& segment, const std::string& what) {
  throw Error(fmt::format("/dev/shm/{} is damaged: {}; remove its job with inspect_shm rm `force`", segment, what),
              ErrorCode::kDamaged);
}

}  // namespace ps_shm::shm
