#include "megatron/bridge/auto_bridge.h"

#include <set>

#include "megatron/base/nearest.h"
#include "megatron/base/problems.h"
#include "megatron/checkpoint/copy_in.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/models/gpt.h"

namespace megatron {
namespace {

// Buffers that some files carry and no model needs.
bool is_ignored(std::string_view name) {
  for (std::string_view end : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".position_ids"})
    if (name.ends_with(end)) return true;
  return false;
}

Tensor part_of(const SafetensorsDirectory& weights, const HfPart& part) {
  return view_of(weights.tensor(part.name), part.view);
}

}  // namespace

AutoBridge::AutoBridge(const std::string& directory)
    : config_(HfConfig::read(directory)),
      weights_(std::make_shared<const SafetensorsDirectory>(directory)),
      family_(&find_family(config_.architecture())),
      model_(
          family_->configure({config_, [this](std::string_view name) { return weights_->contains(name); }})) {
  check();
}

std::vector<HfPart> AutoBridge::parts(std::string_view name, const Shape& global_shape) const {
  std::vector<HfPart> parts = hf_parts(family_->rules, model_, name, global_shape);
  require(!parts.empty(), "bridge: no rule of {} says where {} comes from", config_.architecture(), name);
  return parts;
}

void AutoBridge::check() const {
  GptModel whole(model_, {.first_layer = 0, .layers = model_.num_layers}, {}, DType::F32);
  Problems problems;
  std::set<std::string> used;
  const std::vector<std::string> names = weights_->names();
  whole.visit([&](Parameter& parameter) {
    for (const HfPart& part : parts(parameter.name, parameter.shard.global_shape)) {
      used.insert(part.name);
      if (!weights_->contains(part.name)) {
        const std::string advice = did_you_mean(nearest(part.name, names));
        problems.add("{}: it is missing{}{}", part.name, advice.empty() ? "" : "; ", advice);
        continue;
      }
      const SafetensorsEntry& entry = weights_->at(part.name);
      const Shape wanted = stored_shape(part.shard.local_shape, part.view);
      if (!(entry.shape == wanted))
        problems.add("{}: the file has {}, the configuration says {}", part.name, entry.shape, wanted);
      if (!is_floating(entry.dtype))
        problems.add("{}: the file has {}, not floating-point numbers", part.name, entry.stored);
    }
  });
  for (const std::string& name : names)
    if (!used.contains(name) && !is_ignored(name) &&
        !(name == "lm_head.weight" && model_.share_embeddings_and_output_weights))
      problems.add("{}: the model has no such tensor", name);
  problems.raise(fmt::format("{}: its weights do not fit its config.json ({})", weights_->path(),
                             config_.architecture()));
}

void AutoBridge::read(RankContext& ctx, std::string_view name, const ShardSpec& shard,
                      const Tensor& target) const {
  const std::vector<HfPart> pieces = parts(name, shard.global_shape);
  std::vector<ShardSpec> sources;
  for (const HfPart& part : pieces) sources.push_back(part.shard);
  const TransferPlan plan = plan_transfers(sources, {&shard, 1});
  require(plan.missing.empty(), "bridge: the rule of {} leaves some of it out", name);
  for (const Transfer& t : plan.transfers)
    copy_in(ctx,
            box_of(part_of(*weights_, pieces[static_cast<size_t>(t.source)]), {t.source_offset, t.extent}),
            box_of(target, {t.target_offset, t.extent}));
}

void AutoBridge::load(RankContext& ctx, std::span<Parameter* const> parameters) const {
  for (const Parameter* parameter : parameters) {
    // What belongs to no tensor is padding of the vocabulary.
    ctx.kernels->fill(ctx.kernel_context(), {parameter->value, 0});
    read(ctx, parameter->name, parameter->shard, parameter->value);
  }
}

}  // namespace megatron
