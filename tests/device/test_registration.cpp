// Registering host memory, with a scripted table of CUDA calls. To it addresses are only numbers: no memory is
// accessed.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/registration.hpp"
#include "support/scripted_cuda.hpp"

using namespace ps_shm::device;
using ps_shm::test::ScriptedCuda;
using Calls = std::vector<std::string>;

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::uint64_t kBase = 0x7000'0000'0000;
const auto kPageBytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

std::byte* base() { return reinterpret_cast<std::byte*>(kBase); }

std::string address(std::uint64_t offset) { return fmt::format("{:#x}", kBase + offset); }

std::string registered(std::uint64_t offset, std::size_t bytes, unsigned flags = 3) {
  return fmt::format("host_register {} {} {}", address(offset), bytes, flags);
}
std::string unregistered(std::uint64_t offset) { return "host_unregister " + address(offset); }
std::string asked(std::uint64_t offset) { return "device_address " + address(offset); }

struct Scene {
  ScriptedCuda cuda;
  Registration registration{cuda};
  RegistrationTotals totals;
  std::string why;

  bool try_register(std::size_t bytes, bool read_only = false) {
    return registration.try_register(base(), bytes, read_only, totals, why);
  }
  std::uint64_t device(std::size_t offset) const { return reinterpret_cast<std::uint64_t>(registration.at(offset)); }
};

void check_nothing_is_left(const Scene& scene) {
  CHECK(scene.registration.bytes() == 0);
  CHECK(scene.registration.regions().empty());
  CHECK(scene.registration.at(0) == nullptr);
  CHECK(scene.registration.contiguous_at(0) == 0);
  CHECK(scene.totals.bytes == 0);
  CHECK(scene.cuda.pending == 0);
}

}  // namespace

TEST_CASE("registration: a small range is one call, in full pages, for all contexts and mapped") {
  Scene scene;
  REQUIRE(scene.try_register(1));
  CHECK(scene.cuda.calls == Calls{registered(0, kPageBytes), asked(0)});
  CHECK(scene.registration.bytes() == kPageBytes);
  CHECK(scene.totals.bytes == kPageBytes);
  CHECK(scene.totals.calls == 1);
  CHECK(scene.totals.seconds > 0);
}

TEST_CASE("registration: a large range is registered by the GiB, and each region's device address is queried") {
  Scene scene;
  REQUIRE(scene.try_register(2 * kGiB + 5000));
  const std::size_t rest = (5000 + kPageBytes - 1) / kPageBytes * kPageBytes;
  CHECK(scene.cuda.calls == Calls{registered(0, kGiB), asked(0), registered(kGiB, kGiB), asked(kGiB),
                                  registered(2 * kGiB, rest), asked(2 * kGiB)});
  CHECK(scene.registration.regions().size() == 3);
  CHECK(scene.registration.bytes() == 2 * kGiB + rest);
  CHECK(scene.totals.calls == 3);
}

TEST_CASE("registration: a range of exactly two GiB has two regions") {
  Scene scene;
  REQUIRE(scene.try_register(2 * kGiB));
  CHECK(scene.cuda.calls == Calls{registered(0, kGiB), asked(0), registered(kGiB, kGiB), asked(kGiB)});
}

TEST_CASE("registration: read-only is a flag of every call") {
  Scene scene;
  REQUIRE(scene.try_register(kGiB + 1, true));
  CHECK(scene.cuda.calls == Calls{registered(0, kGiB, 11), asked(0), registered(kGiB, kPageBytes, 11), asked(kGiB)});
}

