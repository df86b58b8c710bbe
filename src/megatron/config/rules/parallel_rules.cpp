#include <algorithm>
#include <array>
#include <numeric>

#include "megatron/base/counted.h"
#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/resolve/tp_overlap_file.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

constexpr const char* tp_key = "model.tensor_model_parallel_size";
constexpr const char* cp_key = "model.context_parallel_size";
constexpr const char* ep_key = "model.expert_model_parallel_size";
constexpr const char* etp_key = "model.expert_tensor_parallel_size";

void world_divides(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const int64_t dense =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  if (!builder.divides_world(dense))
    builder.reject(tp_key,
                   fmt::format("tensor {} x pipeline {} x context {} = {} does not divide the {}",
                               p.tensor_model_parallel_size, p.pipeline_model_parallel_size,
                               p.context_parallel_size, dense, counted(*builder.world_size, "rank")),
                   fmt::format("use --ranks {}, or smaller sizes", dense));
}

void expert_world_divides(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (builder.config.model.num_moe_experts == 0) return;
  const int64_t expert =
      p.expert_tensor_parallel_size * p.expert_model_parallel_size * p.pipeline_model_parallel_size;
  if (!builder.divides_world(expert))
    builder.reject(
        ep_key,
        fmt::format("expert tensor {} x expert {} x pipeline {} = {} does not divide the {}",
                    p.expert_tensor_parallel_size, p.expert_model_parallel_size,
                    p.pipeline_model_parallel_size, expert, counted(*builder.world_size, "rank")),
        fmt::format("use --ranks {}, or smaller sizes",
                    std::lcm(expert, p.tensor_model_parallel_size * p.pipeline_model_parallel_size *
                                         p.context_parallel_size)));
}

// The tensor-parallel sizes that suit the model, the ranks and the batch.
std::string tp_sizes(const ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const ParallelConfig& p = builder.config.parallel;
  const TrainConfig& train = builder.config.train;
  std::vector<int64_t> numbers = {model.num_attention_heads, model.num_query_groups, model.ffn_hidden_size,
                                  model.moe_shared_expert_intermediate_size};
  if (has_layers(model, 'M')) numbers.insert(numbers.end(), {model.mamba_num_heads, model.mamba_num_groups});
  if (has_delta_nets(model)) numbers.push_back(model.linear_num_key_heads);
  const std::string fitting = common_divisors(numbers, [&](int64_t tp) {
    const int64_t ranks = tp * p.pipeline_model_parallel_size * p.context_parallel_size;
    if (p.sequence_parallel && model.seq_length / p.context_parallel_size % tp != 0) return false;
    const int64_t step = train.micro_batch_size * (builder.world_size.value_or(0) / ranks);
    return builder.divides_world(ranks) && (step == 0 || train.global_batch_size % step == 0);
  });
  // With another size the world is another one, too, where the command starts as many ranks as it takes.
  return fitting.empty() ? common_divisors(numbers, [](int64_t) { return true; }) : fitting;
}

void heads_divide_by_tp(ConfigBuilder& builder) {
  if (has_inactive_slots(builder.config.parallel)) return;  // ranks hold unequal parts
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size,
                heads = builder.config.model.num_attention_heads;
  if (heads > 0 && heads % tp != 0)
    builder.reject(tp_key, fmt::format("does not divide num_attention_heads = {}", heads),
                   fmt::format("use {}", tp_sizes(builder)));
}

