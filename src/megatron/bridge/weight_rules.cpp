#include "megatron/bridge/weight_rules.h"

#include <cctype>
#include <optional>

#include "megatron/base/error.h"

namespace megatron {
namespace {

// The numbers that stand for the stars of the pattern, where the name fits it.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view name) {
  std::vector<std::string> numbers;
  size_t at = 0;
  for (char c : pattern) {
    if (c != '*') {
      if (at == name.size() || name[at] != c) return {};
      ++at;
      continue;
    }
    size_t begin = at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
    if (at == begin) return {};
    numbers.emplace_back(name.substr(begin, at - begin));
  }
  if (at != name.size()) return {};
  return numbers;
}

// "mtp.layers.0.enorm.weight" of a model with 61 layers →
// "decoder.layers.61.enorm.weight"; likewise what is in the layer that a
// MTP layer contains. Empty where the name is none of such a layer.
std::string as_decoder_layer(std::string_view name, const ModelConfig& config) {
  constexpr std::string_view prefix = "mtp.layers.", inner = "mtp_model_layer.";
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return {};
  const int64_t layer = config.num_layers + std::stoll(std::string(name.substr(0, dot)));
  name.remove_prefix(dot + 1);
  if (name.starts_with(inner)) name.remove_prefix(inner.size());
  return fmt::format("decoder.layers.{}.{}", layer, name);
}

std::string fill(std::string_view pattern, const std::vector<std::string>& numbers, int64_t expert) {
  std::string name;
  size_t next = 0;
  for (char c : pattern) {
    if (c == '#') {
      name += std::to_string(expert);
    } else if (c != '*') {
      name += c;
    } else {
      require(next < numbers.size(), "bridge: {} has more wildcards than our side of its rule", pattern);
      name += numbers[next++];
    }
  }
  return name;
}

// Rows of one tensor that are rows of the other.
struct RowRange {
  int64_t ours, theirs, count;
};

ShardSpec rows(const Shape& global, int64_t local_rows, const std::vector<RowRange>& ranges) {
  ShardSpec spec{global, global, {}};
  spec.local_shape[0] = local_rows;
  for (const RowRange& range : ranges) {
    ShardBlock block{global, global, global};
    for (int d = 0; d < global.rank(); ++d) block.global_offset[d] = block.local_offset[d] = 0;
    block.global_offset[0] = range.ours;
    block.local_offset[0] = range.theirs;
    block.extent[0] = range.count;
    spec.blocks.push_back(block);
  }
  return spec;
}

struct QkvRows {
  std::vector<RowRange> query, key, value;
  int64_t query_rows, key_rows;
};

// Ours are ordered by query group: its queries, their gates, its key, its value.
QkvRows qkv_rows(const ModelConfig& config) {
  int64_t channels = config.kv_channels, heads = config.num_attention_heads;
  int64_t groups = config.num_query_groups ? config.num_query_groups : heads;
  const bool gated = config.attention_output_gate;
  int64_t queries = heads / groups * channels, before_key = (gated ? 2 : 1) * queries,
          stride = before_key + 2 * channels;
  QkvRows result{{}, {}, {}, (gated ? 2 : 1) * heads * channels, groups * channels};
  for (int64_t g = 0; g < groups; ++g) {
    if (!gated) result.query.push_back({g * stride, g * queries, queries});
    for (int64_t row = 0; gated && row < queries; row += channels) {  // theirs: a head, then its gate
      const int64_t theirs = 2 * (g * queries + row);
      result.query.push_back({g * stride + row, theirs, channels});
      result.query.push_back({g * stride + queries + row, theirs + channels, channels});
    }
    result.key.push_back({g * stride + before_key, g * channels, channels});
    result.value.push_back({g * stride + before_key + channels, g * channels, channels});
  }
  return result;
}

ShardSpec packed_qkv(const QkvRows& qkv, const Shape& shape) {
  std::vector<RowRange> all = qkv.query;
  for (RowRange range : qkv.key) all.push_back({range.ours, range.theirs + qkv.query_rows, range.count});
  for (RowRange range : qkv.value)
    all.push_back({range.ours, range.theirs + qkv.query_rows + qkv.key_rows, range.count});
  return rows(shape, qkv.query_rows + 2 * qkv.key_rows, all);
}

// The two projections of a delta net that are one of ours.
struct DeltaRows {
  std::vector<RowRange> qkvz, ba;
  int64_t qkvz_rows, ba_rows;
};

DeltaRows delta_rows(const ModelConfig& config) {
  const int64_t heads = config.linear_num_key_heads, share = config.linear_num_value_heads / heads;
  const int64_t key = config.linear_key_head_dim, value = share * config.linear_value_head_dim;
  const int64_t keys = heads * key, values = heads * value, gates = 2 * keys + 2 * values;
  DeltaRows rows{{}, {}, gates, 2 * heads * share};
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t theirs = h * 2 * (key + value);
    rows.qkvz.push_back({h * key, theirs, key});
    rows.qkvz.push_back({keys + h * key, theirs + key, key});
    rows.qkvz.push_back({2 * keys + h * value, theirs + 2 * key, value});
    rows.qkvz.push_back({2 * keys + values + h * value, theirs + 2 * key + value, value});
    rows.ba.push_back({gates + h * share, 2 * h * share, share});
    rows.ba.push_back({gates + (heads + h) * share, (2 * h + 1) * share, share});
  }
  return rows;
}

