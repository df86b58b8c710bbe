#include "megatron/training/setup/upcycle.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "megatron/nn/parameter.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

constexpr std::string_view kDense = ".mlp.linear_fc", kExperts = ".mlp.experts.experts.linear_fc",
                           kRouter = ".mlp.router.", kLayers = "decoder.layers.";

// How a tensor of experts follows from one of the dense MLP.
struct Expansion {
  std::string dense;
  Shape dense_shape;
  int dim = -1;       // of the dense tensor, which experts have parts of; −1: all of it
  int64_t parts = 1;  // gate and up lie one behind the other in it
  int64_t width = 0;  // of an expert
  double scale = 1;
};

class Upcycler {
 public:
  Upcycler(TensorSource dense, const ModelConfig& model, uint64_t seed)
      : dense_(std::move(dense)), model_(model), seed_(seed) {
    for (const StoredTensor& stored : dense_.tensors) add(stored);
  }

  std::vector<StoredTensor> tensors() const { return tensors_; }
  void read(RankContext& ctx, const ShardedTensor& part) const {
    if (const auto found = expansions_.find(part.name); found != expansions_.end())
      return expand(ctx, found->second, part);
    if (part.name.find(kRouter) != std::string::npos) return draw_router(ctx, part);
    dense_.read(ctx, part);
  }

 private:
  int64_t granularity() const { return model_.moe_upcycling_granularity; }
  int64_t width() const {
    return model_.moe_ffn_hidden_size ? model_.moe_ffn_hidden_size : model_.ffn_hidden_size;
  }

  // Of each matrix, so that their product makes up for the probabilities. A gated or squared activation
  // multiplies three of them.
  double weight_scale() const {
    const auto g = static_cast<double>(granularity());
    const double lost = model_.moe_router_pre_softmax ? static_cast<double>(model_.num_moe_experts) * g /
                                                            static_cast<double>(model_.moe_router_topk)
                                                      : g;
    const bool cubic = model_.gated_linear_unit || model_.activation_func == Activation::squared_relu;
    return cubic ? std::cbrt(lost) : std::sqrt(lost);
  }

  bool becomes_experts(std::string_view name) const;
  void add(const StoredTensor& stored);
  void add_router(const std::string& layer);
  void expand(RankContext& ctx, const Expansion& expansion, const ShardedTensor& part) const;
  void read_box(RankContext& ctx, const Expansion& expansion, int64_t expert, const Box& box,
                const Tensor& target) const;
  void draw_router(RankContext& ctx, const ShardedTensor& part) const;

  TensorSource dense_;
  ModelConfig model_;
  uint64_t seed_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, Expansion> expansions_;
};

// Layers that stay dense keep their MLP.
bool Upcycler::becomes_experts(std::string_view name) const {
  if (!name.starts_with(kLayers)) return false;
  return has_experts(model_, std::atoll(name.data() + kLayers.size()));
}

void Upcycler::add(const StoredTensor& stored) {
  if (stored.name.starts_with("optimizer.") || stored.name.starts_with("fp8.history.")) return;
  const size_t at = stored.name.find(kDense);
  const bool post_norm = stored.name.find(".post_layernorm.") != std::string::npos;
  if (at == std::string::npos || post_norm || !becomes_experts(stored.name)) {
    tensors_.push_back(stored);
    return;
  }
  const std::string layer = stored.name.substr(0, at);
  const std::string rest = stored.name.substr(at + kDense.size());
  const bool weight = rest.ends_with(".weight"), first = rest.starts_with("1");
  Expansion expansion{.dense = stored.name,
                      .dense_shape = stored.shape,
                      .dim = first    ? 0
                             : weight ? 1
                                      : -1,
                      .parts = first && model_.gated_linear_unit ? 2 : 1,
                      .width = width(),
                      .scale = weight || first ? weight_scale() : 1};
  Shape shape{model_.num_moe_experts};
  for (int64_t size : stored.shape) shape.push_back(size);
  if (expansion.dim >= 0) {
    const int64_t wanted = expansion.parts * width() * granularity(), found = stored.shape[expansion.dim];
    if (found != wanted)
      throw ConfigError(
          fmt::format("--moe-use-upcycling: {} of {} is {} wide, but {} experts' widths of {} are {}; give "
                      "--moe-ffn-hidden-size and --moe-upcycling-granularity whose product is {}",
                      stored.name, dense_.path, found / expansion.parts, granularity(), width(),
                      wanted / expansion.parts, found / expansion.parts));
    shape[expansion.dim + 1] = expansion.parts * width();
  }
  const std::string name = fmt::format("{}{}{}", layer, kExperts, rest);
  if (first && weight) add_router(layer);
  tensors_.push_back({.name = name, .dtype = stored.dtype, .shape = shape});
  expansions_.emplace(name, std::move(expansion));
}