void query_groups_fit_tp(ConfigBuilder& builder) {
  if (has_inactive_slots(builder.config.parallel)) return;  // ranks hold unequal parts
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size,
                groups = builder.config.model.num_query_groups;
  const int64_t sections = builder.config.model.attention_output_gate ? 2 : 1;  // queries, and their gates
  const int64_t rows =
      (sections * builder.config.model.num_attention_heads + 2 * groups) * builder.config.model.kv_channels;
  if (groups > 0 && tp > groups && tp % groups == 0 && rows % tp != 0 &&
      !builder.config.model.multi_latent_attention)
    return builder.reject(
        tp_key, fmt::format("does not divide the {} rows of the fused query, key and value projection", rows),
        fmt::format("use {}", tp_sizes(builder)));
  if (groups == 0 || groups == builder.config.model.num_attention_heads ||
      builder.config.model.multi_latent_attention || groups % tp == 0 || tp % groups == 0)
    return;
  builder.reject(tp_key, fmt::format("is neither a divisor nor a multiple of num_query_groups = {}", groups),
                 builder.config.model.num_attention_heads % groups == 0
                     ? fmt::format("use {}, or a multiple of {}", tp_sizes(builder), groups)
                     : fmt::format("use {}", tp_sizes(builder)));
}

void ffn_divides_by_tp(ConfigBuilder& builder) {
  if (has_inactive_slots(builder.config.parallel)) return;  // ranks hold unequal parts
  const ModelConfig& model = builder.config.model;
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size,
                etp = builder.config.parallel.expert_tensor_parallel_size;
  if (model.ffn_hidden_size > 0 && model.ffn_hidden_size % tp != 0)
    builder.reject("model.ffn_hidden_size",
                   fmt::format("tensor_model_parallel_size = {} does not divide it", tp),
                   fmt::format("use a multiple of {}", tp));
  if (model.num_moe_experts == 0) return;
  if (model.moe_ffn_hidden_size > 0 && model.moe_ffn_hidden_size % etp != 0)
    builder.reject("model.moe_ffn_hidden_size",
                   fmt::format("expert_tensor_parallel_size = {} does not divide it", etp),
                   fmt::format("use a multiple of {}, or --expert-tensor-parallel-size 1", etp));
  if (model.moe_shared_expert_intermediate_size % tp != 0)
    builder.reject("model.moe_shared_expert_intermediate_size",
                   fmt::format("tensor_model_parallel_size = {} does not divide it", tp),
                   fmt::format("use a multiple of {}", tp));
}

void mamba_divides_by_tp(ConfigBuilder& builder) {
  if (has_inactive_slots(builder.config.parallel)) return;  // ranks hold unequal parts
  const ModelConfig& model = builder.config.model;
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size;
  if (!has_layers(model, 'M')) return;
  for (auto [name, number] :
       {std::pair{"mamba_num_heads", model.mamba_num_heads}, {"mamba_num_groups", model.mamba_num_groups}})
    if (number % tp != 0)
      builder.reject(tp_key, fmt::format("does not divide {} = {}", name, number),
                     fmt::format("use {}", tp_sizes(builder)));
}

// Context-parallel ranks run whole sequences of some heads each.
void states_divide_by_cp(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size,
                cp = builder.config.parallel.context_parallel_size;
  if (cp == 1) return;
  const int64_t rest = tp * builder.config.parallel.pipeline_model_parallel_size;
  // Heads that others share may be fewer than the ranks.
  auto divides = [&](const char* name, int64_t heads, bool shared) {
    if (heads % tp != 0) return;  // said elsewhere
    const int64_t own = heads / tp;
    if (own % cp != 0 && !(shared && cp % own == 0))
      builder.reject(cp_key,
                     fmt::format("cannot split {} = {} ({} on each tensor-parallel rank)", name, heads, own),
                     fmt::format("use {}", common_divisors(std::array{own}, [&](int64_t size) {
                                   return builder.divides_world(size * rest);
                                 })));
  };
  if (has_layers(model, 'M')) {
    divides("mamba_num_heads", model.mamba_num_heads, false);
    divides("mamba_num_groups", model.mamba_num_groups, true);
  }
  if (has_delta_nets(model)) {
    divides("linear_num_value_heads", model.linear_num_value_heads, false);
    divides("linear_num_key_heads", model.linear_num_key_heads, true);
  }
}