struct Piece {
  size_t theirs;  // which name of the rule
  ShardSpec shard;
  HfView view = HfView::plain;
  int64_t expert = 0;
};

// A range of experts, and of what follows each, as a box of its own.
ShardSpec box(const Shape& global, int64_t expert, int64_t experts, int64_t first_row, int64_t row_count) {
  ShardSpec spec{global, global, {}};
  spec.local_shape[0] = experts;
  spec.local_shape[1] = row_count;
  ShardBlock block{global, global, spec.local_shape};
  for (int d = 0; d < global.rank(); ++d) block.global_offset[d] = block.local_offset[d] = 0;
  block.global_offset[0] = expert;
  block.global_offset[1] = first_row;
  spec.blocks.push_back(block);
  return spec;
}

std::vector<Piece> expert_pieces(WeightLayout layout, const Shape& shape) {
  const int64_t experts = shape[0], half = shape[1] / 2;
  std::vector<Piece> pieces;
  switch (layout) {
    case WeightLayout::experts:
      for (int64_t e = 0; e < experts; ++e)
        pieces.push_back({0, box(shape, e, 1, 0, shape[1]), HfView::one_expert, e});
      return pieces;
    case WeightLayout::experts_gate_up:
      for (int64_t e = 0; e < experts; ++e) {
        pieces.push_back({0, box(shape, e, 1, 0, half), HfView::one_expert, e});
        pieces.push_back({1, box(shape, e, 1, half, half), HfView::one_expert, e});
      }
      return pieces;
    case WeightLayout::packed_experts:
      return {{0, ShardSpec::whole(shape), HfView::transposed}};
    default:  // packed_experts_gate_up, packed_expert_biases_gate_up
      return {{0, box(shape, 0, experts, 0, half), HfView::even_columns},
              {0, box(shape, 0, experts, half, half), HfView::odd_columns}};
  }
}