TEST_CASE("registration: where registering for reading only is refused, memory is registered for writing, too") {
  for (const CudaError error : {kNotSupported, kInvalidValue}) {
    Scene scene;
    scene.cuda.fail("host_register", 2, error);
    REQUIRE(scene.try_register(3 * kGiB, true));
    CHECK(scene.cuda.calls == Calls{registered(0, kGiB, 11), asked(0), registered(kGiB, kGiB, 11), "last_error",
                                    registered(kGiB, kGiB), asked(kGiB), registered(2 * kGiB, kGiB), asked(2 * kGiB)});
    CHECK(scene.cuda.pending == 0);
    CHECK(scene.totals.calls == 4);
    CHECK(scene.totals.bytes == 3 * kGiB);
    CHECK(scene.totals.read_only_refusal.find("for reading only") != std::string::npos);
  }
}

TEST_CASE("registration: if there is no memory for registering, it is not tried in another way") {
  Scene scene;
  scene.cuda.fail("host_register", 1, kOutOfMemory);
  CHECK_FALSE(scene.try_register(kGiB, true));
  CHECK(scene.cuda.count_of("host_register") == 1);
  CHECK(scene.totals.read_only_refusal.empty());
}

TEST_CASE("registration: an empty range makes no call") {
  Scene scene;
  CHECK(scene.try_register(0));
  CHECK(scene.cuda.calls.empty());
  check_nothing_is_left(scene);
}

TEST_CASE("registration: a range that is registered already, or part of one, makes no call") {
  Scene scene;
  REQUIRE(scene.try_register(3 * kPageBytes));
  scene.cuda.forget_calls();
  CHECK(scene.try_register(3 * kPageBytes));
  CHECK(scene.try_register(2 * kPageBytes + 1));
  CHECK(scene.try_register(0));
  CHECK(scene.cuda.calls.empty());
  CHECK(scene.registration.bytes() == 3 * kPageBytes);
}

TEST_CASE("registration: an extension registers the last, partial region again and adds the new ones") {
  Scene scene;
  REQUIRE(scene.try_register(kGiB + kPageBytes));
  scene.cuda.forget_calls();
  REQUIRE(scene.try_register(3 * kGiB));
  CHECK(scene.cuda.calls ==
        Calls{unregistered(kGiB), registered(kGiB, kGiB), asked(kGiB), registered(2 * kGiB, kGiB), asked(2 * kGiB)});
  CHECK(scene.registration.regions().size() == 3);
  CHECK(scene.totals.bytes == 3 * kGiB);
  CHECK(scene.totals.calls == 4);
}

TEST_CASE("registration: an extension after a full region does not register it again") {
  Scene scene;
  REQUIRE(scene.try_register(kGiB));
  scene.cuda.forget_calls();
  REQUIRE(scene.try_register(kGiB + 1));
  CHECK(scene.cuda.calls == Calls{registered(kGiB, kPageBytes), asked(kGiB)});
}

TEST_CASE("registration: if a region is refused, previous ones are unregistered in reverse, and the error cleared") {
  for (int nth = 1; nth <= 3; ++nth) {
    CAPTURE(nth);
    Scene scene;
    scene.cuda.fail("host_register", nth, kOutOfMemory);
    CHECK_FALSE(scene.try_register(3 * kGiB));
    Calls expected;
    for (int i = 0; i < nth; ++i) {
      const auto offset = static_cast<std::uint64_t>(i) * kGiB;
      expected.push_back(registered(offset, kGiB));
      if (i + 1 < nth) expected.push_back(asked(offset));
    }
    expected.emplace_back("last_error");
    for (int i = nth - 1; i-- > 0;) expected.push_back(unregistered(static_cast<std::uint64_t>(i) * kGiB));
    CHECK(scene.cuda.calls == expected);
    CHECK(scene.totals.calls == static_cast<std::uint64_t>(nth));
    check_nothing_is_left(scene);
  }
}

