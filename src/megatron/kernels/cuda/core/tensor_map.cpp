#include "megatron/kernels/cuda/core/tensor_map.h"

#include <cuda_runtime.h>

namespace megatron::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found without linking the driver, so that programs start where there is none.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
  cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found)
                                                                       : nullptr;
}

}  // namespace

bool make_tensor_map(DType dtype, const Matrices& m, int row_bytes, int box_rows, CUtensorMap& map) {
  static const Encode encode = find_encode();
  const int64_t size = dtype == DType::F32 ? 4
                       : is_fp8(dtype)     ? 1
                                           : 2,
                row = m.row * size, matrix = m.matrix * size;
  if (!encode || reinterpret_cast<uintptr_t>(m.data) % 16 || row % 16 || matrix % 16) return false;
  const auto type = dtype == DType::F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : is_fp8(dtype)        ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : dtype == DType::BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto swizzle = row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                              static_cast<cuuint64_t>(m.count)},
                   strides[] = {static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(matrix)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(row_bytes / size), static_cast<cuuint32_t>(box_rows), 1},
                   steps[] = {1, 1, 1};
  return encode(&map, type, 3, const_cast<void*>(m.data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace megatron::cuda
