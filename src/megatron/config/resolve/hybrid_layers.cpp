#include "megatron/config/resolve/hybrid_layers.h"

#include "megatron/base/error.h"
#include "megatron/config/resolve/hybrid_pattern.h"

namespace megatron {
namespace {

// MTP layers were once described apart: a pattern, as often as there are such layers.
void join_mtp_pattern(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const std::string one = model.mtp_hybrid_override_pattern;
  if (one.empty()) return;
  std::string pattern = model.hybrid_layer_pattern;
  if (pattern.empty())
    builder.note("mtp_hybrid_override_pattern has no effect without --hybrid-layer-pattern");
  if (!pattern.empty() && pattern.find('/') == std::string::npos && model.mtp_num_layers > 0) {
    for (int64_t depth = 0; depth < model.mtp_num_layers; ++depth) pattern += "/" + one;
    builder.derive("model.hybrid_layer_pattern", pattern,
                   "mtp_hybrid_override_pattern, once for each MTP layer");
  }
  builder.derive("model.mtp_hybrid_override_pattern", "", "it is part of hybrid_layer_pattern");
}

// A number that the pattern gives, too.
void take_number(ConfigBuilder& builder, const char* name, int64_t old, int64_t number) {
  if (old == number) return;
  if (builder.given(name))
    builder.note(fmt::format("{} is {}, as in the hybrid_layer_pattern, not {}", name, number, old));
  builder.derive(name, number, "hybrid_layer_pattern");
}

void take_attention(ConfigBuilder& builder, const HybridPattern& pattern) {
  const bool latent = (pattern.layers + pattern.mtp_layers).find_first_of("+D") != std::string::npos;
  if (latent == builder.config.model.multi_latent_attention) return;
  if (!latent)
    builder.note("multi_latent_attention has no effect: the hybrid_layer_pattern has neither + nor D");
  builder.derive("model.multi_latent_attention", latent, "hybrid_layer_pattern");
}

// The layout that the pattern's cuts make; where it has none and the stages do not divide the layers, one
// whose first stages have a layer more.
void take_stages(ConfigBuilder& builder, const HybridPattern& pattern) {
  const ParallelConfig& parallel = builder.config.parallel;
  const int64_t stages = parallel.pipeline_model_parallel_size;
  const auto layers = static_cast<int64_t>(pattern.layers.size());
  std::vector<int64_t> counts = pattern.segments;
  if (stages == 1 || !parallel.pipeline_model_parallel_layout.empty()) return;
  const bool ends =
      parallel.num_layers_in_first_pipeline_stage > 0 || parallel.num_layers_in_last_pipeline_stage > 0;
  if (counts.size() == 1) {
    if (ends || layers % stages == 0 || layers < stages ||
        builder.given("model.virtual_pipeline_model_parallel_size"))
      return;
    builder.note(fmt::format("{} layers do not divide over {} pipeline stages: the first {} have one more",
                             layers, stages, layers % stages));
    counts.assign(static_cast<size_t>(stages), layers / stages);
    for (int64_t stage = 0; stage < layers % stages; ++stage) ++counts[static_cast<size_t>(stage)];
  }
  if (static_cast<int64_t>(counts.size()) % stages != 0) return;  // the rule on patterns reports it
  std::string layout = "E";
  for (size_t stage = 0; stage < counts.size(); ++stage)
    layout += (stage > 0 ? "|" : "") + std::string(static_cast<size_t>(counts[stage]), 't');
  layout += std::string(static_cast<size_t>(pattern.mtp_depths), 'm') + "L";
  builder.derive("model.pipeline_model_parallel_layout", layout, "hybrid_layer_pattern");
}

}  // namespace

void derive_hybrid_layers(ConfigBuilder& builder) {
  join_mtp_pattern(builder);
  const ModelConfig& model = builder.config.model;
  if (model.hybrid_layer_pattern.empty()) return;
  if (!builder.given("model.is_hybrid_model"))
    builder.derive("model.is_hybrid_model", true, "hybrid_layer_pattern");
  try {
    const HybridPattern pattern = parse_hybrid_pattern(model.hybrid_layer_pattern);
    if (pattern.layers.empty()) return;
    take_number(builder, "model.num_layers", model.num_layers, static_cast<int64_t>(pattern.layers.size()));
    take_number(builder, "model.mtp_num_layers", model.mtp_num_layers, pattern.mtp_depths);
    take_attention(builder, pattern);
    take_stages(builder, pattern);
  } catch (const Error&) {
    // The rule on patterns reports it.
  }
}

}  // namespace megatron
