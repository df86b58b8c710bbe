#include <algorithm>
#include <array>

#include "megatron/config/resolve/hybrid_pattern.h"
#include "megatron/config/resolve/pipeline_layout.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

constexpr const char* pp_key = "model.pipeline_model_parallel_size";
constexpr const char* vpp_key = "model.virtual_pipeline_model_parallel_size";
constexpr const char* layout_key = "model.pipeline_model_parallel_layout";

bool is_uneven(const ParallelConfig& p) {
  return p.num_layers_in_first_pipeline_stage > 0 || p.num_layers_in_last_pipeline_stage > 0;
}

void one_way_to_cut(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const bool layout = !p.pipeline_model_parallel_layout.empty(),
             per_chunk = p.num_layers_per_virtual_pipeline_stage > 0;
  const bool chunks = builder.given(vpp_key),
             accounts = p.account_for_embedding_in_pipeline_split || p.account_for_loss_in_pipeline_split;
  if (layout + per_chunk + chunks > 1)
    builder.reject(
        chunks ? vpp_key : "model.num_layers_per_virtual_pipeline_stage",
        "the chunks of a stage are given in two ways",
        "keep one of --pipeline-model-parallel-layout, --num-layers-per-virtual-pipeline-stage and "
        "--num-virtual-stages-per-pipeline-rank");
  if (layout && (is_uneven(p) || accounts))
    builder.reject(layout_key, "a layout already says what the first and last stages hold",
                   "leave out --decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers, "
                   "--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split");
  if (is_uneven(p) && accounts)
    builder.reject("model.account_for_embedding_in_pipeline_split",
                   "first or last stage have a number of layers of their own",
                   "leave out --account-for-embedding-in-pipeline-split and "
                   "--account-for-loss-in-pipeline-split");
}

void layers_divide_by_stages(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const ModelConfig& model = builder.config.model;
  const int64_t stages = p.pipeline_model_parallel_size, chunks = p.virtual_pipeline_model_parallel_size;
  if (model.num_layers == 0 || model.model_type == ModelType::t5 ||
      !p.pipeline_model_parallel_layout.empty() || is_uneven(p) ||
      model.hybrid_layer_pattern.find('|') != std::string::npos)
    return;
  const int64_t extra = p.account_for_embedding_in_pipeline_split + p.account_for_loss_in_pipeline_split;
  const int64_t layers = model.num_layers + extra;
  const std::string what = extra > 0
                               ? fmt::format("num_layers + {} for embedding or loss = {}", extra, layers)
                               : fmt::format("num_layers = {}", layers);
  if (layers % stages != 0)
    return builder.reject(pp_key, fmt::format("does not divide {}", what),
                          fmt::format("use {}, or give a --pipeline-model-parallel-layout",
                                      common_divisors(std::array{layers}, [&](int64_t size) {
                                        return builder.divides_world(size * p.tensor_model_parallel_size *
                                                                     p.context_parallel_size) &&
                                               layers / size % chunks == 0 && (chunks == 1 || size > 1);
                                      })));
  if (p.num_layers_per_virtual_pipeline_stage > 0 &&
      layers / stages % p.num_layers_per_virtual_pipeline_stage != 0)
    return builder.reject("model.num_layers_per_virtual_pipeline_stage",
                          fmt::format("does not divide the {} layers of a stage", layers / stages),
                          fmt::format("use {}", common_divisors(std::array{layers / stages})));
  if (layers / stages % chunks != 0)
    builder.reject(vpp_key, fmt::format("does not divide the {} layers of a stage", layers / stages),
                   fmt::format("use {}", common_divisors(std::array{layers / stages})));
}

// What the first stage, or the last where it alone is given, may hold so that the rest divides.
std::string layers_of_an_end(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const bool both = p.num_layers_in_first_pipeline_stage > 0 && p.num_layers_in_last_pipeline_stage > 0;
  const int64_t middle = p.pipeline_model_parallel_size - 1 - both,
                all = config.model.num_layers - (both ? p.num_layers_in_last_pipeline_stage : 0);
  std::vector<std::string> sizes;
  for (int64_t size = 1; size <= all && sizes.size() < 12; ++size)
    if (middle > 0 ? (all - size) % middle == 0 && size < all : size == all)
      sizes.push_back(std::to_string(size));
  return joined(sizes);
}

