#pragma once

namespace megatron {

// What a profiler that watches this process, such as Nsight Systems, is told. Implemented by device/cuda with
// NVTX; by device/none, in a build without CUDA, as nothing.
bool has_profiler();

void begin_profiler_range(const char* name);  // ranges of a thread nest
void end_profiler_range();

// Where the profiler was told to wait for it (nsys profile --capture-range=cudaProfilerApi), it records
// between the two.
void start_profiler();
void stop_profiler();

}  // namespace megatron
