// Where a shard's pages go: memory nodes (libnuma) and huge pages. Asked for, never insisted on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ps::shm {

// Memory nodes that this process may use; node 0 alone where there is no NUMA.
std::vector<std::uint32_t> memory_nodes();

// New pages of the mapping, in whichever process they are touched first, come from that node while it has any. False:
// the system refuses (no such node, or a container that may not call mbind); nothing has changed then.
[[nodiscard]] bool prefer_node(void* address, std::size_t bytes, std::uint32_t node) noexcept;

// Which share of a mapping's pages, of some that lie evenly over it, is in another node's memory; 0 where the kernel does
// not say. Touches these pages.
double share_on_other_nodes(const void* address, std::size_t bytes, std::uint32_t node);

// Why shared memory can't have huge pages here, with what to do; empty where it can.
std::string why_no_huge_pages();

// This process's mapping asks for huge pages; of what exists already the kernel makes them as it can.
void advise_huge_pages(void* address, std::size_t bytes) noexcept;
void collapse_huge_pages(void* address, std::size_t bytes) noexcept;

}  // namespace ps::shm