void uneven_stages(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const int64_t first = p.num_layers_in_first_pipeline_stage, last = p.num_layers_in_last_pipeline_stage;
  if (!is_uneven(p) || builder.config.model.num_layers == 0) return;
  const char* key =
      first > 0 ? "model.num_layers_in_first_pipeline_stage" : "model.num_layers_in_last_pipeline_stage";
  if (p.pipeline_model_parallel_size == 1)
    return builder.reject(key, "there is one pipeline stage", "use --pipeline-model-parallel-size > 1");
  if (p.num_layers_per_virtual_pipeline_stage > 0)
    return builder.reject(key, "uneven stages cannot be cut by layers per chunk",
                          "leave out --num-layers-per-virtual-pipeline-stage");
  const int64_t middle = p.pipeline_model_parallel_size - (first > 0) - (last > 0);
  const int64_t left = builder.config.model.num_layers - first - last;
  if (left < 0 || (middle == 0 && left != 0) || (middle > 0 && left % middle != 0))
    return builder.reject(key, fmt::format("{} layers are left for {} stages between", left, middle),
                          fmt::format("use {}", layers_of_an_end(builder.config)));
  const int64_t chunks = p.virtual_pipeline_model_parallel_size;
  if (first % chunks != 0 || last % chunks != 0 || (middle > 0 && left / middle % chunks != 0))
    builder.reject(
        vpp_key,
        fmt::format("does not divide the layers of each stage ({}, {}, {})", first,
                    middle > 0 ? left / middle : 0, last),
        fmt::format("use {}", common_divisors(std::array{first, middle > 0 ? left / middle : 0, last})));
}

// A layout of the model with as many layers on each stage as divide; the last has what is left.
std::string plain_layout(const Config& config) {
  const int64_t stages = config.parallel.pipeline_model_parallel_size,
                layers = std::max(stages, config.model.num_layers), each = layers / stages;
  std::string layout = "E";
  for (int64_t stage = 0; stage < stages; ++stage)
    layout += fmt::format("t*{}{}", stage + 1 < stages ? each : layers - each * (stages - 1),
                          stage + 1 < stages ? "|" : "");
  if (config.model.mtp_num_layers > 0) layout += fmt::format("m*{}", config.model.mtp_num_layers);
  return layout + "L";
}

void layout_is_right(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (p.pipeline_model_parallel_layout.empty()) return;
  try {
    const auto stages = parse_pipeline_layout(p.pipeline_model_parallel_layout);
    if (builder.config.model.num_layers == 0) return;
    const std::string wrong =
        check_pipeline_layout(stages, p.pipeline_model_parallel_size, builder.config.model.num_layers,
                              builder.config.model.mtp_num_layers);
    if (!wrong.empty())
      builder.reject(layout_key, wrong, fmt::format("use {}", plain_layout(builder.config)));
  } catch (const Error& error) {
    builder.reject(layout_key, reason_of(error), fmt::format("use {}", plain_layout(builder.config)));
  }
}

void interleaving_needs_stages(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (p.virtual_pipeline_model_parallel_size <= 1) return;
  if (p.pipeline_model_parallel_size == 1)
    return builder.reject(vpp_key, "there is one pipeline stage", "use --pipeline-model-parallel-size > 1");
  if (!p.overlap_p2p_comm.value_or(true) && p.pipeline_model_parallel_size == 2)
    builder.reject(vpp_key, "two stages would exchange several messages at once",
                   "leave out --no-overlap-p2p-communication, or use more than 2 stages");
}

void schedule_suits_chunks(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const char* key = "model.pipeline_schedule";
  const int64_t chunks = p.virtual_pipeline_model_parallel_size;
  if (p.pipeline_schedule == PipelineSchedule::automatic) return;
  if (p.pipeline_model_parallel_size == 1)
    return builder.reject(key, "there is one pipeline stage", "use --pipeline-model-parallel-size > 1");
  if (p.pipeline_schedule == PipelineSchedule::zb_v) {
    if (chunks != 2)
      builder.reject(key, fmt::format("needs two chunks per stage, not {}", chunks),
                     "use --num-virtual-stages-per-pipeline-rank 2");
  } else if (p.pipeline_schedule == PipelineSchedule::interleaved) {
    if (chunks == 1)
      builder.reject(key, "there is one chunk per stage",
                     "use --num-virtual-stages-per-pipeline-rank > 1, or 1f1b");
  } else if (chunks > 1) {
    builder.reject(key, fmt::format("runs one chunk per stage, not {}", chunks),
                   chunks == 2 ? "use interleaved or zb-v" : "use interleaved");
  }
}

