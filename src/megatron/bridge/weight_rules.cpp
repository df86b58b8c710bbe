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

std::string fill(std::string_view pattern, const std::vector<std::string>& numbers) {
  std::string name;
  size_t next = 0;
  for (char c : pattern) {
    if (c != '*') {
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

// Ours are ordered by query group: its queries, its key, its value.
QkvRows qkv_rows(const ModelConfig& config) {
  int64_t channels = config.kv_channels, heads = config.num_attention_heads;
  int64_t groups = config.num_query_groups ? config.num_query_groups : heads;
  int64_t queries = heads / groups * channels, stride = queries + 2 * channels;
  QkvRows result{{}, {}, {}, heads * channels, groups * channels};
  for (int64_t g = 0; g < groups; ++g) {
    result.query.push_back({g * stride, g * queries, queries});
    result.key.push_back({g * stride + queries, g * channels, channels});
    result.value.push_back({g * stride + queries + channels, g * channels, channels});
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

std::vector<ShardSpec> shards(WeightLayout layout, const ModelConfig& config, const Shape& shape) {
  switch (layout) {
    case WeightLayout::same:
    case WeightLayout::transposed:
      return {ShardSpec::whole(shape)};
    case WeightLayout::qkv: {
      QkvRows qkv = qkv_rows(config);
      return {rows(shape, qkv.query_rows, qkv.query), rows(shape, qkv.key_rows, qkv.key),
              rows(shape, qkv.key_rows, qkv.value)};
    }
    case WeightLayout::packed_qkv:
    case WeightLayout::packed_qkv_transposed:
      return {packed_qkv(qkv_rows(config), shape)};
    case WeightLayout::gate_up: {
      int64_t half = shape[0] / 2;
      return {rows(shape, half, {{0, 0, half}}), rows(shape, half, {{half, 0, half}})};
    }
  }
  fail("bridge: unknown layout of a weight");
}

}  // namespace

std::vector<HfPart> hf_parts(const std::vector<WeightRule>& rules, const ModelConfig& config,
                             std::string_view name, const Shape& global_shape) {
  for (const WeightRule& rule : rules) {
    auto numbers = match(rule.ours, name);
    if (!numbers) continue;
    std::vector<ShardSpec> specs = shards(rule.layout, config, global_shape);
    require(specs.size() == rule.theirs.size(), "bridge: the rule of {} names {} tensors, its layout has {}",
            rule.ours, rule.theirs.size(), specs.size());
    bool turned =
        rule.layout == WeightLayout::transposed || rule.layout == WeightLayout::packed_qkv_transposed;
    std::vector<HfPart> parts;
    for (size_t i = 0; i < specs.size(); ++i)
      parts.push_back(
          {fill(rule.theirs[i], *numbers), turned && global_shape.rank() == 2, std::move(specs[i])});
    return parts;
  }
  return {};
}

}  // namespace megatron
