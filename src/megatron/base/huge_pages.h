#pragma once

#include <cstddef>
#include <memory>

namespace megatron {

inline constexpr size_t kHugePage = size_t{2} << 20;

// Asks for huge pages where memory that begins at one is first used. Where the system has none, small ones
// do.
void advise_huge_pages(void* data, size_t bytes);

// Zeroed memory of its own mapping, for whatever is large: it begins at a huge page and has these as far as
// the system gives them. A disk reads and writes such memory in long runs, and addresses in it are translated
// quickly. Throws std::bad_alloc.
void* map_huge_pages(size_t bytes);
void unmap_huge_pages(void* data, size_t bytes) noexcept;

struct HugePagesDeleter {
  size_t bytes = 0;
  void operator()(std::byte* data) const { unmap_huge_pages(data, bytes); }
};
using HugePages = std::unique_ptr<std::byte, HugePagesDeleter>;
// `present`: huge pages are made now, by this thread, not when they are first used.
HugePages make_huge_pages(size_t bytes, bool present = false);

}  // namespace megatron
