#include "megatron/autotune/cost/kernel_cost.h"

#include <algorithm>
#include <cmath>

namespace megatron::autotune {
namespace {

struct Tile {
  double m, n, speed;
};
// Larger tiles reuse operands more; smaller ones waste less at edges.
constexpr Tile kTiles[] = {{128, 256, 1.0},  {256, 128, 1.0}, {192, 128, 0.97},
                           {128, 128, 0.93}, {64, 256, 0.88}, {64, 128, 0.8}};

double peak_flops(const GpuSpec& gpu, GemmType type) {
  if (type == GemmType::bits4 && gpu.tflops4 > 0) return gpu.tflops4 * 1e12;
  if (type != GemmType::bits16 && gpu.tflops8 > 0) return gpu.tflops8 * 1e12;
  return gpu.tflops16 * 1e12;
}

}  // namespace

double gemm_occupancy(double m, double n, double k, int sms, double groups) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n) * groups;
    const double edges = m * n * groups / (tiles * tile.m * tile.n);
    const double waves = std::ceil(tiles / sms);
    const double busy = edges * tiles / (waves * sms);
    best = std::max(best, tile.speed * 0.5 * (busy + std::min(edges, edges * tiles / sms)));
  }
  return best * k / (k + 256);
}

double gemm_seconds(const GpuSpec& gpu, const CostConstants& constants, GemmType type, double m, double n,
                    double k, double groups) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const bool fp4 = type == GemmType::bits4 && gpu.tflops4 > 0;
  const double share = gpu.sustained * (type == GemmType::bits16 ? constants.gemm16
                                        : fp4                    ? constants.gemm4
                                                                 : constants.gemm8);
  const double width = type == GemmType::bits16 ? 2 : 1;
  const double arithmetic =
      2 * m * n * k * groups /
      (peak_flops(gpu, type) * share * std::pow(gemm_occupancy(m, n, k, gpu.sms, groups), constants.shape));
  const double traffic = groups * (width * (m * k + k * n) + 2 * m * n);
  return std::max(arithmetic, memory_seconds(gpu, constants, traffic));
}

double memory_seconds(const GpuSpec& gpu, const CostConstants& constants, double bytes) {
  return bytes / (constants.memory * gpu.memory_tbs * 1e12);
}

AttentionSeconds attention_seconds(const GpuSpec& gpu, const CostConstants& constants,
                                   AttentionBackend backend, const AttentionShape& shape,
                                   bool fused_softmax) {
  if (shape.tokens <= 0 || shape.heads <= 0) return {0, 0};
  const double flops = 2 * shape.tokens * shape.context * shape.heads * (shape.qk_dim + shape.v_dim);
  const double peak = gpu.sustained * gpu.tflops16 * 1e12;
  if (backend == AttentionBackend::unfused) {
    // Two batched GEMMs over all keys, masked ones too, and passes over the scores.
    const double batches = shape.heads * shape.batch;
    const double rows = shape.tokens / shape.batch;
    const double scores = shape.tokens * shape.seq * shape.heads;
    const double product =
        gemm_seconds(gpu, constants, GemmType::bits16, rows, shape.seq, shape.qk_dim, batches) +
        gemm_seconds(gpu, constants, GemmType::bits16, rows, shape.v_dim, shape.seq, batches);
    const double more = fused_softmax ? 1 : 2.5;
    return {product + memory_seconds(gpu, constants, 6 * more * scores),
            2 * product + memory_seconds(gpu, constants, 10 * more * scores)};
  }
  const bool flash2 = backend == AttentionBackend::flash2;
  double forward = flash2 ? 0.33 : shape.latent ? 0.56 : shape.qk_dim <= 64 ? 0.46 : 0.62;
  double backward = flash2 ? 0.29 : shape.latent ? 0.42 : shape.qk_dim <= 64 ? 0.38 : 0.51;
  const double length = shape.seq / (shape.seq + 256) * constants.gemm16 / 0.75 * constants.attention;
  return {flops / (peak * forward * length), 2.5 * flops / (peak * backward * length)};
}

}  // namespace megatron::autotune
