#include "megatron/bridge/auto_bridge.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
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
  for (std::string_view end : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias",
                               ".attention.masked_bias", ".position_ids", ".shared_head.head.weight"})
    if (name.ends_with(end)) return true;
  for (std::string_view begin : family.unused)
    if (name.starts_with(begin)) return true;
  return name.starts_with("model.layers.") && name.ends_with(".embed_tokens.weight");
}

bool is_head(std::string_view name) { return name == "lm_head.weight" || name == "embed_out.weight"; }

// Larger values would become infinities without a word.
void require_fp16_range(std::string_view name, const Tensor& values) {
  constexpr float most = 65504;
  const auto scan = [&](const auto* value) {
    for (int64_t i = 0; i < values.numel(); ++i)
      if (const auto number = static_cast<float>(value[i]); std::abs(number) > most && std::isfinite(number))
        throw ConfigError(
            fmt::format("{}: {} does not fit into fp16, whose largest value is {}; use --dtype bf16", name,
                        number, most));
  };
  if (values.dtype() == DType::BF16) scan(values.data<bf16>());
  if (values.dtype() == DType::F32) scan(values.data<float>());
}

// One more than the largest number behind `word` in the names: how many layers, or experts, they speak of.
int64_t count_in(const std::vector<std::string>& names, std::string_view word) {
  int64_t count = 0;
  for (const std::string& name : names)
    if (const size_t at = name.find(word); at != std::string::npos) {
      int64_t number = -1;
      std::from_chars(name.data() + at + word.size(), name.data() + name.size(), number);
      count = std::max(count, number + 1);
    }
  return count;
}

// The one cause of a long list of missing or superfluous tensors, where there is one.
std::string count_mismatch(const ModelConfig& model, const std::vector<std::string>& names) {
  const int64_t layers = count_in(names, "layers."), wanted = model.num_layers;
  if (layers > 0 && (layers < wanted || layers > wanted + model.mtp_num_layers))
    return fmt::format("config.json says {} layers, the files hold {}", wanted, layers);
  const int64_t experts = count_in(names, ".experts.");
  if (experts > 0 && experts != model.num_moe_experts)
    return fmt::format("config.json says {} experts, the files hold {}", model.num_moe_experts, experts);
  return "";
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

std::vector<std::string> AutoBridge::notes() const {
  std::vector<std::string> notes;
  if (const std::vector<std::string>& keys = model_.unknown_keys; !keys.empty())
    notes.push_back(fmt::format("{}/config.json: {} {} not known here and {} no effect", directory(),
                                fmt::join(keys, ", "), keys.size() == 1 ? "is" : "are",
                                keys.size() == 1 ? "has" : "have"));
  if (!left_out_.empty())
    notes.push_back(fmt::format("{}: {} tensors that the model does not use are left out: {}{}", directory(),
                                left_out_.size(), left_out_.front(),
                                left_out_.size() > 1 ? fmt::format(" to {}", left_out_.back()) : ""));
  return notes;
}

std::vector<HfPart> AutoBridge::parts(std::string_view name, const Shape& global_shape) const {
  std::vector<HfPart> parts = model_.parts(name, global_shape);
  if (parts.empty())
    throw ConfigError(fmt::format(
        "{}: a {} has no {}: the settings that were given describe another model than config.json; "
        "leave out settings of the model",
        directory(), config_.architecture(), name));
  return parts;
}

void AutoBridge::check() {
  Problems problems;
  std::set<std::string> used;
  const std::vector<std::string> names = weights_.names();
  whole_model(model_config(), vision_config())->visit([&](Parameter& parameter) {
    for (const HfPart& part : parts(parameter.name, parameter.shard.global_shape)) {
      used.insert(part.name);
      if (!weights_.contains(part.name)) {
        const std::string advice =
            is_head(part.name) && is_base_model(config_.architecture())
                ? fmt::format(
                      "{} has no head; set tie_word_embeddings to true in config.json to use the "
                      "embedding as one",
                      config_.architecture())
                : did_you_mean(nearest(part.name, names));
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
    const bool tied = is_head(name) && model_.model.share_embeddings_and_output_weights;
    if (tied && !same_as_embedding(name))
      problems.add(
          "{}: it differs from the embedding, and tie_word_embeddings says that they are one; set "
          "tie_word_embeddings to false in config.json, or remove the tensor",
          name);
    else if (tied || is_ignored(name, model_.family))
      left_out_.push_back(name);
    else
      problems.add("{}: the model has no such tensor", name);
  }
  if (const std::string cause = vision_config() ? "" : count_mismatch(model_config(), names);
      !problems.empty() && !cause.empty())
    throw ConfigError(fmt::format("{}: {}", directory(), cause));
  problems.raise(
      fmt::format("{}: its weights do not fit its config.json ({})", directory(), config_.architecture()));
}

bool AutoBridge::same_as_embedding(std::string_view head) const {
  const Shape shape{model_.model.vocab_size, model_.model.hidden_size};
  const std::vector<HfPart> embedding = model_.parts("embedding.word_embeddings.weight", shape);
  if (embedding.empty() || !weights_.contains(embedding[0].name)) return true;
  const std::string& name = embedding[0].name;
  if (weights_.quantized(head) || weights_.quantized(name)) return true;
  const Tensor a = weights_.mapped(head), b = weights_.mapped(name);
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
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
  if (target.dtype() == DType::F16 && !weights_.quantized(part.name))
    require_fp16_range(part.name, weights_.mapped(part.name));
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
