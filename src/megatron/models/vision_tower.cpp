#include "megatron/models/vision_tower.h"

#include <algorithm>
#include <cmath>

#include "megatron/autograd/recompute.h"
#include "megatron/models/patch_order.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/index.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/weight_tensor.h"
#include "megatron/transformer/mlp.h"

namespace megatron {
namespace {

constexpr double kTheta = 1e4;  // of the tower's rotary positions

bool is_siglip(const VisionConfig& config) { return config.vision_tower == VisionTowerKind::siglip; }
bool is_clip(const VisionConfig& config) { return config.vision_tower == VisionTowerKind::clip; }

const char* norm_name(const VisionConfig& config) {
  if (is_clip(config)) return "vision_model.ln_pre";
  return is_siglip(config) ? "vision_model.final_layernorm" : "vision_model.merger.patch_norm";
}

int64_t merged_cells(const VisionConfig& config) {
  return config.vision_spatial_merge_size * config.vision_spatial_merge_size;
}

// [output, …]: as the files keep the kernel of a convolution whose steps are as wide as itself.
Shape patch_shape(const VisionConfig& config) {
  const int64_t side = config.vision_patch_size;
  if (is_siglip(config) || is_clip(config))
    return {config.vision_hidden_size, config.vision_in_channels, side, side};
  return {config.vision_hidden_size, config.vision_in_channels, config.vision_temporal_patch_size, side,
          side};
}

Tensor rows_of(RankContext& ctx, const Tensor& x, const std::vector<int64_t>& ids) {
  return ops::gather_rows(ctx, x, ctx.from_vector(ids, {static_cast<int64_t>(ids.size())}));
}

int64_t longest(const std::vector<int32_t>& ends) {
  int64_t most = 0;
  for (size_t i = 1; i < ends.size(); ++i) most = std::max<int64_t>(most, ends[i] - ends[i - 1]);
  return most;
}

// Tokens that see each other between the ends alone.
SeqInfo packed(RankContext& ctx, const SeqInfo& like, const std::vector<int32_t>& ends) {
  SeqInfo seq = like;
  seq.cu_seqlens = ctx.from_vector(ends, {static_cast<int64_t>(ends.size())});
  seq.max_length = longest(ends);
  return seq;
}

}  // namespace

ModelConfig tower_config(const VisionConfig& config) {
  ModelConfig own;
  own.num_layers = config.vision_num_layers;
  own.hidden_size = config.vision_hidden_size;
  own.num_attention_heads = own.num_query_groups = config.vision_num_attention_heads;
  own.kv_channels = own.hidden_size / std::max<int64_t>(1, own.num_attention_heads);
  own.ffn_hidden_size = config.vision_ffn_hidden_size;
  own.layernorm_epsilon = config.vision_layernorm_epsilon;
  own.init_method_std = config.vision_init_method_std;
  own.attention_dropout = own.hidden_dropout = 0;
  own.bidirectional_attention = true;
  own.position_embedding_type = PositionEmbedding::rope;
  switch (config.vision_tower) {
    case VisionTowerKind::clip:
      own.position_embedding_type = PositionEmbedding::none;
      own.activation_func = Activation::quick_gelu;
      break;
    case VisionTowerKind::qwen2:
      own.activation_func = Activation::quick_gelu;
      break;
    case VisionTowerKind::qwen2_5:
      own.normalization = Normalization::rms_norm;
      own.activation_func = Activation::silu;
      own.gated_linear_unit = true;
      break;
    default:
      own.position_embedding_type = PositionEmbedding::none;
      own.activation_func = Activation::gelu_tanh;
  }
  return own;
}

VisionTower::Dense::Dense(const std::string& name, const Shape& shape, double deviation, bool biased)
    : weight(name + ".weight", ShardSpec::whole(shape), Initializer::normal(deviation)) {
  if (biased)
    bias =
        std::make_unique<Parameter>(name + ".bias", ShardSpec::whole({shape[0]}), Initializer::constant(0));
}

Tensor VisionTower::Dense::forward(RankContext& ctx, const Tensor& x) {
  const Weight add = bias ? bias->get(ctx) : Weight{};
  if (weight.shard.global_shape.rank() == 2) return ops::linear(ctx, x, weight.get(ctx), add);
  Tensor kernel = ops::weight_tensor(ctx, weight.get(ctx), x.dtype());
  kernel = ops::view(ctx, kernel, {kernel.size(0), kernel.numel() / kernel.size(0)});
  Tensor y = ops::matmul(ctx, x, kernel, {.transpose_b = true});
  return bias ? ops::add_bias(ctx, y, add) : y;
}

void VisionTower::Dense::visit(const ParameterVisitor& visitor) {
  visitor(weight);
  if (bias) visitor(*bias);
}

VisionTower::VisionTower(const VisionConfig& config, const ModelParallel& parallel, DType dtype)
    : config_(config),
      own_(tower_config(config)),
      dtype_(dtype),
      patches_("vision_model.patch_embed.proj", patch_shape(config), config.vision_init_method_std,
               is_siglip(config)),
      norm_(norm_name(config), config.vision_hidden_size, own_, {}) {
  ModelParallel split;
  split.tensor = parallel.tensor;
  split.tensor.sequence_parallel = false;  // patches need not divide
  split.tensor.overlap = {};
  split.tensor.layer_overlaps = {};
  split.tensor.key_group = ProcessGroup::self("tp-keys");  // every head has keys of its own
  for (int64_t i = 0; i < own_.num_layers; ++i)
    layers_.push_back(std::make_unique<TransformerLayer>("vision_model.decoder.layers." + std::to_string(i),
                                                         i, own_, split));
  if (is_clip(config)) {
    class_token_ =
        std::make_unique<Parameter>("vision_model.class_token", ShardSpec::whole({own_.hidden_size}),
                                    Initializer::normal(config.vision_init_method_std));
    make_places(config.image_patches() + 1);
    const int64_t width = own_.hidden_size * (config.vision_pixel_shuffle ? 4 : 1);
    make_projector("vision_projection.encoder", width, config.vision_projector_size);
    if (config.vision_projector_norm != ProjectorNorm::none) {
      ModelConfig norm;
      norm.layernorm_epsilon = config.vision_projector_epsilon;
      norm.normalization = config.vision_projector_norm == ProjectorNorm::rms_norm
                               ? Normalization::rms_norm
                               : Normalization::layer_norm;
      projector_norm_ =
          std::make_unique<Norm>("vision_projection.encoder.input_layernorm", width, norm, TensorParallel{});
    }
  } else if (is_siglip(config)) {
    make_places(config.image_patches());
    ModelConfig zero_centred = own_;
    zero_centred.normalization = Normalization::rms_norm;
    zero_centred.layernorm_zero_centered_gamma = true;
    pooled_norm_ = std::make_unique<Norm>("multi_modal_projector.mm_soft_embed_norm", own_.hidden_size,
                                          zero_centred, TensorParallel{});
    project_ = std::make_unique<Parameter>("multi_modal_projector.proj.weight",
                                           ShardSpec::whole({own_.hidden_size, config.vision_output_size}),
                                           Initializer::normal(config.vision_init_method_std));
  } else {
    const int64_t wide = own_.hidden_size * merged_cells(config);
    make_projector("vision_model.merger", wide, wide);
  }
  make_units();
}

void VisionTower::make_places(int64_t places) {
  positions_ = std::make_unique<Parameter>("vision_model.position_embeddings.weight",
                                           ShardSpec::whole({places, own_.hidden_size}),
                                           Initializer::normal(config_.vision_init_method_std));
}

void VisionTower::make_projector(const std::string& name, int64_t input, int64_t inner) {
  const double deviation = config_.vision_init_method_std;
  const bool biased = !is_clip(config_) || config_.vision_projector_bias;
  up_ = std::make_unique<Dense>(name + ".linear_fc1", Shape{inner, input}, deviation, biased);
  down_ = std::make_unique<Dense>(name + ".linear_fc2", Shape{config_.vision_output_size, inner}, deviation,
                                  biased);
}

void VisionTower::make_units() {
  begin_ = std::make_unique<ParameterUnit>(patches_.weight);
  const auto add = [](ParameterUnit& unit) {
    return [&unit](Parameter& parameter) { unit.parameters.push_back(&parameter); };
  };
  if (patches_.bias) begin_->parameters.push_back(patches_.bias.get());
  if (class_token_) begin_->parameters.push_back(class_token_.get());
  if (positions_) begin_->parameters.push_back(positions_.get());
  if (is_clip(config_)) norm_.visit(add(*begin_));
  for (auto& layer : layers_) layer_units_.push_back(std::make_unique<ParameterUnit>(*layer));
  end_ =
      project_ ? std::make_unique<ParameterUnit>(*project_) : std::make_unique<ParameterUnit>(down_->weight);
  if (!is_clip(config_)) norm_.visit(add(*end_));
  if (pooled_norm_) pooled_norm_->visit(add(*end_));
  if (projector_norm_) projector_norm_->visit(add(*end_));
  if (up_) up_->visit(add(*end_));
  if (down_ && down_->bias) end_->parameters.push_back(down_->bias.get());
}

std::vector<ParameterUnit*> VisionTower::units() {
  std::vector<ParameterUnit*> list{begin_.get()};
  for (auto& unit : layer_units_) list.push_back(unit.get());
  list.push_back(end_.get());
  return list;
}

bool VisionTower::learns() {
  bool any = false;
  visit([&](Parameter& parameter) { any |= parameter.trainable; });
  return any;
}

void VisionTower::set_activation_plan(const ActivationPlan& plan) {
  recomputes_layers_ = plan.region_at(0) > 0;
  for (auto& layer : layers_) layer->set_activation_plan(plan.of_layer(0));
}

Residual VisionTower::run_layers(RankContext& ctx, Tensor x, const SeqInfo& whole, const SeqInfo& windows) {
  Residual residual{std::move(x), {}};
  // Frozen layers keep nothing that could be recomputed.
  const auto learns = [](const ParameterUnit& unit) {
    return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                       [](const Parameter* parameter) { return parameter->trainable; });
  };
  const bool recomputes = recomputes_layers_ && ctx.tape &&
                          (learns(*begin_) || std::any_of(layer_units_.begin(), layer_units_.end(),
                                                          [&](const auto& unit) { return learns(*unit); }));
  const std::vector<int64_t>& full = config_.vision_full_attention_layers;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool sees_all = config_.vision_window_size == 0 ||
                          std::find(full.begin(), full.end(), static_cast<int64_t>(i)) != full.end();
    const SeqInfo& seq = sees_all ? whole : windows;
    const auto run = [this, i](RankContext& c, Residual& stream, const SeqInfo& seen) {
      use_unit(c, *layer_units_[i], [&] { layers_[i]->forward(c, stream, seen); });
    };
    if (!recomputes) {
      run(ctx, residual, seq);
      continue;
    }
    const Tensor stream = residual.sum(ctx);
    residual = {recompute(ctx, {&stream, 1},
                          [run, seq](RankContext& c, std::span<const Tensor> inputs) {
                            Residual inner{inputs[0], {}};
                            run(c, inner, seq);
                            return std::vector<Tensor>{inner.sum(c)};
                          })[0],
                {}};
  }
  return residual;
}