void delta_net_divides_by_tp(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size;
  if (!has_delta_nets(model)) return;
  if (model.linear_num_value_heads % model.linear_num_key_heads != 0)
    builder.reject("model.linear_num_value_heads",
                   fmt::format("is not a multiple of linear_num_key_heads = {}", model.linear_num_key_heads),
                   fmt::format("use a multiple of {}", model.linear_num_key_heads));
  if (model.linear_num_key_heads % tp != 0 && !has_inactive_slots(builder.config.parallel))
    builder.reject(tp_key,
                   fmt::format("does not divide linear_num_key_heads = {}", model.linear_num_key_heads),
                   fmt::format("use {}", tp_sizes(builder)));
}

void sequence_divides(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const int64_t length = builder.config.model.seq_length;
  if (length == 0) return;
  const int64_t cp = p.context_parallel_size;
  if (cp > 1 && length % (2 * cp) != 0)
    return builder.reject("model.seq_length",
                          fmt::format("2 x context_parallel_size = {} does not divide it", 2 * cp),
                          fmt::format("use a multiple of {}", 2 * cp));
  if (p.sequence_parallel && length / cp % p.tensor_model_parallel_size != 0 && !has_inactive_slots(p))
    builder.reject("model.seq_length",
                   fmt::format("sequence_parallel splits {} tokens over {} ranks unevenly", length / cp,
                               p.tensor_model_parallel_size),
                   fmt::format("use a multiple of {}", std::lcm(2 * cp, cp * p.tensor_model_parallel_size)));
}

// Sizes of the inner and outer level of a2a+p2p; the inner one divides the heads and `inner`.
std::string two_levels(const Config& config, int64_t inner) {
  const ParallelConfig& p = config.parallel;
  for (int64_t heads : {config.model.num_attention_heads, config.model.num_query_groups})
    inner = std::gcd(inner, heads / p.tensor_model_parallel_size);
  inner = std::gcd(inner, p.context_parallel_size);
  return fmt::format("{} {}", inner, p.context_parallel_size / inner);
}

void context_communication(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ParallelConfig& p = config.parallel;
  const ModelConfig& model = builder.config.model;
  const int64_t cp = p.context_parallel_size;
  const size_t kinds = p.cp_comm_type.size();
  if (kinds != 1 && model.num_layers > 0 && kinds != static_cast<size_t>(model.num_layers))
    builder.reject("model.cp_comm_type", fmt::format("{} kinds for {} layers", kinds, model.num_layers),
                   fmt::format("use {}, or one for each layer", p.cp_comm_type.front()));
  const auto uses = [&](const char* kind) {
    return std::find(p.cp_comm_type.begin(), p.cp_comm_type.end(), kind) != p.cp_comm_type.end();
  };
  const std::vector<int64_t>& levels = p.hierarchical_context_parallel_sizes;
  const auto heads_divide = [&](const char* kind, int64_t ranks, const char* advice) {
    if (cp == 1 || !uses(kind) || model.num_attention_heads == 0) return;
    const int64_t tp = p.tensor_model_parallel_size;
    const int64_t heads = model.num_attention_heads / tp,
                  groups = std::max<int64_t>(1, model.num_query_groups / tp);
    if (heads % ranks != 0 || groups % ranks != 0)
      builder.reject("model.cp_comm_type",
                     fmt::format("{} splits the {} query and {} key heads of a rank over {} ranks", kind,
                                 heads, groups, ranks),
                     advice);
  };
  heads_divide("a2a", cp, "use p2p or all_gather, or a smaller context_parallel_size");
  if (levels.size() == 2)
    heads_divide(
        "a2a+p2p", levels[0],
        "use p2p or all_gather without --hierarchical-context-parallel-sizes, or a smaller inner level");
  if (uses("a2a+p2p") && levels.size() != 2)
    return builder.reject(
        "model.cp_comm_type",
        fmt::format("a2a+p2p needs the sizes of its two levels, but {} are given", levels.size()),
        fmt::format("give --hierarchical-context-parallel-sizes {}", two_levels(config, cp)));
  if (!levels.empty() && !uses("a2a+p2p"))
    return builder.reject("model.hierarchical_context_parallel_sizes", "only a2a+p2p has levels",
                          "use --cp-comm-type a2a+p2p, or leave it out");
  const int64_t product = std::accumulate(levels.begin(), levels.end(), int64_t{1}, std::multiplies<>());
  if (!levels.empty() && product != cp)
    builder.reject("model.hierarchical_context_parallel_sizes",
                   fmt::format("their product {} is not context_parallel_size = {}", product, cp),
                   fmt::format("use {}", two_levels(config, levels[0])));
}

