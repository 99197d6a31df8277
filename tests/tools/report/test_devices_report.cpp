// What the inspector reports about GPUs, with a fake driver's answers.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "report/devices.hpp"
#include "support/scripted_cuda.hpp"

using namespace ps_shm;
using device::Attribute;
using test::ScriptedCuda;
using Json = nlohmann::ordered_json;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

int lines_of(const std::string& text) { return int(std::count(text.begin(), text.end(), '\n')); }

Json found_by(ScriptedCuda& cuda) { return report::to_json(device::probe_gpus(cuda, {})); }

// Two GPUs on PCIe that can access each other.
ScriptedCuda pcie_box() {
  ScriptedCuda cuda;
  cuda.devices = 2;
  for (int gpu = 0; gpu < 2; ++gpu) {
    cuda.described[gpu] = {"NVIDIA H200", fmt::format("ffff:{:02x}:00.0", 27 + gpu), 9, 0, 132, std::size_t{3} << 29};
    cuda.atomics[gpu] = std::vector<unsigned>(device::kAtomicOperations, 0U);
    cuda.attributes[{gpu, Attribute::kHostNumaNode}] = gpu;
    cuda.attributes[{gpu, Attribute::kHostNativeAtomics}] = 0;
    cuda.attributes[{gpu, Attribute::kHostRegisterSupported}] = 1;
    cuda.attributes[{gpu, Attribute::kReadOnlyRegistration}] = 1;
    cuda.peers[{gpu, 1 - gpu}] = 1;
  }
  return cuda;
}

}  // namespace

TEST_CASE("devices: without a GPU the report has two lines, and the second gives the reason") {
  ScriptedCuda cuda;
  cuda.driver = 0;
  cuda.fail("device_count", 1, device::kInsufficientDriver);
  const Json found = found_by(cuda);
  CHECK(found["driver"].is_null());
  CHECK(found["gpus"].empty());
  const std::string text = report::devices_as_text(found);
  CHECK(lines_of(text) == 2);
  CHECK(has(text, "CUDA: build for 13.0; driver none\nno GPU: there is no NVIDIA driver"));
}

TEST_CASE("devices: a build without CUDA says so") {
  ScriptedCuda cuda;
  cuda.built = false;
  cuda.built_version = 0;
  const Json found = found_by(cuda);
  CHECK(found["built_for"].is_null());
  CHECK(has(report::devices_as_text(found), "CUDA: build without; driver none\nno GPU: this build has no CUDA"));
}

TEST_CASE("devices: the JSON has each GPU's properties and strategies") {
  ScriptedCuda cuda = pcie_box();
  const Json found = found_by(cuda);
  CHECK(found["no_gpu"].is_null());
  CHECK(found["driver"] == "13.0");
  REQUIRE(found["gpus"].size() == 2);
  const Json& gpu = found["gpus"][1];
  CHECK(gpu["device"] == 1);
  CHECK(gpu["name"] == "NVIDIA H200");
  CHECK(gpu["pci_address"] == "ffff:1c:00.0");
  CHECK(gpu["numa_node"] == 1);
  CHECK(gpu["compute_capability"] == "9.0");
  CHECK(gpu["host_native_atomics"] == 0);
  CHECK(gpu["partial_host_native_atomics"].is_null());
  CHECK(gpu["float_add"] == Json({{"bits", 0}, {"scalar32", false}, {"vector32x4", false}}));
  CHECK(gpu["peers"] == Json::array({0}));
  const Json& versioned = gpu["strategy"]["versioned"];
  CHECK(versioned["pull"] == "kernel");
  CHECK(versioned["large_chunk_pull"] == "copy engine");
  CHECK(versioned["stream_waits"] == true);
  CHECK(versioned["push"] == "staged");
  CHECK(versioned["read_only"] == true);
  CHECK(gpu["strategy"]["additive_inplace"]["native_adds"] == false);
}