TEST_CASE("registration: a region without a device address is unregistered with the previous ones") {
  for (int nth = 1; nth <= 3; ++nth) {
    CAPTURE(nth);
    Scene scene;
    scene.cuda.fail("device_address", nth, kInvalidValue);
    CHECK_FALSE(scene.try_register(3 * kGiB));
    Calls expected;
    for (int i = 0; i < nth; ++i) {
      const auto offset = static_cast<std::uint64_t>(i) * kGiB;
      expected.push_back(registered(offset, kGiB));
      expected.push_back(asked(offset));
    }
    expected.emplace_back("last_error");
    for (int i = nth; i-- > 0;) expected.push_back(unregistered(static_cast<std::uint64_t>(i) * kGiB));
    CHECK(scene.cuda.calls == expected);
    check_nothing_is_left(scene);
  }
}

TEST_CASE("registration: a refusal names the call, the range and the driver's error in one line") {
  Scene scene;
  scene.cuda.fail("host_register", 2, kOutOfMemory);
  CHECK_FALSE(scene.try_register(2 * kGiB));
  CHECK(scene.why == "cudaHostRegister of 1073741824 bytes at offset 1073741824: cudaError2: as scripted");
}

TEST_CASE("registration: memory that is invalid to the driver may lie in a zone that it cannot pin, which is said") {
  Scene scene;
  scene.cuda.fail("host_register", 1, kInvalidValue);
  CHECK_FALSE(scene.try_register(kGiB));
  CHECK(scene.why.find("cudaError1: as scripted; the memory may lie in a zone Movable") != std::string::npos);
}

TEST_CASE("registration: from 8 GiB on it is announced, with about how long it takes") {
  CHECK(announcement_of(8 * kGiB).empty());
  const std::string line = announcement_of(100 * kGiB);
  CHECK(line.find("100 GiB") != std::string::npos);
  CHECK(line.find("about 0.1 s a GiB") != std::string::npos);
  CHECK(line.find('\n') == std::string::npos);
}

TEST_CASE("registration: a refused extension unregisters everything, the totals keep what is registered elsewhere") {
  Scene scene;
  scene.totals.bytes = 7 * kGiB;  // another object's
  REQUIRE(scene.try_register(kGiB + kPageBytes));
  scene.cuda.forget_calls();
  scene.cuda.fail("host_register", 4, kOutOfMemory);
  CHECK_FALSE(scene.try_register(3 * kGiB));
  CHECK(scene.cuda.calls == Calls{unregistered(kGiB), registered(kGiB, kGiB), asked(kGiB), registered(2 * kGiB, kGiB),
                                  "last_error", unregistered(kGiB), unregistered(0)});
  CHECK(scene.totals.bytes == 7 * kGiB);
  scene.totals.bytes = 0;
  check_nothing_is_left(scene);
}

TEST_CASE("registration: an extension whose partial region cannot be unregistered is refused") {
  Scene scene;
  REQUIRE(scene.try_register(kGiB + kPageBytes));
  scene.cuda.forget_calls();
  scene.cuda.fail("host_unregister", 1, kNotRegistered);
  CHECK_FALSE(scene.try_register(2 * kGiB));
  CHECK(scene.cuda.calls == Calls{unregistered(kGiB), "last_error", unregistered(0)});
  CHECK(scene.why.find("cudaHostUnregister of") == 0);
  check_nothing_is_left(scene);
}

TEST_CASE("registration: after a refusal the same object can register again") {
  Scene scene;
  scene.cuda.fail("host_register", 1, kOutOfMemory);
  CHECK_FALSE(scene.try_register(kGiB));
  CHECK(scene.try_register(kPageBytes));
  CHECK(scene.registration.bytes() == kPageBytes);
}

TEST_CASE("registration: an address inside a page and a second base are refused") {
  Scene scene;
  CHECK_FALSE(scene.registration.try_register(base() + 8, kGiB, false, scene.totals, scene.why));
  CHECK(scene.why.find("not where a page") != std::string::npos);
  CHECK(scene.cuda.calls.empty());
  REQUIRE(scene.try_register(kPageBytes));
  CHECK_FALSE(scene.registration.try_register(base() + kGiB, kGiB, false, scene.totals, scene.why));
  CHECK(scene.cuda.calls.back() == unregistered(0));
  check_nothing_is_left(scene);
}

