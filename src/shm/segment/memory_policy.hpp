// Where a shard's pages are placed: memory nodes (libnuma) and huge pages. These are requests, which the system may
// refuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ps_shm::shm {

// Memory nodes that this process may use; only node 0 if there is no NUMA.
std::vector<std::uint32_t> memory_nodes();

// Places new pages of the mapping on that node while it has free memory, whichever process touches them first. False:
// the system refuses (no such node, or a container that may not call mbind); nothing has changed then.
[[nodiscard]] bool prefer_node(void* address, std::size_t bytes, std::uint32_t node) noexcept;

// The fraction of a mapping's pages that lie on other nodes, estimated from a sample of evenly spaced pages; 0 if the
// kernel does not tell. Touches the sampled pages.
double share_on_other_nodes(const void* address, std::size_t bytes, std::uint32_t node);

// Why shared memory cannot use huge pages here, and what to do; empty if it can.
std::string why_no_huge_pages();

// The first requests huge pages for this process's mapping. The second asks the kernel to make existing pages huge.
void advise_huge_pages(void* address, std::size_t bytes) noexcept;
void collapse_huge_pages(void* address, std::size_t bytes) noexcept;

}  // namespace ps_shm::shm