TEST_CASE("devices: the text has each GPU's properties, strategies and their reasons") {
  ScriptedCuda cuda = pcie_box();
  const Json found = found_by(cuda);
  const std::string text = report::devices_as_text(found);
  CHECK(has(text, "CUDA: build for 13.0; driver for 13.0\n"));
  CHECK(has(text, "GPU 1: NVIDIA H200 at ffff:1c:00.0, memory node 1, 1.5 GiB, compute capability 9.0, 132 multi"));
  CHECK(has(text, "native atomics on host memory: no (only some: unknown); float add: no (bits 0)\n"));
  CHECK(has(text, "registers host memory: yes, read-only: yes; stream memory waits: yes; peers: 0\n"));
  CHECK(has(text, "versioned job: pulls: kernel, of chunks of 128 KiB or more: copy engine; pushes: staged\n"));
  CHECK_FALSE(has(text, "updated by the GPU"));
  for (const auto& reason : found["gpus"][0]["strategy"]["versioned"]["reasons"])
    CHECK(has(text, "    " + reason.get<std::string>() + "\n"));
}

TEST_CASE("devices: the zones of the machine's memory are listed, and what a zone Movable means") {
  const Json zones = report::zones_of(
      "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 252524\n  pages free     2816\n        present  "
      "3998\nNode 0, zone   Normal\n        spanned  262144\n        present  262144\nNode 1, zone  Movable\n  pages "
      "free "
      "0\n        present  524288\nNode 1, zone   Device\n        present  0\n",
      4096);
  CHECK(zones == Json::array({{{"node", 0}, {"zone", "DMA"}, {"bytes", 3998 * 4096}},
                              {{"node", 0}, {"zone", "Normal"}, {"bytes", std::size_t{1} << 30}},
                              {{"node", 1}, {"zone", "Movable"}, {"bytes", std::size_t{2} << 30}}}));
  ScriptedCuda cuda = pcie_box();
  Json found = found_by(cuda);
  CHECK_FALSE(found["memory_zones"].empty());
  found["memory_zones"] = zones;
  CHECK(has(report::devices_as_text(found),
            "zones of memory: DMA of node 0 0.0 GiB, Normal of node 0 1.0 GiB, Movable of "
            "node 1 2.0 GiB; a driver may refuse to register memory of Movable"));
  found["memory_zones"] = Json::array();
  CHECK_FALSE(has(report::devices_as_text(found), "zones of memory"));
}

TEST_CASE("devices: native float adds affect only the in-place strategy") {
  ScriptedCuda cuda = pcie_box();
  cuda.attributes[{0, Attribute::kHostNativeAtomics}] = 1;
  cuda.atomics[0][static_cast<std::size_t>(device::AtomicOperation::kFloatAdd)] =
      device::kAtomicScalar32 | device::kAtomicVector32x4;
  const Json found = found_by(cuda);
  const Json& strategy = found["gpus"][0]["strategy"];
  CHECK(strategy["additive_inplace"]["native_adds"] == true);
  CHECK(strategy["additive_inplace"]["wide_adds"] == true);
  CHECK(strategy["versioned"]["native_adds"] == false);
  CHECK(has(report::devices_as_text(found), "float add: yes, also vectors of 4 (bits 72)"));
  CHECK(has(report::devices_as_text(found), "pushes: staged, in-place variables updated by the GPU\n"));
}

TEST_CASE("devices: what the driver does not know is null in JSON and unknown in text") {
  ScriptedCuda cuda;
  const Json found = found_by(cuda);
  for (const char* key : {"numa_node", "host_native_atomics", "float_add", "host_register_supported",
                          "read_only_registration", "uses_host_page_tables"})
    CHECK(found["gpus"][0][key].is_null());
  const std::string text = report::devices_as_text(found);
  CHECK(has(text, "memory node unknown"));
  CHECK(has(text, "float add: unknown to this driver"));
  CHECK(has(text, "peers: none"));
}
