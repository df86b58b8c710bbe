#include "megatron/base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace megatron {
namespace {

size_t whole_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

void advise_huge_pages(void* data, size_t bytes) { ::madvise(data, bytes, MADV_HUGEPAGE); }

void* map_huge_pages(size_t bytes) {
  // A mapping begins at any small page: one huge page more holds an aligned part, and the rest goes back.
  const size_t size = whole_pages(bytes), mapped = size + kHugePage;
  if (size < bytes || mapped < size) throw std::bad_alloc();
  void* const pages = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(pages);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + size, kHugePage - before);
  advise_huge_pages(begin + before, size);
  return begin + before;
}

void unmap_huge_pages(void* data, size_t bytes) noexcept {
  if (data) ::munmap(data, whole_pages(bytes));
}

HugePages make_huge_pages(size_t bytes, bool present) {
  HugePages pages(static_cast<std::byte*>(map_huge_pages(bytes)), HugePagesDeleter{bytes});
  if (present)
    for (size_t at = 0; at < bytes; at += kHugePage) pages.get()[at] = std::byte{0};
  return pages;
}

}  // namespace megatron
