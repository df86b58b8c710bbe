#include "megatron/ops/rope.h"

#include "megatron/ops/check.h"
#include "megatron/ops/rope_device.h"

namespace megatron::ops {
namespace {

Tensor rotate(RankContext& ctx, const Tensor& x, const Rotation& rotation, bool inverse) {
  Tensor y = ctx.empty(x.shape(), x.dtype());
  ctx.kernels->rope(ctx.kernel_context(), {.x = x,
                                           .y = y,
                                           .cos = rotation.cos,
                                           .sin = rotation.sin,
                                           .interleaved = rotation.interleaved,
                                           .inverse = inverse});
  trace(ctx, "rope", inverse ? Phase::BackwardData : Phase::Forward, 3.0 * static_cast<double>(x.numel()),
        {&x, &y, &rotation.cos, &rotation.sin});
  return y;
}

class RopeNode final : public Node {
 public:
  RopeNode(const Tensor& x, const Rotation& rotation) : slot_(x.grad_slot()), rotation_(rotation) {}
  const char* name() const override { return "rope"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    tape.add_grad(ctx, slot_, rotate(ctx, tape.take_grad(output()), rotation_, true));
    rotation_ = {};
  }

 private:
  GradSlot slot_;
  Rotation rotation_;
};

}  // namespace

DeviceFrequencies to_device(RankContext& ctx, const RopeFrequencies& frequencies, DType model_dtype) {
  const auto count = static_cast<int64_t>(frequencies.inverse.size());
  if (accumulation_dtype(model_dtype) == DType::F64)
    return {ctx.from_vector(frequencies.inverse, {count}), frequencies.amplitude};
  const std::vector<float> narrow(frequencies.inverse.begin(), frequencies.inverse.end());
  return {ctx.from_vector(narrow, {count}), frequencies.amplitude};
}

Rotation rope_tables(RankContext& ctx, const Tensor& positions, const RopeFrequencies& frequencies,
                     DType model_dtype, bool interleaved, std::array<int64_t, 3> sections) {
  return rope_tables(ctx, positions, to_device(ctx, frequencies, model_dtype), interleaved, sections);
}

Rotation rope_tables(RankContext& ctx, const Tensor& positions, const DeviceFrequencies& frequencies,
                     bool interleaved, std::array<int64_t, 3> sections) {
  check_input(ctx, "rope_tables", "positions", positions);
  check_dtype("rope_tables", "positions", positions, DType::I64);
  const int64_t count = frequencies.inverse.size(0);
  const DType dtype = frequencies.inverse.dtype();
  bool three = positions.rank() == 2;
  require(positions.rank() == 1 || (three && positions.size(0) == 3),
          "rope_tables: positions are {}, but must be [tokens] or [3, tokens]", positions);
  require(positions.is_contiguous(), "rope_tables: positions {} must be contiguous", positions);
  int64_t covered = sections[0] + sections[1] + sections[2];
  require(!three || covered == count,
          "rope_tables: the sections {}, {}, {} cover {} frequencies, but there are {}", sections[0],
          sections[1], sections[2], covered, count);
  int64_t tokens = positions.size(-1);
  Rotation rotation{ctx.empty({tokens, count}, dtype), ctx.empty({tokens, count}, dtype), interleaved};
  ctx.kernels->rope_table(ctx.kernel_context(), {.positions = positions,
                                                 .inverse_frequencies = frequencies.inverse,
                                                 .cos = rotation.cos,
                                                 .sin = rotation.sin,
                                                 .amplitude = frequencies.amplitude,
                                                 .sections = {sections[0], sections[1], sections[2]}});
  trace(ctx, "rope_tables", Phase::Forward, 40.0 * static_cast<double>(tokens * count),
        {&rotation.cos, &rotation.sin});
  return rotation;
}

Tensor rope(RankContext& ctx, const Tensor& x, const Rotation& rotation) {
  check_input(ctx, "rope", "x", x);
  check_floating("rope", "x", x);
  check_input(ctx, "rope", "cos", rotation.cos);
  check_input(ctx, "rope", "sin", rotation.sin);
  require(x.rank() == 3, "rope: x is {}, but must be [tokens, heads, head_dim]", x);
  require(rotation.cos.rank() == 2 && rotation.cos.size(0) == x.size(0),
          "rope: the angles {} do not fit x {}: there must be one row per token", rotation.cos, x);
  check_shape("rope", "sin", rotation.sin, rotation.cos.shape());
  for (const Tensor* table : {&rotation.cos, &rotation.sin})
    check_dtype("rope", "cos and sin", *table, accumulation_dtype(x.dtype()));
  require(2 * rotation.cos.size(1) <= x.size(2),
          "rope: {} frequencies rotate {} elements, but x {} has head_dim {}", rotation.cos.size(1),
          2 * rotation.cos.size(1), x, x.size(2));
  Tensor input = x.detach();
  if (input.stride(-1) != 1) input = detach_contiguous(ctx, input);
  Tensor y = rotate(ctx, input, rotation, false);
  if (needs_grad(ctx, {&x})) record(ctx, std::make_unique<RopeNode>(x, rotation), y);
  return y;
}

}  // namespace megatron::ops