void Upcycler::add_router(const std::string& layer) {
  const std::string name = fmt::format("{}{}", layer, kRouter);
  const int64_t experts = model_.num_moe_experts;
  tensors_.push_back({.name = name + "weight", .dtype = DType::F32, .shape = {experts, model_.hidden_size}});
  if (model_.add_bias_linear)
    tensors_.push_back({.name = name + "bias", .dtype = DType::F32, .shape = {experts}});
  if (model_.moe_router_enable_expert_bias)
    tensors_.push_back({.name = name + "expert_bias", .dtype = DType::F32, .shape = {experts}});
  const std::vector<std::string>& balancing = model_.moe_router_load_balancing_type;
  if (std::find(balancing.begin(), balancing.end(), "quantile_balancing") != balancing.end())
    tensors_.push_back({.name = name + "qb_beta", .dtype = DType::F32, .shape = {experts}});
}

// The box [rows, …] of an expert's tensor, piece by piece of what lies together in the dense one.
void Upcycler::read_box(RankContext& ctx, const Expansion& expansion, int64_t expert, const Box& box,
                        const Tensor& target) const {
  const DType wide = accumulation_dtype(target.dtype());
  const int dim = std::max(expansion.dim, 0);
  const int64_t begin = box.offset[dim], end = begin + box.extent[dim], width = expansion.width;
  for (int64_t part = 0; part < expansion.parts; ++part) {
    const int64_t from = expansion.dim < 0 ? begin : std::max(begin, part * width),
                  to = expansion.dim < 0 ? end : std::min(end, (part + 1) * width);
    if (from >= to) continue;
    Box dense = box;
    dense.extent[dim] = to - from;
    // Parts of the dense tensor are as long as the widths of all experts of a copy.
    dense.offset[dim] = expansion.dim < 0 ? from
                                          : part * width * granularity() + expert % granularity() * width +
                                                from - part * width;
    const Tensor values = ctx.empty(dense.extent, wide, MemoryTag::Workspace);
    dense_.read(ctx, {expansion.dense, box_shard(expansion.dense_shape, dense), values});
    if (expansion.scale != 1)
      ctx.kernels->axpby(ctx.kernel_context(), {.alpha = expansion.scale, .a = values, .out = values});
    ctx.kernels->copy(ctx.kernel_context(), {values, target.slice(dim, from - begin, to - begin)});
  }
}

Box without_first(const Shape& offset, const Shape& extent) {
  Box box;
  for (int d = 1; d < offset.rank(); ++d) {
    box.offset.push_back(offset[d]);
    box.extent.push_back(extent[d]);
  }
  return box;
}

// The box of a tensor.
Tensor within(Tensor tensor, const Shape& offset, const Shape& extent) {
  for (int d = 0; d < tensor.rank(); ++d) tensor = tensor.slice(d, offset[d], offset[d] + extent[d]);
  return tensor;
}

void Upcycler::expand(RankContext& ctx, const Expansion& expansion, const ShardedTensor& part) const {
  for (const ShardBlock& block : part.shard.blocks) {
    const Tensor own = within(part.tensor, block.local_offset, block.extent);
    for (int64_t i = 0; i < block.extent[0]; ++i)
      read_box(ctx, expansion, block.global_offset[0] + i, without_first(block.global_offset, block.extent),
               own.select(0, i));
  }
}

// The first rows that the router would have anyway, each for all experts of a copy.
void Upcycler::draw_router(RankContext& ctx, const ShardedTensor& part) const {
  const DType wide = accumulation_dtype(part.tensor.dtype());
  const bool weight = part.name.ends_with(".weight"),
             moved = part.name.ends_with(".expert_bias") || part.name.ends_with(".qb_beta");
  Parameter drawn(part.name, ShardSpec::whole(part.shard.global_shape),
                  weight  ? input_initializer(model_)
                  : moved ? Initializer::constant(0)
                          : Initializer::normal(model_.init_method_std));
  drawn.allocate(ctx, wide);
  drawn.initialize(ctx, seed_);
  for (const ShardBlock& block : part.shard.blocks) {
    const Tensor own = within(part.tensor, block.local_offset, block.extent);
    for (int64_t i = 0; i < block.extent[0]; ++i) {
      Tensor row = drawn.value.slice(0, (block.global_offset[0] + i) / granularity(),
                                     (block.global_offset[0] + i) / granularity() + 1);
      if (weight) row = row.slice(1, block.global_offset[1], block.global_offset[1] + block.extent[1]);
      ctx.kernels->copy(ctx.kernel_context(), {row, own.slice(0, i, i + 1)});
    }
  }
}

}  // namespace

bool is_dense(const TensorSource& source) {
  return std::ranges::none_of(source.tensors, [](const StoredTensor& stored) {
    return stored.name.find(".mlp.experts.") != std::string::npos;
  });
}

TensorSource upcycled(TensorSource dense, const ModelConfig& model, uint64_t seed) {
  TensorSource source = dense;
  const auto upcycler = std::make_shared<Upcycler>(std::move(dense), model, seed);
  source.tensors = upcycler->tensors();
  std::ranges::sort(source.tensors, {}, &StoredTensor::name);
  source.read = [upcycler](RankContext& ctx, const ShardedTensor& part) { upcycler->read(ctx, part); };
  source.read_many = {};
  return source;
}

}  // namespace megatron
