#pragma once

#include <functional>
#include <optional>
#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/nn/unit_map.h"
#include "megatron/ops/fake_quantize.h"
#include "megatron/ops/fp8_format.h"
#include "megatron/ops/linear_adapter.h"

namespace megatron {

// How a parameter starts. Values come from the seed, the parameter's name and the global index of each
// element, so they do not depend on the layout.
struct Initializer {
  enum class Kind : uint8_t {
    Normal,
    Constant,
    Uniform,
    XavierUniform,
    LogUniform,
    StepBias
  } kind = Kind::Constant;
  double value = 0;  // the deviation of Normal, the constant, the lower bound of the others
  double upper = 0;

  static Initializer normal(double deviation) { return {Kind::Normal, deviation}; }
  static Initializer constant(double value) { return {Kind::Constant, value}; }
  static Initializer uniform(double bound) { return {Kind::Uniform, -bound, bound}; }
  // Uniform within ±√(6 / (rows + columns)) of the whole matrix, whatever share of it a rank holds.
  static Initializer xavier_uniform() { return {Kind::XavierUniform}; }
  // ln u, u uniform in [low, high).
  static Initializer log_uniform(double low, double high) { return {Kind::LogUniform, low, high}; }
  // softplus⁻¹(u), ln u uniform in [ln low, ln high).
  static Initializer step_bias(double low, double high) { return {Kind::StepBias, low, high}; }
};

struct Parameter {
  Parameter(std::string name, ShardSpec shard, Initializer initializer)
      : name(std::move(name)), shard(std::move(shard)), initializer(initializer) {}
  Parameter(std::string name, SplitShard split, Initializer initializer)
      : Parameter(std::move(name), std::move(split.shard), initializer) {
    holders = std::move(split.holders);
  }
  Parameter(const Parameter&) = delete;  // the tape and the gradient buffer point at the accumulator
  Parameter& operator=(const Parameter&) = delete;

  std::string name;  // global: the layer's index counts over all pipeline stages
  ShardSpec shard;
  HolderMap holders;  // where replicas share it out differently; empty otherwise, or where it is held whole
  Initializer initializer;
  bool trainable = true;
  bool expert = false;  // lives on the expert grid: its gradient is summed over Axis::edp
  bool partial_over_tp =
      false;                 // held whole by every TP (expert: ETP) rank, each with a part of the gradient
  bool keep_fp32 = false;    // fp32 (fp64 in an fp64 model) whatever the model's dtype
  bool quantizable = false;  // only linears and a table's look-up read it, which take narrow values
  bool tied_copy = false;    // the last stage's copy of the embedding: counted once in norms, never saved

  std::optional<bool> decays;  // whether weight decay touches it, instead of the usual rule

  bool sharded = false;  // value has memory only while its unit is in use

  Tensor value;
  Tensor scale;             // of narrow values, and
  DType wide = DType::F32;  // the dtype before, as Weight has them
  GradAccumulator accumulator;
  std::function<void(RankContext&)> before_use;        // the value may still be on its way until then
  std::unique_ptr<ops::Fp8Weight> fp8;                 // where set, GEMMs with it are made in fp8
  std::unique_ptr<ops::LinearAdapter> adapter;         // where set, linears with it are adapted
  std::unique_ptr<ops::FakeQuantizer> fake_quantizer;  // where set, linears with it round what they multiply

  // The weight at the point of use, whatever reads it. Linears go through apply_linear() (nn/linear.h).
  Weight get(RankContext& ctx) {
    require(!adapter, "{}: its adapter acts in linears alone, and this is another use of the weight", name);
    return get_adapted(ctx);
  }
  Weight get_adapted(RankContext& ctx) {  // of one who applies the adapter
    if (before_use) before_use(ctx);
    return {value, trainable ? &accumulator : nullptr, scale, wide};
  }

  // Over the ranks that split its kind: TP, or ETP for an expert's, whose first dimension counts experts.
  bool replicated_over_tp() const;
  // Biases and norms are not, also where those of all experts are one tensor; `decays` says otherwise.
  bool decayed() const { return decays.value_or(shard.global_shape.rank() > 1 && !name.ends_with(".bias")); }
  void allocate(RankContext& ctx, DType dtype);
  void allocate_gradient(RankContext& ctx);
  void initialize(RankContext& ctx, uint64_t seed);
};

using ParameterVisitor = std::function<void(Parameter&)>;

// Something with parameters. forward() is an ordinary typed member function of each module.
class Module {
 public:
  virtual ~Module() = default;
  virtual void visit(const ParameterVisitor& visitor) = 0;

  std::vector<Parameter*> parameters();
};

}  // namespace megatron