Tensor VisionTower::forward(RankContext& ctx, const Tensor& pixels, const std::vector<PatchGrid>& grids) {
  int64_t patches = 0;
  for (const PatchGrid& grid : grids) patches += grid.patches();
  require(pixels.rank() == 2 && pixels.size(0) == patches, "vision tower: pixels {} are not {} patches",
          pixels, patches);
  const TraceRange range(ctx.tracer, "vision tower");
  const auto images = static_cast<int64_t>(grids.size());
  if (is_clip(config_)) return forward_clip(ctx, pixels, grids);
  return is_siglip(config_) ? forward_siglip(ctx, pixels, images) : forward_qwen(ctx, pixels, grids);
}

Tensor VisionTower::forward_qwen(RankContext& ctx, const Tensor& pixels,
                                 const std::vector<PatchGrid>& grids) {
  const Tensor x = use_unit(ctx, *begin_, [&] { return patches_.forward(ctx, pixels); });
  const int64_t side = config_.vision_spatial_merge_size, cells = merged_cells(config_), width = x.size(1),
                patches = x.size(0);
  const PatchOrder order =
      patch_order(grids, side, config_.vision_window_size / side / config_.vision_patch_size);

  // Half of the angles follow the row, half the column.
  std::vector<int64_t> places(static_cast<size_t>(3 * patches));
  for (size_t block = 0; block < order.by_window.size(); ++block)
    for (size_t cell = 0; cell < static_cast<size_t>(cells); ++cell) {
      const size_t to = block * static_cast<size_t>(cells) + cell,
                   from = static_cast<size_t>(order.by_window[block] * cells) + cell;
      places[to] = order.rows[from];
      places[static_cast<size_t>(patches) + to] = order.columns[from];
    }
  const int64_t quarter = own_.kv_channels / 4;
  ops::RopeFrequencies turns = ops::rope_frequencies(own_.kv_channels / 2, kTheta);
  turns.inverse.insert(turns.inverse.end(), turns.inverse.begin(), turns.inverse.begin() + quarter);
  const ops::Rotation rotation = ops::rope_tables(ctx, ctx.from_vector(places, {3, patches}), turns, dtype_,
                                                  false, {quarter, quarter, 0});
  SeqInfo seq;
  seq.batch = 1;
  seq.length = seq.row_length = patches;
  seq.rope_cos = rotation.cos;
  seq.rope_sin = rotation.sin;

  Tensor blocks = rows_of(ctx, ops::view(ctx, x, {patches / cells, cells * width}), order.by_window);
  Residual residual = run_layers(ctx, ops::view(ctx, blocks, {patches, width}),
                                 packed(ctx, seq, order.frame_ends), packed(ctx, seq, order.window_ends));
  const Tensor y = use_unit(ctx, *end_, [&] { return merge(ctx, norm_.forward(ctx, residual)); });
  return rows_of(ctx, y, order.back);
}

