#pragma once

#include <span>
#include <string_view>

namespace megatron::autotune {

// What cannot be read off a data sheet. Shares are of the data sheet's figure, before the shape of an
// operation counts.
struct CostConstants {
  double gemm16 = 0.70;            // sustained 16-bit GEMM
  double gemm8 = 0.62;             // sustained fp8 GEMM
  double gemm4 = 0.42;             // sustained fp4 GEMM
  double attention = 1;            // fused attention against the table of attention_cost
  double memory = 0.72;            // elementwise kernels
  double nvlink = 0.73;            // ring collectives inside a domain
  double nic = 0.67;               // network
  double rails = 1;                // power with which the NICs of a group's members in one domain add up
  double exposed = 0.35;           // of communication that runs beside computation
  double host_moe_ms = 9.2;        // host time of a MoE layer, forward and backward, partial graphs
  double host_forward_ms = 0.12;   // host time of a dense layer's forward pass
  double host_backward_ms = 0.24;  // and of its backward pass
  double host_wait_ms = 0;         // more for a pass, per tensor rank whose host it waits for
  double host_width = 0;       // how host time falls with the width of a layer, as a power of hidden / 2048
  double host_softmax_ms = 0;  // more for a layer's passes where softmax is not fused
  double host_microbatch_ms = 0;  // embedding, loss, schedule: host time of a micro-batch apart from layers
  double kernel_us = 2;           // start and end of a kernel, in which the GPU does nothing
  double shape = 1;               // how strongly a GEMM's occupancy counts, as a power
  double smooth = 8;              // how sharply the slower of host and GPU decides, as the power of a norm
  double latency_us = 12;         // of a collective
  double step_ms = 15;            // what an iteration costs apart from everything else, several GPUs
  double step_single_ms = 3;      // one GPU
  double optimizer = 1;           // bytes that an update moves, against the stack's figure
  double grad_reduce = 1;         // efficiency of the gradients' all-reduce against other collectives
};

// A constant that may be fitted: towards its prior, in the logarithm, with a standard deviation `spread`.
struct FittedConstant {
  std::string_view name;
  std::string_view meaning;
  double CostConstants::*member;
  double spread;
  double low, high;
};

// What published tables of one GPU kind determine, and what plans measured on small models determine.
std::span<const FittedConstant> published_constants();
std::span<const FittedConstant> measured_constants();

// Priors for A100 with the software of 2022, whose host time bounds small models.
CostConstants a100_constants();

// Priors for ranks that are threads on a CPU's cores, which launch nothing and copy on the cores that
// compute; and what short runs of small models determine of them.
CostConstants cpu_constants();
std::span<const FittedConstant> cpu_fitted_constants();

}  // namespace megatron::autotune
