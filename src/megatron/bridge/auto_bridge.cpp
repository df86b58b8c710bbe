#include "megatron/bridge/auto_bridge.h"

#include <algorithm>
#include <set>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/base/problems.h"
#include "megatron/checkpoint/host_copy.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/models/whole_model.h"

namespace megatron {
namespace {

// Buffers that some files carry and no model needs, and the copies of embedding and head that belong to
// MTP layers.
bool is_ignored(std::string_view name, const Family& family) {
  for (std::string_view end : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".position_ids",
                               ".shared_head.head.weight"})
    if (name.ends_with(end)) return true;
  for (std::string_view begin : family.unused)
    if (name.starts_with(begin)) return true;
  return name.starts_with("model.layers.") && name.ends_with(".embed_tokens.weight");
}

constexpr int64_t kElementsAtOnce = int64_t{16} << 20;  // of a tensor whose numbers must be computed

}  // namespace

AutoBridge::AutoBridge(const std::string& directory)
    : config_(HfConfig::read(directory)),
      weights_(directory, config_),
      model_(find_family(config_.architecture()),
             {config_, [this](std::string_view name) { return weights_.contains(name); }}) {
  check();
}

std::vector<HfPart> AutoBridge::parts(std::string_view name, const Shape& global_shape) const {
  std::vector<HfPart> parts = model_.parts(name, global_shape);
  require(!parts.empty(), "bridge: no rule of {} says where {} comes from", config_.architecture(), name);
  return parts;
}

void AutoBridge::require_decoder(std::string_view what) const {
  if (vision_config() || !is_decoder(model_config()))
    throw ConfigError(
        fmt::format("{}: {} is not built for {}; it can be converted and run (megatron convert, logits, "
                    "compare; generate where it writes text)",
                    directory(), what, config_.architecture()));
}

void AutoBridge::check() {
  Problems problems;
  std::set<std::string> used;
  const std::vector<std::string> names = weights_.names();
  whole_model(model_config(), vision_config())->visit([&](Parameter& parameter) {
    for (const HfPart& part : parts(parameter.name, parameter.shard.global_shape)) {
      used.insert(part.name);
      if (!weights_.contains(part.name)) {
        const std::string advice = did_you_mean(nearest(part.name, names));
        problems.add("{}: it is missing{}{}", part.name, advice.empty() ? "" : "; ", advice);
        continue;
      }
      const Shape wanted = stored_shape(part.shard.local_shape, part.view), found = weights_.shape(part.name);
      if (!(found == wanted))
        problems.add("{}: the file has {}, the configuration says {}", part.name, found, wanted);
      const DType dtype = weights_.dtype(part.name);
      if (!is_floating(dtype) || size_of(dtype) < 2)
        problems.add("{}: the file has {}{}", part.name, weights_.files().at(part.name).stored,
                     is_floating(dtype) ? " without its scales" : ", not floating-point numbers");
    }
  });
  for (const std::string& name : names) {
    if (used.contains(name)) continue;
    const bool tied = name == "lm_head.weight" && model_.model.share_embeddings_and_output_weights;
    if (tied || is_ignored(name, model_.family))
      left_out_.push_back(name);
    else
      problems.add("{}: the model has no such tensor", name);
  }
  problems.raise(
      fmt::format("{}: its weights do not fit its config.json ({})", directory(), config_.architecture()));
}

void AutoBridge::read(RankContext& ctx, std::string_view name, const ShardSpec& shard,
                      const Tensor& target) const {
  const std::vector<HfPart> pieces = parts(name, shard.global_shape);
  std::vector<ShardSpec> sources;
  for (const HfPart& part : pieces) sources.push_back(part.shard);
  const TransferPlan plan = plan_transfers(sources, {&shard, 1});
  require(plan.missing.empty(), "bridge: the rule of {} leaves some of it out", name);
  for (const Transfer& t : plan.transfers)
    copy_part(ctx, pieces[static_cast<size_t>(t.source)], {t.source_offset, t.extent},
              box_of(target, {t.target_offset, t.extent}));
}

// `source`: a box of the part as it is viewed.
void AutoBridge::copy_part(RankContext& ctx, const HfPart& part, const Box& source,
                           const Tensor& target) const {
  if (!weights_.quantized(part.name))
    return copy_from_host(ctx, box_of(view_of(weights_.mapped(part.name), part.view), source), target);
  // The files' first dimension, of which a little is computed at a time.
  const int dim = part.view == HfView::one_expert ? 1 : 0;
  const Shape stored = weights_.shape(part.name);
  require(stored.rank() > 2 || part.view == HfView::plain || part.view == HfView::one_expert,
          "bridge: {} is quantised and cannot be seen by columns", part.name);
  const int64_t step = std::max<int64_t>(1, kElementsAtOnce * stored[0] / stored.numel());
  for (int64_t done = 0; done < source.extent[dim]; done += step) {
    const int64_t count = std::min(step, source.extent[dim] - done), begin = source.offset[dim] + done;
    Box box = source;
    box.offset[dim] = 0;
    box.extent[dim] = count;
    copy_from_host(ctx,
                   box_of(view_of(weights_.dequantized(part.name, begin, begin + count), part.view), box),
                   target.slice(dim, done, done + count));
  }
}

void AutoBridge::load(RankContext& ctx, std::span<Parameter* const> parameters) const {
  for (const Parameter* parameter : parameters) {
    // What belongs to no tensor is padding of the vocabulary.
    ctx.kernels->fill(ctx.kernel_context(), {parameter->value, 0});
    read(ctx, parameter->name, parameter->shard, parameter->value);
  }
}

}  // namespace megatron