// Patches of a block side by side, through two layers.
Tensor VisionTower::merge(RankContext& ctx, const Tensor& x) {
  const int64_t cells = merged_cells(config_);
  return project(ctx, ops::view(ctx, x, {x.size(0) / cells, cells * x.size(1)}));
}

Tensor VisionTower::project(RankContext& ctx, const Tensor& x) {
  const Unary activation =
      is_clip(config_) ? activation_kernel(config_.vision_projector_activation) : Unary::Gelu;
  const Tensor normed = projector_norm_ ? projector_norm_->forward(ctx, x) : x;
  return down_->forward(ctx, ops::activation(ctx, activation, up_->forward(ctx, normed)));
}

// The four patches of a square side by side.
Tensor VisionTower::shuffle(RankContext& ctx, const Tensor& x, const std::vector<PatchGrid>& grids) {
  const std::vector<int64_t> order = shuffle_order(grids);
  return ops::view(ctx, rows_of(ctx, x, order), {std::ssize(order) / 4, 4 * x.size(1)});
}

// One row for each place of every image is added.
Tensor VisionTower::add_positions(RankContext& ctx, const Tensor& x, int64_t images) {
  const int64_t places = positions_->shard.global_shape[0];
  require(x.size(0) == images * places, "vision tower: {} rows of {} images; each must have {}", x.size(0),
          images, places);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < x.size(0); ++i) ids.push_back(i % places);
  return ops::add(ctx, x, ops::embedding(ctx, positions_->get(ctx), ctx.from_vector(ids, {x.size(0)})));
}

