// What the driver says of the box, asked and not measured.
#include <fmt/format.h>

#include <utility>

#include "../report.hpp"
#include "device/probe.hpp"
#include "on_gpu.hpp"

namespace ps_shm::bench {
namespace {

using device::Attribute;

constexpr std::pair<Attribute, const char*> kAttributes[] = {
    {Attribute::kHostNativeAtomics, "host_native_atomics"},
    {Attribute::kPageableAccess, "pageable_memory_access"},
    {Attribute::kCanUseHostPointer, "can_use_host_pointer_for_registered_memory"},
    {Attribute::kHostRegisterSupported, "host_register_supported"},
    {Attribute::kUsesHostPageTables, "pageable_access_uses_host_page_tables"},
    {Attribute::kReadOnlyRegistration, "host_register_read_only_supported"},
    {Attribute::kHostNumaNode, "host_numa_id"},
    {Attribute::kPartialHostNativeAtomics, "only_partial_host_native_atomics"}};

constexpr const char* kOperations[device::kAtomicOperations] = {
    "integer_add", "integer_min", "integer_max",      "integer_increment", "integer_decrement", "and",      "or",
    "xor",         "exchange",    "compare_exchange", "float_add",         "float_min",         "float_max"};

Json attributes_of(int device) {
  Json all;
  for (const auto& [attribute, name] : kAttributes) {
    int value = 0;
    const device::CudaError error = cuda().attribute(attribute, device, value);
    if (error != device::kSuccess) static_cast<void>(cuda().last_error());
    all[name] = {{"number", int(attribute)}, {"value", error == device::kSuccess ? Json(value) : Json()}};
  }
  return all;
}

Json host_atomics_of(int device) {
  Json all;
  for (int operation = 0; operation < device::kAtomicOperations; ++operation) {
    const auto asked = static_cast<device::AtomicOperation>(operation);
    unsigned bits = 0;
    const device::CudaError error = cuda().host_atomics(device, std::span(&asked, 1), std::span(&bits, 1));
    if (error == device::kSuccess) {
      all[kOperations[operation]] = bits;
    } else {
      static_cast<void>(cuda().last_error());
      all[kOperations[operation]] = cuda().error_text(error);
    }
  }
  return all;
}

// Whether several copies can be given to the driver in one call.
std::string copies_in_batches() {
  const device::OwnStream stream(cuda());
  const device::DeviceMemory<float> from(cuda(), 8), to(cuda(), 8);
  void* const targets[] = {to.on_device(), to.on_device() + 4};
  const void* const sources[] = {from.on_device(), from.on_device() + 4};
  const std::size_t bytes[] = {16, 16};
  device::CudaError error = cuda().copy_batch(targets, sources, bytes, stream.get());
  if (error == device::kSuccess) error = cuda().synchronize(stream.get());
  if (error == device::kSuccess) return "yes";
  static_cast<void>(cuda().last_error());
  return "no: " + cuda().error_text(error);
}

Json of_gpu(const device::GpuInfo& gpu) {
  const device::DeviceProperties& is = gpu.properties;
  const std::string link = "/sys/bus/pci/devices/" + is.pci_address + "/";
  return {{"name", is.name},
          {"pci_address", is.pci_address},
          {"pci_link",
           {{"speed", read_line(link + "current_link_speed")},
            {"width", read_line(link + "current_link_width")},
            {"most_speed", read_line(link + "max_link_speed")},
            {"most_width", read_line(link + "max_link_width")}}},
          {"numa_node", gpu.numa_node},
          {"compute_capability", fmt::format("{}.{}", is.major, is.minor)},
          {"multiprocessors", is.multiprocessors},
          {"memory_bytes", is.memory_bytes},
          {"peers", gpu.peers},
          {"attributes", attributes_of(gpu.device)},
          {"host_atomics", host_atomics_of(gpu.device)}};
}

}  // namespace

Json facts(const SectionOptions&) {
  const device::GpuProbe probe = device::probe_gpus(cuda());
  if (probe.why_none) return {{"no_gpu", probe.reason}};
  begin_gpu();
  Json gpus = Json::array();
  for (const device::GpuInfo& gpu : probe.gpus) gpus.push_back(of_gpu(gpu));
  return {{"driver_version", probe.driver_version},
          {"built_for", probe.built_for},
          {"module", read_line("/proc/driver/nvidia/version")},
          {"stream_wait_value", cuda().can_wait_value()},
          {"copies_in_batches", copies_in_batches()},
          {"gpus", gpus}};
}

}  // namespace ps_shm::bench
