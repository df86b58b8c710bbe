#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

// Counts the bytes that a test program asks operator new for. One file of the program includes it.
namespace megatron::testing {

std::atomic<size_t> allocated = 0;  // so far

}  // namespace megatron::testing

void* operator new(size_t size) {
  megatron::testing::allocated += size;
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {  // std::stable_sort asks for its buffer so
  megatron::testing::allocated += size;
  return std::malloc(size ? size : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