// The class token of each image has row 0; those of patches are interpolated to the image's own grid.
Tensor VisionTower::add_interpolated_positions(RankContext& ctx, const Tensor& x,
                                               const std::vector<PatchGrid>& grids) {
  const int64_t side = config_.vision_image_size / config_.vision_patch_size, rows = x.size(0);
  std::array<std::vector<int64_t>, 4> places;
  std::array<std::vector<double>, 4> weights;
  const auto put = [&](const Neighbours& from, int64_t first) {
    for (size_t k = 0; k < 4; ++k) {
      places[k].push_back(first + from.places[k]);
      weights[k].push_back(from.weights[k]);
    }
  };
  for (const PatchGrid& grid : grids) {
    put({{0, 0, 0, 0}, {1, 0, 0, 0}}, 0);
    for (const Neighbours& from : interpolated_places(grid, side)) put(from, 1);
  }
  require(std::ssize(places[0]) == rows, "vision tower: {} positions of {} rows", places[0].size(), rows);
  const Weight table = positions_->get(ctx);
  Tensor sum = x;
  for (size_t k = 0; k < 4; ++k) {
    const Tensor row = ops::embedding(ctx, table, ctx.from_vector(places[k], {rows}));
    Tensor share = ctx.empty({rows, 1}, x.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(weights[k], {rows, 1}), share});
    sum = ops::add(ctx, sum, ops::mul(ctx, row, share));
  }
  return sum;
}