std::vector<Piece> pieces_of(WeightLayout layout, const ModelConfig& config, const Shape& shape) {
  switch (layout) {
    case WeightLayout::same:
      return {{0, ShardSpec::whole(shape)}};
    case WeightLayout::transposed:
      return {{0, ShardSpec::whole(shape), HfView::transposed}};
    case WeightLayout::qkv: {
      QkvRows qkv = qkv_rows(config);
      return {{0, rows(shape, qkv.query_rows, qkv.query)},
              {1, rows(shape, qkv.key_rows, qkv.key)},
              {2, rows(shape, qkv.key_rows, qkv.value)}};
    }
    case WeightLayout::kv: {
      std::vector<RowRange> key, value;
      const int64_t channels = config.kv_channels, half = shape[0] / 2;
      for (int64_t row = 0; row < half; row += channels) {
        key.push_back({2 * row, row, channels});
        value.push_back({2 * row + channels, row, channels});
      }
      return {{0, rows(shape, half, key)}, {1, rows(shape, half, value)}};
    }
    case WeightLayout::packed_qkv:
      return {{0, packed_qkv(qkv_rows(config), shape)}};
    case WeightLayout::packed_qkv_transposed:
      return {{0, packed_qkv(qkv_rows(config), shape), HfView::transposed}};
    case WeightLayout::delta_in: {
      DeltaRows delta = delta_rows(config);
      return {{0, rows(shape, delta.qkvz_rows, delta.qkvz)}, {1, rows(shape, delta.ba_rows, delta.ba)}};
    }
    case WeightLayout::gate_up: {
      if (!config.gated_linear_unit) return {{2, ShardSpec::whole(shape)}};
      int64_t half = shape[0] / 2;
      return {{0, rows(shape, half, {{0, 0, half}})}, {1, rows(shape, half, {{half, 0, half}})}};
    }
    default:
      return expert_pieces(layout, shape);
  }
}

}  // namespace

Tensor view_of(const Tensor& tensor, HfView view) {
  const int rank = tensor.rank();
  switch (view) {
    case HfView::plain:
      return tensor;
    case HfView::transposed:
      return tensor.transpose(rank - 2, rank - 1);
    case HfView::one_expert: {
      std::vector<int64_t> sizes = {1};
      for (int d = 0; d < rank; ++d) sizes.push_back(tensor.size(d));
      return tensor.view(Shape(sizes));
    }
    case HfView::even_columns:
    case HfView::odd_columns: {
      std::vector<int64_t> sizes;
      for (int d = 0; d + 1 < rank; ++d) sizes.push_back(tensor.size(d));
      sizes.push_back(tensor.size(rank - 1) / 2);
      sizes.push_back(2);
      const int64_t parity = view == HfView::odd_columns;
      Tensor half = tensor.view(Shape(sizes)).select(rank, parity);
      return rank > 2 ? half.transpose(rank - 2, rank - 1) : half;
    }
  }
  fail("bridge: unknown view of a tensor");
}

Shape stored_shape(const Shape& viewed, HfView view) {
  Shape shape = viewed;
  const int last = viewed.rank() - 1;
  if (view == HfView::one_expert) {
    std::vector<int64_t> sizes;
    for (int d = 1; d <= last; ++d) sizes.push_back(viewed[d]);
    return Shape(sizes);
  }
  const bool columns = view == HfView::even_columns || view == HfView::odd_columns;
  if (view == HfView::transposed || (columns && last >= 2)) std::swap(shape[last - 1], shape[last]);
  if (columns) shape[last] *= 2;
  return shape;
}

std::string TensorNames::spelled(std::string_view name) const {
  if (!known() || holds_(name)) return std::string(name);
  for (const auto& [usual, other] : spellings_) {
    std::string changed(name);
    if (name.starts_with(usual))
      changed.replace(0, usual.size(), other);
    else if (name.ends_with(usual))
      changed.replace(name.size() - usual.size(), usual.size(), other);
    else
      continue;
    if (holds_(changed)) return changed;
  }
  return std::string(name);
}

std::vector<HfPart> hf_parts(const std::vector<WeightRule>& rules, const ModelConfig& config,
                             std::string_view name, const Shape& global_shape, const TensorNames& files) {
  for (const WeightRule& rule : rules) {
    auto numbers = match(rule.ours, name);
    if (!numbers) continue;
    if (rule.where_held && !files.hold(fill(rule.theirs[0], *numbers, 0))) continue;
    std::vector<HfPart> parts;
    for (Piece& piece : pieces_of(rule.layout, config, global_shape)) {
      require(piece.theirs < rule.theirs.size(), "bridge: the rule of {} names too few tensors", rule.ours);
      parts.push_back({files.spelled(fill(rule.theirs[piece.theirs], *numbers, piece.expert)), piece.view,
                       std::move(piece.shard)});
    }
    return parts;
  }
  const std::string layer = as_decoder_layer(name, config);
  return layer.empty() ? std::vector<HfPart>{} : hf_parts(rules, config, layer, global_shape, files);
}

}  // namespace megatron
