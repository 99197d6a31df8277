#include "shm/steps/gpu_note.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace ps_shm::shm {
namespace {

// WorkerShm::gpu: {there : 1, native adds : 1, push : 3, pull : 3, node + 1 : 16, knows its address : 1, domain : 16,
// bus : 8, device : 8}, from the highest used bit down.
constexpr unsigned kKnownBit = 32, kNodeBit = 33, kPullBit = 49, kPushBit = 52, kAddsBit = 55, kThereBit = 56;

std::uint64_t note_bits(std::uint64_t word, unsigned first, unsigned bits) noexcept {
  return word >> first & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace

const char* to_string(PushPath push) noexcept { return push == PushPath::kStaged ? "staged" : "through host"; }

void note_gpu(WorkerShm& entry, const GpuNote& note) noexcept {
  unsigned domain = 0, bus = 0, device = 0;
  const bool is_known = std::sscanf(note.pci_address.c_str(), "%4x:%2x:%2x.0", &domain, &bus, &device) == 3;
  entry.gpu_uuid[0].store_relaxed(note.uuid[0]);  // relaxed, as all here: diagnostic only
  entry.gpu_uuid[1].store_relaxed(note.uuid[1]);
  entry.gpu_bytes.store_relaxed(note.registered_bytes);
  entry.gpu.store_relaxed(std::uint64_t{1} << kThereBit | std::uint64_t{note.native_adds} << kAddsBit |
                          static_cast<std::uint64_t>(note.push) << kPushBit |
                          static_cast<std::uint64_t>(note.pull) << kPullBit |
                          (static_cast<std::uint64_t>(note.node + 1) & 0xffff) << kNodeBit |
                          std::uint64_t{is_known} << kKnownBit | std::uint64_t{domain} << 16 | bus << 8 | device);
}

void forget_gpu(WorkerShm& entry) noexcept { entry.gpu.store_relaxed(0); }

std::optional<GpuNote> noted_gpu(const WorkerShm& entry) {
  const std::uint64_t word = entry.gpu.load_relaxed();
  if (note_bits(word, kThereBit, 1) == 0) return std::nullopt;
  GpuNote note;
  note.uuid = {entry.gpu_uuid[0].load_relaxed(), entry.gpu_uuid[1].load_relaxed()};
  if (note_bits(word, kKnownBit, 1) != 0)
    note.pci_address =
        fmt::format("{:04x}:{:02x}:{:02x}.0", note_bits(word, 16, 16), note_bits(word, 8, 8), note_bits(word, 0, 8));
  note.node = static_cast<int>(note_bits(word, kNodeBit, 16)) - 1;
  note.pull = static_cast<PullPath>(note_bits(word, kPullBit, 3));
  note.push = static_cast<PushPath>(note_bits(word, kPushBit, 3));
  note.native_adds = note_bits(word, kAddsBit, 1) != 0;
  note.registered_bytes = entry.gpu_bytes.load_relaxed();
  return note;
}

}  // namespace ps_shm::shm
