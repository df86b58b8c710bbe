#include "megatron/training/step/fp8_setup.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "megatron/config/resolve/precision_recipe.h"
#include "megatron/training/step/module_name.h"

namespace megatron {
namespace {

// The layer that a parameter belongs to by its name, "decoder.layers.7.…"; −1: none.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view word = "layers.";
  size_t at = name.find(word);
  int64_t layer = -1;
  if (at != std::string_view::npos)
    std::from_chars(name.data() + at + word.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

bool is_linear_weight(std::string_view name) {
  if (name.starts_with("vision_")) return false;
  for (const char* end : {".linear_qkv.weight", ".linear_q.weight", ".linear_kv.weight",
                          ".linear_q_proj.weight", ".linear_q_down_proj.weight", ".linear_q_up_proj.weight",
                          ".linear_kv_down_proj.weight", ".linear_kv_up_proj.weight", ".linear_proj.weight",
                          ".in_proj.weight", ".out_proj.weight", ".linear_fc1.weight", ".linear_fc2.weight"})
    if (name.ends_with(end)) return true;
  return false;
}

void choose_fp8(const Config& config, std::span<Parameter* const> parameters) {
  const PrecisionConfig& p = config.precision;
  const bool on = p.fp8 != Fp8Format::none;
  if (!on && p.te_precision_config_file.empty()) return;
  const PrecisionRecipe by_module = PrecisionRecipe::read(p.te_precision_config_file);
  const int64_t first = p.bf16_at_start(), last = config.model.num_layers - p.bf16_at_end();
  const std::string_view output_layer = config.model.share_embeddings_and_output_weights
                                            ? "embedding.word_embeddings.weight"
                                            : "output_layer.weight";
  for (Parameter* parameter : parameters) {
    int64_t layer = layer_of(parameter->name);
    const bool linear = is_linear_weight(parameter->name);
    const bool output = on && p.fp8_output_proj && parameter->name.ends_with(output_layer);
    if (!linear && !output) continue;
    // What the model's own settings say of it, and the file in place of that.
    const bool quantized = output || (on && layer >= first && layer < last);
    PrecisionRecipe::Format format{quantized, p.fp8_recipe == Fp8Recipe::blockwise, p.fp8};
    const auto own = by_module.of(output ? "output_layer" : module_of(parameter->name), quantized);
    format = own.value_or(format);
    if (!format.fp8) continue;
    parameter->fp8 = std::make_unique<ops::Fp8Weight>();
    parameter->fp8->wide_wgrad = !p.fp8_wgrad;
    parameter->fp8->blocks = format.blocks;
    parameter->fp8->delayed = !own && p.fp8_recipe == Fp8Recipe::delayed;
    if (format.kind == Fp8Format::e4m3) parameter->fp8->gradient = DType::F8E4M3;
  }
}

Fp8History::Fp8History(RankContext& ctx, const PrecisionConfig& precision,
                       std::span<Parameter* const> parameters)
    : length_(precision.fp8_amax_history_len),
      most_recent_(precision.fp8_amax_compute_algo == AmaxAlgorithm::most_recent) {
  int64_t count = 0;
  for (const bool expert : {false, true}) {
    for (Parameter* parameter : parameters)
      if (parameter->fp8 && parameter->fp8->delayed && parameter->expert == expert) {
        weights_.push_back({parameter, count, expert ? parameter->shard.local_shape[0] : 1});
        count += weights_.back().rows;
      }
    if (!expert) dense_ = count;
  }
  auto make = [&](Shape shape, double value) {
    return ctx.full(shape, DType::F32, value, MemoryTag::Optimizer);
  };
  amax_ = make({count, 3}, 0);
  scale_ = make({count, 3}, 1);
  history_ = make({count, length_, 3}, 0);
  std::vector<float> largest;
  auto largest_of = [&](DType dtype) {
    return static_cast<float>((dtype == DType::F8E4M3 ? 448.0 : 57344.0) *
                              std::exp2(-static_cast<double>(precision.fp8_margin)));
  };
  for (const Scaled& weight : weights_) {
    ops::Fp8Weight& fp8 = *weight.parameter->fp8;
    for (int64_t row = 0; row < weight.rows; ++row)
      largest.insert(largest.end(),
                     {largest_of(fp8.forward), largest_of(fp8.forward), largest_of(fp8.gradient)});
    int64_t kind = 0;
    for (ops::Fp8Delay* delay : {&fp8.input_delay, &fp8.weight_delay, &fp8.gradient_delay}) {
      delay->amax = weight.of(amax_).slice(1, kind, kind + 1);
      ++kind;
    }
  }
  largest_ = ctx.from_vector(largest, {count, 3});
}

void Fp8History::start_step(RankContext& ctx) {
  if (weights_.empty()) return;
  ctx.kernels->fill(ctx.kernel_context(), {amax_, 0});
  for (const Scaled& weight : weights_)
    weight.parameter->fp8->current = false;  // its own largest value is met again
}

void Fp8History::forget_scales() {
  for (const Scaled& weight : weights_) {
    ops::Fp8Weight& fp8 = *weight.parameter->fp8;
    for (ops::Fp8Delay* delay : {&fp8.input_delay, &fp8.weight_delay, &fp8.gradient_delay}) delay->scale = {};
  }
}

void Fp8History::finish_step(RankContext& ctx, const ParallelContext& parallel, const Tensor& gate) {
  if (weights_.empty()) return;
  const auto share = [&](const Tensor& amax, Axis tensor, Axis data) {
    if (amax.numel() == 0) return;
    for (const Axis axis : {tensor, data}) parallel.group(axis).all_reduce(amax, ReduceOp::Max).wait();
  };
  share(amax_.slice(0, 0, dense_), Axis::tp, Axis::dp_cp);
  share(amax_.slice(0, dense_, amax_.size(0)), Axis::etp, Axis::edp);
  auto kernels = ctx.kernel_context();
  Tensor next = ctx.empty(history_.shape(), DType::F32);
  if (length_ > 1) ctx.kernels->copy(kernels, {history_.slice(1, 0, length_ - 1), next.slice(1, 1, length_)});
  ctx.kernels->copy(kernels, {amax_.view({amax_.size(0), 1, 3}), next.slice(1, 0, 1)});
  ctx.kernels->where(kernels, {gate.expand(history_.shape()), next, history_, history_});
  ctx.kernels->fill(kernels, {amax_, 0});
  use(ctx);
}

void Fp8History::use(RankContext& ctx) {
  auto kernels = ctx.kernel_context();
  const Shape shape = scale_.shape();
  Tensor amax = ctx.empty(shape, DType::F32), fresh = ctx.empty(shape, DType::F32);
  if (most_recent_)
    ctx.kernels->copy(kernels, {history_.slice(1, 0, 1), amax.view({shape[0], 1, 3})});
  else
    ctx.kernels->reduce(kernels, {Reduction::Max, history_, amax, shape[0], length_, 3});
  ctx.kernels->binary(kernels, {Binary::Div, largest_, amax, fresh});
  // Where nothing was met, or something infinite, the scale stays.
  Tensor right = ctx.empty(shape, DType::Bool), bound = ctx.full(shape, DType::F32, 0);
  ctx.kernels->compare(kernels, {Comparison::Less, bound, amax, right});
  ctx.kernels->where(kernels, {right, fresh, scale_, fresh});
  ctx.kernels->fill(kernels, {bound, static_cast<double>(std::numeric_limits<float>::max())});
  ctx.kernels->compare(kernels, {Comparison::LessEqual, amax, bound, right});
  ctx.kernels->where(kernels, {right, fresh, scale_, fresh});
  ctx.kernels->copy(kernels, {fresh, scale_});
  for (const Scaled& weight : weights_) {
    ops::Fp8Weight& fp8 = *weight.parameter->fp8;
    int64_t kind = 0;
    for (ops::Fp8Delay* delay : {&fp8.input_delay, &fp8.weight_delay, &fp8.gradient_delay}) {
      delay->scale = weight.of(scale_).slice(1, kind, kind + 1);
      ++kind;
    }
  }
}

std::vector<Fp8History::State> Fp8History::state() const {
  std::vector<State> states;
  for (const Scaled& weight : weights_) {
    const Tensor history = weight.of(history_);
    const ShardSpec& shard = weight.parameter->shard;
    if (!weight.parameter->expert) {
      states.push_back({weight.parameter, history.view({length_, 3}), ShardSpec::whole({length_, 3})});
      continue;
    }
    ShardSpec spec{{shard.global_shape[0], length_, 3}, history.shape(), {}};
    spec.blocks.push_back({{shard.blocks.front().global_offset[0], 0, 0}, {0, 0, 0}, history.shape()});
    states.push_back({weight.parameter, history, std::move(spec)});
  }
  return states;
}

}  // namespace megatron
