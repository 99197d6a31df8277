#include "schemes.hpp"

namespace ps_shm::bench {
namespace {

struct Name {
  Scheme scheme;
  const char* name;
};
constexpr Name kNames[] = {{Scheme::kPlain, "plain"},
                           {Scheme::kExact, "exact"},
                           {Scheme::kRacy, "racy"},
                           {Scheme::kStriped, "striped"},
                           {Scheme::kLock, "lock"}};

}  // namespace

std::optional<Scheme> scheme_of(const std::string& name) {
  for (const Name& one : kNames)
    if (name == one.name) return one.scheme;
  return {};
}

const char* to_string(Scheme scheme) noexcept {
  for (const Name& one : kNames)
    if (scheme == one.scheme) return one.name;
  return "";
}

std::unique_ptr<Table> make_table(Scheme scheme, int workers, const Task& task, std::uint32_t stripes) {
  switch (scheme) {
    case Scheme::kPlain:
      break;
    case Scheme::kExact:
    case Scheme::kRacy:
      return make_job_table(scheme == Scheme::kExact, workers, task);
    case Scheme::kStriped:
      return make_locked_table(stripes, workers, task);
    case Scheme::kLock:
      return make_locked_table(1, workers, task);
  }
  return make_plain_table(task);
}

}  // namespace ps_shm::bench
