#include "megatron/training/step/fake_quant_setup.h"

#include "megatron/config/resolve/quant_cfg.h"
#include "megatron/training/step/fp8_setup.h"

namespace megatron {
namespace {

using ops::FakeFormat;
using Numbers = FakeFormat::Numbers;
using Scaled = FakeFormat::Scaled;

constexpr FakeFormat kNvfp4{
    .numbers = Numbers::fp4, .scaled = Scaled::block, .block = 16, .narrow_scales = true};

struct Formats {
  FakeFormat weight;
  std::optional<FakeFormat> input;
};

Formats formats_of(QuantCfg cfg) {
  const FakeFormat fp8_matrix{}, fp8_row{.scaled = Scaled::row};
  const FakeFormat int8_matrix{.numbers = Numbers::int8},
      int8_row{.numbers = Numbers::int8, .scaled = Scaled::row};
  switch (cfg) {
    case QuantCfg::FP8_DEFAULT_CFG:
      return {fp8_matrix, fp8_matrix};
    case QuantCfg::FP8_PER_CHANNEL_PER_TOKEN_CFG:
      return {fp8_row, fp8_row};
    case QuantCfg::INT8_DEFAULT_CFG:
      return {int8_row, int8_matrix};
    case QuantCfg::INT8_WEIGHT_ONLY_CFG:
      return {int8_row, {}};
    case QuantCfg::INT4_BLOCKWISE_WEIGHT_ONLY_CFG:
      return {{.numbers = Numbers::int4, .scaled = Scaled::block, .block = 128}, {}};
    case QuantCfg::NVFP4_DEFAULT_CFG:
      return {kNvfp4, kNvfp4};
  }
  fail("--export-quant-cfg: no such configuration");
}

std::function<void(RankContext&, const Tensor&)> largest_over(std::vector<ProcessGroup> groups) {
  std::erase_if(groups, [](const ProcessGroup& group) { return group.size() == 1; });
  if (groups.empty()) return {};
  return [groups](RankContext&, const Tensor& tensor) {
    for (const ProcessGroup& group : groups) group.all_reduce(tensor, ReduceOp::Max).wait();
  };
}

// Which columns of its matrix this rank has.
ops::FakeShare columns_of(const Parameter& weight) {
  const ShardSpec& shard = weight.shard;
  ops::FakeShare share{.columns = shard.global_shape[-1]};
  if (shard.local_shape[-1] == share.columns) return share;
  const ShardBlock& first = shard.blocks.front();
  share.column_begin = first.global_offset[-1] - first.local_offset[-1];
  for (const ShardBlock& block : shard.blocks)
    require(block.global_offset[-1] - block.local_offset[-1] == share.column_begin,
            "--export-quant-cfg: the columns of {} that this rank has do not lie side by side", weight.name);
  return share;
}

}  // namespace

void choose_fake_quantizers(const Config& config, std::span<Parameter* const> parameters,
                            const ParallelContext& parallel) {
  const auto cfg = quant_cfg(config.distill.export_quant_cfg);
  if (!cfg) return;
  const Formats formats = formats_of(*cfg);
  for (Parameter* parameter : parameters) {
    if (!is_linear_weight(parameter->name)) continue;
    const ProcessGroup& tensor = parallel.group(parameter->expert ? Axis::etp : Axis::tp);
    auto quantizer = std::make_unique<ops::FakeQuantizer>();
    quantizer->weight = formats.weight;
    quantizer->input = formats.input;
    ops::FakeShare& weight = quantizer->weight_share;
    weight = columns_of(*parameter);
    const bool columns = parameter->shard.local_shape[-1] != parameter->shard.global_shape[-1];
    weight.over_matrix = largest_over({tensor});
    if (columns) weight.over_columns = weight.over_matrix;
    ops::FakeShare& input = quantizer->input_share;
    input = {
        .column_begin = weight.column_begin, .columns = weight.columns, .over_columns = weight.over_columns};
    input.rows_alone = parameter->expert;
    input.over_matrix =
        parameter->expert ? input.over_columns : largest_over({tensor, parallel.group(Axis::cp)});
    parameter->fake_quantizer = std::move(quantizer);
  }
}

}  // namespace megatron
