#include "megatron/device/profiler.h"

namespace megatron {

bool has_profiler() { return false; }

void begin_profiler_range(const char*) {}
void end_profiler_range() {}
void start_profiler() {}
void stop_profiler() {}

}  // namespace megatron
