#include "megatron/autotune/cost/constants.h"

#include <array>

namespace megatron::autotune {

std::span<const FittedConstant> published_constants() {
  using C = CostConstants;
  static constexpr std::array table{
      FittedConstant{"gemm16", "sustained 16-bit GEMM / peak", &C::gemm16, 0.10, 0.4, 0.95},
      FittedConstant{"gemm8", "sustained fp8 GEMM / peak", &C::gemm8, 0.10, 0.3, 0.95},
      FittedConstant{"memory", "elementwise / memory peak", &C::memory, 0.10, 0.4, 0.95},
      FittedConstant{"nvlink", "ring collectives / NVLink", &C::nvlink, 0.08, 0.3, 1.0},
      FittedConstant{"nic", "network / NIC", &C::nic, 0.10, 0.3, 1.0},
      FittedConstant{"exposed", "overlapped communication that shows", &C::exposed, 0.3, 0.05, 0.9},
      FittedConstant{"host_moe_ms", "host time of a MoE layer", &C::host_moe_ms, 0.05, 1, 20},
  };
  return table;
}

std::span<const FittedConstant> measured_constants() {
  using C = CostConstants;
  static constexpr std::array table{
      FittedConstant{"gemm16", "sustained 16-bit GEMM / peak", &C::gemm16, 0.15, 0.3, 0.98},
      FittedConstant{"memory", "elementwise / memory peak", &C::memory, 0.2, 0.3, 0.98},
      FittedConstant{"nvlink", "ring collectives / NVLink", &C::nvlink, 0.3, 0.1, 1.0},
      FittedConstant{"nic", "network / NIC", &C::nic, 0.3, 0.1, 1.0},
      FittedConstant{"rails", "power of a group's NICs in one node", &C::rails, 0.3, 0.05, 1},
      FittedConstant{"grad_reduce", "gradients' all-reduce / others", &C::grad_reduce, 0.3, 0.2, 2},
      FittedConstant{"kernel_us", "idle time around a kernel", &C::kernel_us, 0.5, 0.5, 20},
      FittedConstant{"shape", "power of a GEMM's occupancy", &C::shape, 0.3, 0.5, 4},
      FittedConstant{"smooth", "norm of host and GPU time", &C::smooth, 0.1, 2, 30},
      FittedConstant{"latency_us", "latency of a collective", &C::latency_us, 0.5, 2, 200},
      FittedConstant{"host_forward_ms", "host time of a layer's forward pass", &C::host_forward_ms, 0.3, 0.1,
                     3},
      FittedConstant{"host_backward_ms", "host time of a layer's backward pass", &C::host_backward_ms, 0.3,
                     0.1, 5},
      FittedConstant{"host_wait_ms", "wait for a tensor rank's host", &C::host_wait_ms, 0.5, 0.002, 1},
      FittedConstant{"host_width", "power of 2048 / hidden in it", &C::host_width, 0.5, 0.01, 1},
      FittedConstant{"host_softmax_ms", "host time of an unfused softmax", &C::host_softmax_ms, 0.5, 0.02, 2},
      FittedConstant{"host_microbatch_ms", "host time beside layers", &C::host_microbatch_ms, 0.5, 0.1, 20},
      FittedConstant{"step_ms", "iteration beside all else", &C::step_ms, 0.5, 0.5, 60},
      FittedConstant{"optimizer", "bytes of an update / assumed", &C::optimizer, 0.3, 0.3, 4},
  };
  return table;
}

CostConstants a100_constants() {
  CostConstants c;
  c.gemm16 = 0.80;
  c.memory = 0.75;
  c.nvlink = 0.65;
  c.host_forward_ms = 0.75;
  c.host_backward_ms = 2.0;
  c.host_wait_ms = 0.04;
  c.host_width = 0.15;
  c.host_softmax_ms = 0.25;
  c.host_microbatch_ms = 2;
  c.latency_us = 20;
  c.kernel_us = 5;
  c.rails = 0.7;
  c.step_ms = 5;
  c.step_single_ms = 5;
  return c;
}

CostConstants cpu_constants() {
  CostConstants c;
  c.gemm16 = 0.3;
  c.memory = 0.4;
  c.nvlink = 0.3;
  c.exposed = 0.9;
  c.host_moe_ms = 0;
  c.host_forward_ms = 0;
  c.host_backward_ms = 0;
  c.kernel_us = 10;
  c.shape = 0.3;
  c.latency_us = 30;
  c.step_ms = 1;
  c.step_single_ms = 1;
  return c;
}

std::span<const FittedConstant> cpu_fitted_constants() {
  using C = CostConstants;
  static constexpr std::array table{
      FittedConstant{"gemm16", "sustained 16-bit GEMM / peak", &C::gemm16, 1, 0.002, 20},
      FittedConstant{"attention", "attention / table", &C::attention, 1, 0.01, 20},
      FittedConstant{"memory", "elementwise / memory peak", &C::memory, 1, 0.005, 20},
      FittedConstant{"nvlink", "collectives / copies", &C::nvlink, 1, 0.005, 20},
      FittedConstant{"kernel_us", "start of an operator", &C::kernel_us, 1, 0.1, 500},
      FittedConstant{"shape", "power of a GEMM's occupancy", &C::shape, 0.5, 0.02, 2},
      FittedConstant{"latency_us", "latency of a collective", &C::latency_us, 1, 0.5, 5000},
      FittedConstant{"step_ms", "iteration beside all else", &C::step_ms, 1, 0.05, 60},
      FittedConstant{"optimizer", "bytes of an update / assumed", &C::optimizer, 0.7, 0.1, 10},
  };
  return table;
}

}  // namespace megatron::autotune
