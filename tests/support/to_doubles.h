#pragma once

#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron::testing {

// Every element as a double. The tensor is contiguous and on the CPU.
inline std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  auto read = [&]<class T>(T) {
    const T* data = tensor.data<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_arithmetic_v<T>) {
        values[i] = static_cast<double>(data[i]);
      } else {
        values[i] = static_cast<float>(data[i]);
      }
    }
  };
  switch (tensor.dtype()) {
    case DType::F64:
      read(double{});
      break;
    case DType::F32:
      read(float{});
      break;
    case DType::BF16:
      read(bf16{});
      break;
    case DType::F16:
      read(fp16{});
      break;
    case DType::F8E4M3:
      read(fp8_e4m3{});
      break;
    case DType::F8E5M2:
      read(fp8_e5m2{});
      break;
    case DType::I64:
      read(int64_t{});
      break;
    case DType::I32:
      read(int32_t{});
      break;
    case DType::I16:
      read(int16_t{});
      break;
    case DType::I8:
      read(int8_t{});
      break;
    case DType::U8:
      read(uint8_t{});
      break;
    case DType::Bool:
      read(bool{});
      break;
  }
  return values;
}

// Also of one that lies on a GPU, or has gaps.
inline std::vector<double> to_doubles(RankContext& ctx, const Tensor& tensor) {
  Tensor source = tensor.detach();
  if (!source.is_contiguous()) {
    Tensor packed = ctx.empty(source.shape(), source.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {source, packed});
    source = packed;
  }
  std::vector<std::byte> bytes(source.bytes() + 1);
  ctx.to_host(source, bytes.data());
  return to_doubles(Tensor::wrap(bytes.data(), source.shape(), source.dtype()));
}

}  // namespace megatron::testing
