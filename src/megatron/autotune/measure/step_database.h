#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::autotune {

// What an op's time depends on beside its sizes: arithmetic slows down with the clock, memory does not.
enum class OpClass : uint8_t { gemm, fp8_gemm, grouped_gemm, attention, memory };

// One op of a training step with its sizes. Ops of one family differ in them alone.
struct StepOp {
  std::string family;  // op, phase and dtype: "linear forward bf16"; attention has its head dimension, too
  OpClass kind = OpClass::memory;
  // GEMM: M, N, K. Grouped: experts, rows of all, N, K. Attention: queries of all heads, keys that one of
  // them reads, head dimension. Others: megabytes, and the last dimension of what is read first.
  std::array<double, 4> sizes = {};
  double count = 1;  // in a step
  double us = 0;     // microseconds of one; 0: not measured

  friend bool operator==(const StepOp&, const StepOp&) = default;
};

// From the text of an op key, as in "linear forward bf16[4096,1024] bf16[1024,3072] bf16[4096,3072]".
StepOp step_op(std::string_view key, double flops, double bytes);

// Ops of a step in the order in which they run on shapes alone. Where a GPU runs a GEMM and its activation as
// one kernel, they become one op.
class StepOps {
 public:
  explicit StepOps(bool fuses) : fuses_(fuses) {}
  void add(std::string_view key, double flops, double bytes);
  // Equal ops as one with their count.
  std::vector<StepOp> counted() const;

 private:
  bool fuses_;
  std::vector<StepOp> ops_;
};

// A step that was measured, and its ops.
struct MeasuredStep {
  std::string name;
  double us = 0;       // of the step alone
  double op_us = 0;    // of all its ops, those too that are left out below
  double host_us = 0;  // until the host had launched all of it
  std::vector<StepOp> ops;
};

// Steps of small models on one kind of device, as a file of lines: a header, families, and for each step its
// ops with their sizes.
struct StepDatabase {
  std::string device, library;
  std::vector<MeasuredStep> steps;

  // Adds a step in the place of one that has its name.
  void put(MeasuredStep step);
  // Ops that take less than this share of their step are left out where two others of their family are there,
  // or where all of it takes next to nothing, which keeps the file small.
  std::string text(double least_share = 0) const;
  static StepDatabase parse(const std::string& text, std::string_view origin);
};

}  // namespace megatron::autotune