void microbatch_groups(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const int64_t stages = p.pipeline_model_parallel_size,
                group = p.microbatch_group_size_per_vp_stage.value_or(stages);
  if (p.virtual_pipeline_model_parallel_size <= 1 || p.pipeline_schedule == PipelineSchedule::zb_v) return;
  if (group < stages)
    return builder.reject("model.microbatch_group_size_per_vp_stage",
                          fmt::format("is smaller than the {} pipeline stages", stages),
                          fmt::format("use at least {}", stages));
  const TrainConfig& train = builder.config.train;
  if (!builder.data_parallel_size || train.global_batch_size == 0 || train.micro_batch_size == 0) return;
  const int64_t per_step = train.micro_batch_size * *builder.data_parallel_size;
  if (train.global_batch_size % per_step != 0) return;
  const int64_t rest = train.global_batch_size / per_step % group;
  if (rest > 0 && rest < stages)
    builder.reject("train.global_batch_size",
                   fmt::format("{} micro-batches leave a last group of {}, fewer than the {} stages",
                               train.global_batch_size / per_step, rest, stages),
                   fmt::format("use a multiple of {}", per_step * stages));
}

// The pattern with `other` in place of these symbols, or without them, and without what is none.
std::string with_layers(const ModelConfig& model, std::string_view symbols, char other) {
  std::string pattern;
  for (char c : model.hybrid_layer_pattern) {
    if (symbols.find(c) != std::string_view::npos) c = other;
    if (c != 0 && std::string_view("MG*+D-E|/").find(c) != std::string_view::npos) pattern += c;
  }
  return pattern.empty() ? "M-M*-" : pattern;
}

void hybrid_pattern_is_right(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const ParallelConfig& p = builder.config.parallel;
  const char* key = "model.hybrid_layer_pattern";
  if (model.hybrid_layer_pattern.empty()) {
    if (model.is_hybrid_model)
      builder.reject("model.is_hybrid_model", "there is no pattern",
                     "leave it out, or give --hybrid-layer-pattern PATTERN");
    return;
  }
  try {
    const HybridPattern pattern = parse_hybrid_pattern(model.hybrid_layer_pattern);
    const auto segments = static_cast<int64_t>(pattern.segments.size());
    if (pattern.layers.empty())
      builder.reject(key, "it has no layers", "leave it out, or give one symbol for each layer");
    if (model.hybrid_layer_pattern.find('E') != std::string::npos && model.num_moe_experts == 0)
      builder.reject(key, "it has expert layers (E) but the model no experts", "give --num-experts N");
    if (segments > 1 && segments % p.pipeline_model_parallel_size != 0)
      builder.reject(key,
                     fmt::format("its {} segments cannot be dealt out to {} pipeline ranks", segments,
                                 p.pipeline_model_parallel_size),
                     fmt::format("use {}", with_layers(model, "|", 0)));
  } catch (const Error& error) {
    builder.reject(key, reason_of(error),
                   fmt::format("use M, G, *, +, D, - and E, as in {}", with_layers(model, "D+", '*')));
  }
}

constexpr Rule kPipelineRules[] = {
    {"one_way_to_cut",
     "model.pipeline_model_parallel_layout model.num_layers_* model.virtual_* model.account_for_*",
     "layers are dealt out to stages in one way only", one_way_to_cut},
    {"layers_divide_by_stages", "model.pipeline_model_parallel_size model.virtual_* model.num_layers*",
     "stages, and chunks of a stage, divide the layers", layers_divide_by_stages},
    {"uneven_stages", "model.num_layers* model.pipeline_model_parallel_size model.virtual_*",
     "what first and last stage leave divides over the rest", uneven_stages},
    {"layout_is_right",
     "model.pipeline_model_parallel_layout model.pipeline_model_parallel_size model.num_layers "
     "model.mtp_num_layers",
     "a layout holds every layer once", layout_is_right},
    {"interleaving_needs_stages",
     "model.virtual_pipeline_model_parallel_size model.pipeline_model_parallel_size model.overlap_p2p_comm",
     "several chunks need several stages", interleaving_needs_stages},
    {"schedule_suits_chunks",
     "model.pipeline_schedule model.virtual_pipeline_model_parallel_size model.pipeline_model_parallel_size "
     "model.mtp_num_layers",
     "a pipeline schedule suits the number of chunks per stage", schedule_suits_chunks},
    {"microbatch_groups",
     "model.microbatch_group_size_per_vp_stage model.virtual_pipeline_model_parallel_size "
     "model.pipeline_schedule train.global_batch_size train.micro_batch_size",
     "an interleaved schedule runs micro-batches in groups of at least the stages", microbatch_groups},
    {"hybrid_pattern_is_right",
     "model.hybrid_layer_pattern model.is_hybrid_model model.num_moe_experts "
     "model.pipeline_model_parallel_size",
     "a hybrid pattern can be read, and its segments suit the stages", hybrid_pattern_is_right},
};

}  // namespace

std::span<const Rule> pipeline_rules() { return kPipelineRules; }

}  // namespace megatron
