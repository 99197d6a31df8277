#include "shm/segment/memory_policy.hpp"

#include <fmt/format.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>

#include "shm/segment/layout.hpp"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; older kernels answer EINVAL and leave it to khugepaged
#endif

namespace ps_shm::shm {

namespace {

// Whether libnuma can be used. Docker's default profile refuses get_mempolicy(). numa_available() of libnuma 2.0.16
// returns success all the same, and numa_get_mems_allowed() then prints an error.
bool has_numa() { return numa_available() >= 0 && get_mempolicy(nullptr, nullptr, 0, nullptr, 0) == 0; }

}  // namespace

std::vector<std::uint32_t> memory_nodes() {
  if (!has_numa()) return {0};
  std::vector<std::uint32_t> nodes;
  bitmask* allowed = numa_get_mems_allowed();
  for (int node = 0; node <= numa_max_node(); ++node)
    if (numa_bitmask_isbitset(allowed, static_cast<unsigned>(node)) != 0)
      nodes.push_back(static_cast<std::uint32_t>(node));
  numa_free_nodemask(allowed);
  return nodes;
}

bool prefer_node(void* address, std::size_t bytes, std::uint32_t node) noexcept {
  if (numa_available() < 0 || node >= 64) return false;
  const unsigned long nodes = 1UL << node;
  // Preferred, not bound: a full node must not cause SIGBUS while another node has memory.
  return mbind(address, bytes, MPOL_PREFERRED, &nodes, 65, 0) == 0;
}

double share_on_other_nodes(const void* address, std::size_t bytes, std::uint32_t node) {
  constexpr std::size_t kPages = 64;
  if (numa_available() < 0) return 0;
  const auto* begin = static_cast<const volatile char*>(address);
  std::vector<void*> pages;
  const std::size_t count = std::min(kPages, bytes / kPage);
  for (std::size_t i = 0; i < count; ++i) {
    const volatile char* page = begin + bytes / kPage * i / count * kPage;
    static_cast<void>(*page);  // a page that this process has not touched has no node
    pages.push_back(const_cast<char*>(page));
  }
  std::vector<int> nodes(pages.size(), -1);
  if (pages.empty() || numa_move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) return 0;
  const auto placed = std::count_if(nodes.begin(), nodes.end(), [](int at) { return at >= 0; });
  const auto others = std::count_if(nodes.begin(), nodes.end(), [&](int at) { return at >= 0 && at != int(node); });
  return placed == 0 ? 0 : double(others) / double(placed);
}

std::string why_no_huge_pages() {
  constexpr char kSetting[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  std::ifstream file(kSetting);
  std::string words;
  if (!std::getline(file, words))
    return fmt::format("this kernel has no transparent huge pages ({} is missing)", kSetting);
  for (const char* off : {"[never]", "[deny]"})
    if (words.find(off) != std::string::npos)
      return fmt::format("{} says '{}'; as root: echo advise > {}", kSetting, words, kSetting);
  return {};
}

void advise_huge_pages(void* address, std::size_t bytes) noexcept { madvise(address, bytes, MADV_HUGEPAGE); }
void collapse_huge_pages(void* address, std::size_t bytes) noexcept { madvise(address, bytes, MADV_COLLAPSE); }

}  // namespace ps_shm::shm