void experts_divide_by_ep(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const int64_t ep = p.expert_model_parallel_size, experts = builder.config.model.num_moe_experts;
  if (ep > 1 && experts == 0)
    return builder.reject(ep_key, "the model has no experts",
                          "give --num-experts N, or --expert-model-parallel-size 1");
  if (experts % ep != 0)
    builder.reject(ep_key, fmt::format("does not divide num_moe_experts = {}", experts),
                   fmt::format("use {}", common_divisors(std::array{experts}, [&](int64_t size) {
                                 return builder.divides_world(size * p.expert_tensor_parallel_size *
                                                              p.pipeline_model_parallel_size);
                               })));
}

void tp_overlap_needs_sequence_parallel(ConfigBuilder& builder) {
  if (builder.config.parallel.tp_comm_overlap && !builder.config.parallel.sequence_parallel)
    builder.reject(
        "model.tp_comm_overlap", "works with sequence parallelism only",
        builder.config.parallel.tensor_model_parallel_size > 1 ? "add --sequence-parallel" : "leave it out");
}

// Notes what fields of a file do with this number of ranks and tokens.
void note_overlap_on_ranks(ConfigBuilder& builder, TpOverlapFile& file) {
  const Config& config = builder.config;
  const ParallelConfig& p = config.parallel;
  const int64_t tp = p.tensor_model_parallel_size,
                rows = config.train.micro_batch_size * config.model.seq_length / p.context_parallel_size / tp;
  for (const std::string_view linear : TpOverlapFile::kLinears)
    for (const std::string_view pass : TpOverlapFile::kPasses) {
      const TpOverlapFile::Gemm& gemm = TpOverlapFile::gemm(file.linear(linear), pass);
      const std::string where = fmt::format("{}: {}_{}", p.tp_comm_overlap_cfg, linear, pass);
      if (gemm.aggregate && TpOverlapFile::can_aggregate(linear, pass, gemm.method)) {
        if (tp == 2)
          builder.note(where + ".aggregate: 2 ranks have all blocks at once, and nothing overlaps");
        else if (tp % 2 != 0)
          builder.note(fmt::format("{}.aggregate has no effect on {} ranks, which do not pair", where, tp));
      }
      // As linear_route.cpp divides rows into parts.
      if (config.precision.fp8 != Fp8Format::none && gemm.method == TpOverlapFile::Method::pipeline &&
          rows % 16 == 0 && rows < 16 * gemm.splits)
        builder.note(
            fmt::format("{}.num_splits = {}: parts of {} rows are too small for fp8, and this linear "
                        "runs without it; use at most {}",
                        where, gemm.splits, rows, rows / 16));
    }
}

void overlap_of_linears(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (!p.tp_comm_overlap || p.tp_comm_overlap_cfg.empty()) return;
  try {
    TpOverlapFile file = TpOverlapFile::read(p.tp_comm_overlap_cfg);
    for (const std::string& note : file.notes) builder.note(note);
    note_overlap_on_ranks(builder, file);
  } catch (const Error& error) {
    builder.reject("model.tp_comm_overlap_cfg", error.what(), "mend the file, or leave it out");
  }
}

// Replicas beyond stages: the stages of dense layers and of experts are the same ranks only where both have
// as many replicas.
void replicas_of_stages(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  const int64_t dense = p.tensor_model_parallel_size * p.context_parallel_size,
                expert = p.expert_tensor_parallel_size * p.expert_model_parallel_size;
  if (builder.config.dist.use_tp_pp_dp_mapping && p.pipeline_model_parallel_size > 1 && expert > 0 &&
      dense != expert)
    builder.reject("dist.use_tp_pp_dp_mapping",
                   fmt::format("tensor x context size = {} and expert tensor x expert size = {} differ, so "
                               "dense layers and experts would have different stages",
                               dense, expert),
                   "leave it out, or make them equal");
}

