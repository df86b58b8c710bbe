#pragma once

namespace megatron {

// From now on new threads allocate from the heap that others have too. Each would otherwise get one of its
// own, whose end never goes back to the system, however much was once allocated there; for programs that run
// for long and whose threads allocate little at once.
void share_one_heap();

// Gives the system the pages in which the heap has nothing left, which it keeps for what is allocated next.
// Finding them takes up to milliseconds, so this is for programs that rest.
void return_free_pages();

}  // namespace megatron
