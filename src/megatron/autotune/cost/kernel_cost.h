#pragma once

#include <cstdint>

#include "megatron/autotune/cost/constants.h"
#include "megatron/autotune/cost/stack.h"
#include "megatron/autotune/machine/cluster.h"

namespace megatron::autotune {

enum class GemmType { bits16, bits8, bits4 };

// Share of a device's units that an M x N x K GEMM keeps busy: whole waves of tiles, whole tiles, and a K
// loop long enough to hide prologue and epilogue. `groups` GEMMs of that shape run as one kernel.
double gemm_occupancy(double m, double n, double k, int sms, double groups = 1);

// Seconds of C = A B with A of M x K, in one kernel.
double gemm_seconds(const GpuSpec& gpu, const CostConstants& constants, GemmType type, double m, double n,
                    double k, double groups = 1);

// Seconds that a kernel takes which only reads and writes so many bytes.
double memory_seconds(const GpuSpec& gpu, const CostConstants& constants, double bytes);

// One layer's attention of `tokens` query tokens that see `context` keys on average.
struct AttentionShape {
  double tokens, seq, context, heads, qk_dim, v_dim;
  bool latent = false;
  double batch = 1;  // sequences
};
struct AttentionSeconds {
  double forward, backward;
};
AttentionSeconds attention_seconds(const GpuSpec& gpu, const CostConstants& constants,
                                   AttentionBackend backend, const AttentionShape& shape, bool fused_softmax);

}  // namespace megatron::autotune
