#include "megatron/base/heap.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace megatron {

void share_one_heap() {
#ifdef __GLIBC__
  ::mallopt(M_ARENA_MAX, 1);
#endif
}

void return_free_pages() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace megatron