Tensor VisionTower::forward_siglip(RankContext& ctx, const Tensor& pixels, int64_t images) {
  const Tensor x =
      use_unit(ctx, *begin_, [&] { return add_positions(ctx, patches_.forward(ctx, pixels), images); });
  SeqInfo seq;
  seq.batch = images;
  seq.length = seq.row_length = x.size(0) / images;
  Residual residual = run_layers(ctx, x, seq, seq);
  return use_unit(ctx, *end_, [&] { return pool(ctx, norm_.forward(ctx, residual), images); });
}

Tensor VisionTower::forward_clip(RankContext& ctx, const Tensor& pixels,
                                 const std::vector<PatchGrid>& grids) {
  const int64_t side = config_.vision_image_size / config_.vision_patch_size;
  const bool alike = std::all_of(grids.begin(), grids.end(), [&](const PatchGrid& grid) {
    return grid.frames == 1 && grid.rows == side && grid.columns == side;
  });
  // The class token, one for all images, comes before the patches of each.
  std::vector<int64_t> order, kept;
  std::vector<int32_t> ends{0};
  int64_t first = 1;
  for (const PatchGrid& grid : grids) {
    order.push_back(0);
    for (int64_t patch = 0; patch < grid.patches(); ++patch) {
      kept.push_back(std::ssize(order));
      order.push_back(first++);
    }
    ends.push_back(static_cast<int32_t>(order.size()));
  }
  const Tensor x = use_unit(ctx, *begin_, [&] {
    const Tensor rows = patches_.forward(ctx, pixels);
    const Tensor token =
        ops::view(ctx, ops::weight_tensor(ctx, class_token_->get(ctx), rows.dtype()), {1, rows.size(1)});
    const Tensor all = rows_of(ctx, ops::concat(ctx, std::vector{token, rows}, 0), order);
    return norm_.forward(ctx, alike ? add_positions(ctx, all, std::ssize(grids))
                                    : add_interpolated_positions(ctx, all, grids));
  });
  SeqInfo seq;
  seq.batch = alike ? std::ssize(grids) : 1;
  seq.length = seq.row_length = x.size(0) / seq.batch;
  if (!alike) seq = packed(ctx, seq, ends);
  Residual residual = run_layers(ctx, x, seq, seq);
  Tensor y = residual.update ? ops::add(ctx, residual.hidden, residual.update) : residual.hidden;
  if (!config_.vision_class_token) y = rows_of(ctx, y, kept);
  if (config_.vision_pixel_shuffle) y = shuffle(ctx, y, grids);
  return use_unit(ctx, *end_, [&] { return project(ctx, y); });
}

// The mean over square cells of patches, normed and projected to the model's width.
Tensor VisionTower::pool(RankContext& ctx, const Tensor& x, int64_t images) {
  const int64_t side = config_.vision_image_size / config_.vision_patch_size;
  const auto cells = static_cast<int64_t>(std::lround(std::sqrt(config_.vision_tokens_per_image)));
  const int64_t cell = side / cells;
  std::vector<int64_t> order;
  for (int64_t image = 0; image < images; ++image)
    for (int64_t c = 0; c < cells * cells; ++c)
      for (int64_t p = 0; p < cell * cell; ++p)
        order.push_back(image * side * side + (c / cells * cell + p / cell) * side + c % cells * cell +
                        p % cell);
  Tensor grouped = ops::view(ctx, rows_of(ctx, x, order), {images * cells * cells, cell * cell, x.size(1)});
  Tensor pooled = pooled_norm_->forward(ctx, ops::mean(ctx, grouped, 1));
  return ops::matmul(ctx, pooled, ops::weight_tensor(ctx, project_->get(ctx), pooled.dtype()));
}

void VisionTower::visit(const ParameterVisitor& visitor) {
  patches_.visit(visitor);
  if (class_token_) visitor(*class_token_);
  if (positions_) visitor(*positions_);
  for (auto& layer : layers_) layer->visit(visitor);
  norm_.visit(visitor);
  if (projector_norm_) projector_norm_->visit(visitor);
  if (up_) up_->visit(visitor);
  if (down_) down_->visit(visitor);
  if (pooled_norm_) pooled_norm_->visit(visitor);
  if (project_) visitor(*project_);
}

}  // namespace megatron
