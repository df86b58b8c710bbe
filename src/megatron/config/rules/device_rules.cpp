#include <algorithm>

#include "megatron/base/kernel_limits.h"
#include "megatron/config/rules/rules.h"

// What the CUDA kernels take at most: whatever they would refuse in the middle of a run is refused here,
// where the run would be on GPUs.
namespace megatron {
namespace {

template <void (*check)(ConfigBuilder&)>
void where_on_gpus(ConfigBuilder& builder) {
  if (builder.on_gpus()) check(builder);
}

bool has_latent_heads(const ModelConfig& model) {
  return model.is_hybrid_model ? has_layers(model, '+') : model.multi_latent_attention;
}
bool has_plain_heads(const ModelConfig& model) {
  if (model.is_hybrid_model) return has_layers(model, '*');
  return !model.multi_latent_attention && !(has_delta_nets(model) && model.linear_attention_freq.is_null());
}

int64_t element_bytes(const Config& config) {
  const std::string& dtype = config.precision.params_dtype;
  return dtype == "fp64" ? 8 : dtype == "fp32" ? 4 : 2;
}
// Whether rows of these lengths, one after the other, begin at multiples of 16 bytes.
bool in_vectors(const Config& config, int64_t lengths) { return lengths * element_bytes(config) % 16 == 0; }

int64_t of_a_rank(const Config& config, int64_t heads) {
  return heads / config.parallel.tensor_model_parallel_size;
}
// Of one micro-batch on a rank.
double tokens_at_once(const Config& config) {
  const auto sequences = static_cast<double>(std::max<int64_t>(1, config.train.micro_batch_size));
  return sequences * static_cast<double>(config.model.seq_length) /
         static_cast<double>(config.parallel.context_parallel_size);
}

std::string generation(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }
std::string or_cpu(std::string fix) { return fix + ", or --device cpu"; }

void gpu_generation(ConfigBuilder& builder) {
  for (const GpuFacts& gpu : builder.gpus)
    if (gpu.compute_capability < limits::kMinCapability)
      return builder.reject(
          "run.device",
          fmt::format("a GPU of compute capability {} is older than the kernels, which need {}",
                      generation(gpu.compute_capability), generation(limits::kMinCapability)),
          "use --device cpu, or hide it by CUDA_VISIBLE_DEVICES");
}

void fp8_generation(ConfigBuilder& builder) {
  const PrecisionConfig& precision = builder.config.precision;
  if (precision.fp8 == Fp8Format::none) return;
  for (const GpuFacts& gpu : builder.gpus) {
    if (gpu.compute_capability < limits::kFp8Capability)
      return builder.reject(
          "model.fp8",
          fmt::format("a GPU of compute capability {} has no products in fp8, which begin with {}",
                      generation(gpu.compute_capability), generation(limits::kFp8Capability)),
          "leave it out");
    if (precision.fp8_recipe == Fp8Recipe::blockwise &&
        gpu.compute_capability != limits::kBlockwiseFp8Capability)
      return builder.reject(
          "model.fp8_recipe",
          fmt::format("a GPU of compute capability {} has no products with a scale per block: "
                      "those of {} alone have them",
                      generation(gpu.compute_capability), generation(limits::kBlockwiseFp8Capability)),
          "use --fp8-recipe tensorwise");
  }
}

// Channels of a head's keys and of its values; `key` names the setting that makes them.
void check_head(ConfigBuilder& builder, const char* key, int64_t keys, int64_t values) {
  if (std::max(keys, values) > limits::kMaxHeadDim)
    return builder.reject(key,
                          fmt::format("attention's heads of {} channels are too wide for the CUDA kernels, "
                                      "which take {}",
                                      std::max(keys, values), limits::kMaxHeadDim),
                          or_cpu("use narrower heads"));
  const int64_t bytes =
      limits::attention_memory(keys, values, std::max<int64_t>(4, element_bytes(builder.config)));
  for (const GpuFacts& gpu : builder.gpus)
    if (bytes > gpu.shared_memory)
      return builder.reject(
          key,
          fmt::format(
              "attention's heads of {} and {} channels in {} need {} KiB of a GPU's shared memory, of "
              "which it has {}",
              keys, values, builder.config.precision.params_dtype, bytes / 1024 + 1,
              gpu.shared_memory / 1024),
          or_cpu("use narrower heads or numbers"));
}

void head_width(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (has_plain_heads(model)) check_head(builder, "model.kv_channels", model.kv_channels, model.kv_channels);
  if (!has_latent_heads(model)) return;
  const int64_t keys = model.qk_head_dim + model.qk_pos_emb_head_dim;
  check_head(builder, keys >= model.v_head_dim ? "model.qk_head_dim" : "model.v_head_dim", keys,
             model.v_head_dim);
}

void delta_net_width(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (has_delta_nets(model) && model.linear_key_head_dim > limits::kDeltaKeyChannels)
    builder.reject(
        "model.linear_key_head_dim",
        fmt::format("the CUDA kernels take {} key channels of a delta net's head", limits::kDeltaKeyChannels),
        or_cpu("use narrower heads"));
}

void scan_size(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!has_layers(model, 'M')) return;
  if (model.mamba_chunk_size > limits::kScanChunk)
    return builder.reject("model.mamba_chunk_size",
                          fmt::format("the CUDA kernels take chunks of {} tokens", limits::kScanChunk),
                          or_cpu("use 128 or 256, which tensor cores take"));
  const int64_t chunk = model.mamba_chunk_size, channels = model.mamba_head_dim,
                states = model.mamba_state_dim;
  if (std::max({limits::scan_tiles(channels, states), limits::scan_tiles(chunk, channels),
                limits::scan_tiles(chunk, states)}) > limits::kGridRows)
    builder.reject(channels > states ? "model.mamba_head_dim" : "model.mamba_state_dim",
                   fmt::format("a state of {} x {} is too large for the CUDA kernels, whose launches have {} "
                               "tiles of {} x {}",
                               channels, states, limits::kGridRows, limits::kScanTile, limits::kScanTile),
                   or_cpu("use smaller states"));
}

void norm_width(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  const auto check = [&](const char* key, int64_t width, const char* what) {
    const int64_t most = limits::norm_row(element_bytes(config), in_vectors(config, width));
    if (width > most)
      builder.reject(
          key,
          fmt::format("norms support {} elements per row in {}{}, got {}{}", most,
                      config.precision.params_dtype,
                      in_vectors(config, width) ? "" : " where rows fill no whole vectors", width, what),
          or_cpu("use a smaller width"));
  };
  check("model.hidden_size", model.hidden_size, "");
  if (has_latent_heads(model)) {
    check("model.kv_lora_rank", model.kv_lora_rank, "");
    if (model.q_lora_rank) check("model.q_lora_rank", *model.q_lora_rank, "");
  }
  if (model.qk_layernorm_full_width && model.qk_layernorm && config.parallel.tensor_model_parallel_size == 1)
    check("model.qk_layernorm_full_width", model.num_attention_heads * model.kv_channels,
          " of all heads at once");
}

void gated_norm_width(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  // `lengths` has the bits of all numbers of columns at which a row may begin.
  const auto check = [&](const char* key, int64_t width, int64_t lengths, const char* fix) {
    const bool vectors = in_vectors(config, lengths);
    const int64_t most = limits::gated_norm_row(element_bytes(config), vectors);
    if (width > most)
      builder.reject(key,
                     fmt::format("the CUDA kernels norm {} gated channels at once in {}{}, not {}", most,
                                 config.precision.params_dtype,
                                 vectors ? "" : " where the projection's rows fill no whole vectors", width),
                     or_cpu(fix));
  };
  if (has_layers(model, 'M') && model.mamba_num_heads > 0) {
    const int64_t heads = of_a_rank(config, model.mamba_num_heads), inner = heads * model.mamba_head_dim,
                  groups = std::max<int64_t>(1, of_a_rank(config, model.mamba_num_groups)),
                  width = model.mamba_norm_full_width ? inner : inner / groups;
    check(model.mamba_norm_full_width ? "model.mamba_norm_full_width" : "model.mamba_num_groups", width,
          width | (2 * inner + 2 * groups * model.mamba_state_dim + heads),
          model.mamba_norm_full_width ? "use more tensor-parallel ranks" : "use more groups");
  }
  if (has_delta_nets(model)) {
    const int64_t heads = of_a_rank(config, model.linear_num_value_heads),
                  width = model.linear_value_head_dim,
                  keys = of_a_rank(config, model.linear_num_key_heads) * model.linear_key_head_dim;
    check("model.linear_value_head_dim", width, width | (2 * keys + heads * width) | 2 * heads,
          "use narrower heads");
  }
}

void experts_of_a_sort(ConfigBuilder& builder) {
  const Config& config = builder.config;
  // Where a token goes to every part of an expert's matrices, each part is sorted as an expert.
  const int64_t parts = std::max<int64_t>(1, config.parallel.expert_tensor_parallel_size),
                slots = config.model.num_moe_experts * parts;
  if (slots > limits::kExpertSlots)
    builder.reject(
        "model.num_moe_experts",
        fmt::format("the CUDA kernels sort tokens among {} experts, not {}{}", limits::kExpertSlots, slots,
                    parts > 1 ? ", each tensor-parallel part counted" : ""),
        or_cpu("use fewer experts"));
}

void rows_of_a_grid(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  const auto check = [&](const char* key, bool used, int64_t rows, int64_t most, const char* what) {
    if (used && rows > most)
      builder.reject(key, fmt::format("the CUDA kernels take {} {}, not {}", most, what, rows),
                     or_cpu("use a smaller number or more ranks"));
  };
  const bool attends = has_plain_heads(model) || has_latent_heads(model);
  check("model.num_attention_heads", attends, of_a_rank(config, model.num_attention_heads), limits::kGridRows,
        "heads on a rank");
  check("model.mamba_num_heads", has_layers(model, 'M'), of_a_rank(config, model.mamba_num_heads),
        limits::kGridRows, "heads on a rank");
  check("model.linear_num_value_heads", has_delta_nets(model),
        of_a_rank(config, model.linear_num_value_heads), limits::kGridRows, "heads on a rank");
  check("train.micro_batch_size", attends, config.train.micro_batch_size, limits::kGridRows,
        "sequences at once");
  check("model.moe_ffn_hidden_size", model.num_moe_experts > 0, model.moe_ffn_hidden_size, limits::kTileRows,
        "columns of an expert");
  check("model.ffn_hidden_size", config.precision.fp8 != Fp8Format::none, model.ffn_hidden_size,
        limits::kTileRows, "columns of a matrix in fp8");
  check("model.vocab_size", true, of_a_rank(config, model.vocab_size), limits::kLogits,
        "logits of a token on a rank");
}

// Threads that turn a micro-batch's heads by their positions, or only cut them out of their projection: one
// for a vector of pairs, or of channels that do not turn, of two heads where their number is even.
double rotation_threads(const Config& config, int64_t heads, int64_t channels, int64_t rotated) {
  const bool vectors = in_vectors(config, channels | rotated / 2);
  const int64_t wide = vectors ? 16 / element_bytes(config) : 1, together = vectors && heads % 2 == 0 ? 2 : 1;
  return tokens_at_once(config) * static_cast<double>(heads / together) *
         static_cast<double>((channels - rotated / 2) / wide);
}

void tokens_of_a_launch(ConfigBuilder& builder) {
  // Lengths that come with the data are not known yet; the kernels look at them.
  if (!builder.config.dataset.replay.empty() || builder.purpose == Purpose::forward) return;
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  const double tokens = tokens_at_once(config);
  double threads = 2 * tokens;
  const auto count = [&](bool used, double needed) {
    if (used) threads = std::max(threads, needed);
  };
  const PositionEmbedding kind = model.position_embedding_type;
  const bool turns =
      kind == PositionEmbedding::rope || kind == PositionEmbedding::yarn || kind == PositionEmbedding::mrope;
  const auto rotated = static_cast<int64_t>(static_cast<double>(model.kv_channels) * model.rotary_percent);
  const int64_t queries = of_a_rank(config, model.num_attention_heads),
                keys = std::max<int64_t>(1, of_a_rank(config, model.num_query_groups));
  count(has_plain_heads(model),
        rotation_threads(config, queries + 2 * keys, model.kv_channels, turns ? rotated : 0));
  count(has_latent_heads(model),
        rotation_threads(config, queries, model.qk_pos_emb_head_dim, model.qk_pos_emb_head_dim));
  count(has_layers(model, 'M'), tokens * static_cast<double>(of_a_rank(config, model.mamba_num_groups)));
  count(has_delta_nets(model), tokens * static_cast<double>(of_a_rank(config, model.linear_num_value_heads)));
  const bool in_fp8 = config.precision.fp8 != Fp8Format::none && tokens > limits::kTileRows;
  if (in_fp8 || threads >= limits::kThreads)
    builder.reject("model.seq_length",
                   fmt::format("{:.0f} tokens of a micro-batch on a rank are more than a launch of the CUDA "
                               "kernels takes{}",
                               tokens, in_fp8 ? " in fp8" : ""),
                   or_cpu("use a smaller --micro-batch-size or more context-parallel ranks"));
}

void ranks_that_share(ConfigBuilder& builder) {
  if (builder.config.run.ranks > limits::kSharingRanks)
    builder.reject("run.ranks",
                   fmt::format("at most {} ranks of a process may share GPUs", limits::kSharingRanks),
                   or_cpu("start more processes"));
}

void sparse_attention(ConfigBuilder& builder) {
  if (builder.config.model.experimental_attention_variant == AttentionVariant::dsa)
    builder.reject("model.experimental_attention_variant", "dsa has no CUDA kernels",
                   or_cpu("leave it out for multi-latent attention"));
}

constexpr Rule kDeviceRules[] = {
    {"gpu_generation", "run.device", "GPUs are not older than the kernels", where_on_gpus<gpu_generation>},
    {"fp8_generation", "run.device model.fp8 model.fp8_recipe", "GPUs have products in fp8",
     where_on_gpus<fp8_generation>},
    {"head_width",
     "run.device model.kv_channels model.qk_head_dim model.qk_pos_emb_head_dim model.v_head_dim "
     "model.params_dtype model.multi_latent_attention model.hybrid_layer_pattern",
     "on GPUs attention's heads are not too wide for the kernels", where_on_gpus<head_width>},
    {"delta_net_width",
     "run.device model.linear_key_head_dim model.experimental_attention_variant model.hybrid_layer_pattern",
     "on GPUs a delta net's keys are not too wide for the kernels", where_on_gpus<delta_net_width>},
    {"sparse_attention", "run.device model.experimental_attention_variant",
     "sparse attention runs on the CPU", where_on_gpus<sparse_attention>},
    {"scan_size",
     "run.device model.mamba_chunk_size model.mamba_head_dim model.mamba_state_dim "
     "model.hybrid_layer_pattern",
     "on GPUs chunks and states of scans are not too large for the kernels", where_on_gpus<scan_size>},
    {"norm_width",
     "run.device model.hidden_size model.kv_lora_rank model.q_lora_rank model.qk_layernorm "
     "model.qk_layernorm_full_width model.num_attention_heads model.kv_channels model.params_dtype "
     "model.tensor_model_parallel_size",
     "on GPUs rows of norms are not too long for the kernels", where_on_gpus<norm_width>},
    {"gated_norm_width",
     "run.device model.mamba_num_heads model.mamba_head_dim model.mamba_num_groups model.mamba_state_dim "
     "model.mamba_norm_full_width model.linear_value_head_dim model.linear_num_value_heads "
     "model.linear_num_key_heads model.linear_key_head_dim model.params_dtype "
     "model.tensor_model_parallel_size model.hybrid_layer_pattern",
     "on GPUs rows of gated norms are not too long for the kernels", where_on_gpus<gated_norm_width>},
    {"experts_of_a_sort", "run.device model.num_moe_experts model.expert_tensor_parallel_size",
     "on GPUs tokens are not sorted among too many experts", where_on_gpus<experts_of_a_sort>},
    {"rows_of_a_grid",
     "run.device model.num_attention_heads model.mamba_num_heads model.linear_num_value_heads "
     "train.micro_batch_size model.moe_ffn_hidden_size "
     "model.ffn_hidden_size model.fp8 model.vocab_size model.num_moe_experts "
     "model.tensor_model_parallel_size",
     "on GPUs nothing has more rows than a launch", where_on_gpus<rows_of_a_grid>},
    {"tokens_of_a_launch",
     "run.device model.seq_length train.micro_batch_size "
     "model.context_parallel_size model.fp8 model.position_embedding_type "
     "model.num_attention_heads model.num_query_groups model.kv_channels model.rotary_percent "
     "model.qk_pos_emb_head_dim model.mamba_num_groups model.linear_num_value_heads model.params_dtype "
     "model.tensor_model_parallel_size",
     "on GPUs a micro-batch has no more tokens than a launch", where_on_gpus<tokens_of_a_launch>},
    {"ranks_that_share", "run.device run.ranks", "not too many ranks share GPUs",
     where_on_gpus<ranks_that_share>},
};

}  // namespace

std::span<const Rule> device_rules() { return kDeviceRules; }

}  // namespace megatron