TEST_CASE("registration: a size that overflows when rounded to pages is refused") {
  Scene scene;
  CHECK_FALSE(scene.try_register(SIZE_MAX - 1));
  CHECK(scene.cuda.calls.empty());
}

TEST_CASE("registration: unregister passes the addresses that were registered, once") {
  Scene scene;
  REQUIRE(scene.try_register(2 * kGiB + 1));
  scene.cuda.forget_calls();
  scene.registration.unregister();
  CHECK(scene.cuda.calls == Calls{unregistered(2 * kGiB), unregistered(kGiB), unregistered(0)});
  scene.cuda.forget_calls();
  scene.registration.unregister();
  CHECK(scene.cuda.calls.empty());
  CHECK(scene.registration.bytes() == 0);
}

TEST_CASE("registration: the destructor unregisters") {
  ScriptedCuda cuda;
  {
    Registration registration(cuda);
    RegistrationTotals totals;
    std::string why;
    REQUIRE(registration.try_register(base(), kGiB + 1, false, totals, why));
    cuda.forget_calls();
  }
  CHECK(cuda.calls == Calls{unregistered(kGiB), unregistered(0)});
}

TEST_CASE("registration: an unregister that fails is cleared and the other regions are unregistered") {
  Scene scene;
  REQUIRE(scene.try_register(3 * kGiB));
  scene.cuda.forget_calls();
  scene.cuda.fail("host_unregister", 2, kNotRegistered);
  scene.registration.unregister();
  CHECK(scene.cuda.calls == Calls{unregistered(2 * kGiB), unregistered(kGiB), "last_error", unregistered(0)});
  CHECK(scene.cuda.pending == 0);
  CHECK(scene.registration.bytes() == 0);
}

TEST_CASE("registration: device addresses follow each region's own base") {
  Scene scene;
  scene.cuda.region_gap = 0x10'0000;
  REQUIRE(scene.try_register(2 * kGiB + kPageBytes));
  const std::uint64_t first = kBase + scene.cuda.device_offset;
  CHECK(scene.registration.regions() ==
        std::vector<std::uint64_t>{first, first + kGiB + 0x10'0000, first + 2 * kGiB + 0x20'0000});
  CHECK(scene.device(0) == first);
  CHECK(scene.device(kGiB - 1) == first + kGiB - 1);
  CHECK(scene.device(kGiB) == first + kGiB + 0x10'0000);
  CHECK(scene.device(2 * kGiB + 12) == first + 2 * kGiB + 0x20'0000 + 12);
  CHECK(scene.device(2 * kGiB + kPageBytes) == 0);
}

TEST_CASE("registration: if device addresses have gaps, a range ends with its region") {
  Scene scene;
  scene.cuda.region_gap = 0x10'0000;
  REQUIRE(scene.try_register(2 * kGiB + kPageBytes));
  CHECK(scene.registration.contiguous_at(0) == kGiB);
  CHECK(scene.registration.contiguous_at(kGiB - 4) == 4);
  CHECK(scene.registration.contiguous_at(kGiB) == kGiB);
  CHECK(scene.registration.contiguous_at(2 * kGiB + 16) == kPageBytes - 16);
  CHECK(scene.registration.contiguous_at(2 * kGiB + kPageBytes) == 0);
}

TEST_CASE("registration: if device addresses are contiguous, a range crosses regions") {
  Scene scene;
  REQUIRE(scene.try_register(2 * kGiB + kPageBytes));
  CHECK(scene.registration.contiguous_at(0) == 2 * kGiB + kPageBytes);
  CHECK(scene.registration.contiguous_at(kGiB - 4) == kGiB + kPageBytes + 4);
  CHECK(scene.registration.contiguous_at(2 * kGiB + kPageBytes - 1) == 1);
  CHECK(scene.registration.contiguous_at(3 * kGiB) == 0);
}
