#include "megatron/kernels/limits/gemm.h"

#include "megatron/kernels/limits/gpu.h"
#include "megatron/kernels/limits/grid.h"

namespace megatron {
namespace {

// Casts to fp8 go tile by tile, with the rows in the grid.
std::optional<Refusal> too_many_rows(const Tensor& x) {
  const int64_t rows = x.rank() < 2 ? 1 : x.size(0);
  if (rows <= limits::kTileRows) return {};
  return Refusal{
      LaunchLimit::Fp8Rows, rows,
      fmt::format("the CUDA kernels take {} rows of a matrix in fp8, not {}", limits::kTileRows, rows)};
}

std::optional<Refusal> too_old(int has) {
  if (has == 0 || has >= limits::kFp8Capability) return {};
  return Refusal{LaunchLimit::Fp8Generation, has,
                 fmt::format("a GPU of compute capability {} has no products in fp8, which begin with {}",
                             capability_text(has), capability_text(limits::kFp8Capability))};
}

std::optional<Refusal> without_fp8_experts(int has) {
  if (std::optional<Refusal> refusal = too_old(has)) return refusal;
  if (has == 0 || has == limits::kFp8ExpertsCapability) return {};
  return Refusal{
      LaunchLimit::Fp8Experts, has,
      fmt::format("a GPU of compute capability {} has no fast products of experts in fp8: those of "
                  "{} alone have them",
                  capability_text(has), capability_text(limits::kFp8ExpertsCapability))};
}

}  // namespace

std::optional<Refusal> refuse(const GemmArgs& args, const GpuFacts& gpu) {
  if (!is_fp8(args.a.dtype())) return {};
  const int has = gpu.compute_capability;
  if (std::optional<Refusal> refusal = too_old(has)) return refusal;
  if (has != 0 && has != limits::kBlockwiseFp8Capability && args.a_block_rows != 0)
    return Refusal{LaunchLimit::Fp8Blocks, has,
                   fmt::format("a GPU of compute capability {} has no products with a scale per block: those "
                               "of {} alone have them",
                               capability_text(has), capability_text(limits::kBlockwiseFp8Capability))};
  return {};
}

std::optional<Refusal> refuse(const GroupedGemmArgs& args, const GpuFacts& gpu) {
  return is_fp8(args.a.dtype()) ? without_fp8_experts(gpu.compute_capability) : std::nullopt;
}

std::optional<Refusal> refuse(const GroupedGemmWeightArgs& args, const GpuFacts& gpu) {
  if (is_fp8(args.a.dtype()))
    if (std::optional<Refusal> refusal = without_fp8_experts(gpu.compute_capability)) return refusal;
  const int64_t columns = args.c.size(1);
  if (columns <= limits::kTileRows) return {};
  return Refusal{
      LaunchLimit::ExpertColumns, columns,
      fmt::format("the CUDA kernels take {} columns of an expert, not {}", limits::kTileRows, columns)};
}

std::optional<Refusal> refuse(const QuantizeArgs& args, const GpuFacts&) { return too_many_rows(args.x); }
std::optional<Refusal> refuse(const QuantizeBlocksArgs& args, const GpuFacts&) {
  return too_many_rows(args.x);
}

}  // namespace megatron