constexpr Rule kParallelRules[] = {
    {"world_divides",
     "model.tensor_model_parallel_size model.pipeline_model_parallel_size model.context_parallel_size "
     "run.ranks run.world_size",
     "tensor x pipeline x context size divides the number of ranks", world_divides},
    {"expert_world_divides",
     "model.expert_tensor_parallel_size model.expert_model_parallel_size model.pipeline_model_parallel_size "
     "model.num_moe_experts",
     "expert tensor x expert x pipeline size divides the number of ranks", expert_world_divides},
    {"heads_divide_by_tp", "model.tensor_model_parallel_size model.num_attention_heads",
     "the tensor-parallel size divides the attention heads", heads_divide_by_tp},
    {"query_groups_fit_tp",
     "model.tensor_model_parallel_size model.num_query_groups model.multi_latent_attention "
     "model.attention_output_gate",
     "the tensor-parallel size divides the key heads, or is a multiple of them", query_groups_fit_tp},
    {"ffn_divides_by_tp",
     "model.tensor_model_parallel_size model.ffn_hidden_size model.moe_ffn_hidden_size "
     "model.moe_shared_expert_intermediate_size model.expert_tensor_parallel_size model.num_moe_experts",
     "the tensor-parallel size divides the feed-forward widths", ffn_divides_by_tp},
    {"mamba_divides_by_tp",
     "model.tensor_model_parallel_size model.mamba_num_heads model.mamba_num_groups "
     "model.hybrid_layer_pattern",
     "the tensor-parallel size divides Mamba's heads and groups", mamba_divides_by_tp},
    {"delta_net_divides_by_tp",
     "model.tensor_model_parallel_size model.linear_num_key_heads model.linear_num_value_heads "
     "model.hybrid_layer_pattern model.experimental_attention_variant",
     "the tensor-parallel size divides the key heads of delta nets", delta_net_divides_by_tp},
    {"states_divide_by_cp",
     "model.hybrid_layer_pattern model.experimental_attention_variant model.context_parallel_size "
     "model.tensor_model_parallel_size model.mamba_num_heads model.mamba_num_groups "
     "model.linear_num_key_heads model.linear_num_value_heads",
     "context-parallel ranks share the heads of layers with states", states_divide_by_cp},
    {"sequence_divides",
     "model.seq_length model.context_parallel_size model.tensor_model_parallel_size model.sequence_parallel",
     "sequences divide evenly over context- and sequence-parallel ranks", sequence_divides},
    {"context_communication",
     "model.cp_comm_type model.context_parallel_size model.hierarchical_context_parallel_sizes "
     "model.num_attention_heads model.num_query_groups model.num_layers",
     "the exchange of keys and values suits heads and layers", context_communication},
    {"replicas_of_stages",
     "dist.use_tp_pp_dp_mapping model.pipeline_model_parallel_size model.tensor_model_parallel_size "
     "model.context_parallel_size model.expert_tensor_parallel_size model.expert_model_parallel_size",
     "where replicas come after stages, experts have as many as dense layers", replicas_of_stages},
    {"experts_divide_by_ep", "model.expert_model_parallel_size model.num_moe_experts",
     "the expert-parallel size divides the experts", experts_divide_by_ep},
    {"tp_overlap_needs_sequence_parallel", "model.tp_comm_overlap model.sequence_parallel",
     "tensor-parallel overlap needs sequence parallelism", tp_overlap_needs_sequence_parallel},
    {"overlap_of_linears",
     "model.tp_comm_overlap_cfg model.tensor_model_parallel_size model.context_parallel_size "
     "model.seq_length "
     "train.micro_batch_size model.fp8",
     "the file of overlaps names GEMMs and methods", overlap_of_linears},
};

}  // namespace

std::span<const Rule> parallel_rules() { return kParallelRules; }

}  // namespace megatron
