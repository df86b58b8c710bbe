#include "megatron/cli/common/check_layout.h"

#include "megatron/config/resolve/resolve.h"

namespace megatron {

void check_layout(const Config& config, int64_t data_parallel) {
  const ModelConfig& model = config.model;
  const int64_t tp = config.parallel.tensor_model_parallel_size,
                pp = config.parallel.pipeline_model_parallel_size;
  Sources sources;
  for (auto [key, value] : {std::pair{"model.num_layers", model.num_layers},
                            {"model.hidden_size", model.hidden_size},
                            {"model.num_attention_heads", model.num_attention_heads},
                            {"model.num_query_groups", model.num_query_groups},
                            {"model.ffn_hidden_size", model.ffn_hidden_size},
                            {"model.vocab_size", model.vocab_size},
                            {"model.seq_length", model.seq_length},
                            {"model.max_position_embeddings", model.max_position_embeddings},
                            {"train.micro_batch_size", config.train.micro_batch_size},
                            {"train.global_batch_size", config.train.global_batch_size},
                            {"run.ranks", tp * pp * data_parallel}})
    sources.overrides.push_back(fmt::format("{}={}", key, value));
  sources.flags = {{"--tensor-model-parallel-size", {std::to_string(tp)}},
                   {"--pipeline-model-parallel-size", {std::to_string(pp)}}};
  const PrecisionConfig& precision = config.precision;
  if (precision.fp8 != Fp8Format::none)
    for (auto [key, value] : {std::pair{"model.bf16", "true"},
                              {"model.fp8", name_of(precision.fp8)},
                              {"model.fp8_recipe", name_of(precision.fp8_recipe)}})
      sources.overrides.push_back(fmt::format("{}={}", key, value));
  if (const auto& modules = config.execution.recompute_modules; !modules.empty()) {
    sources.flags.push_back({"--recompute-granularity", {"selective"}});
    sources.flags.push_back({"--recompute-modules", modules});
  }
  if (config.execution.cuda_graph_impl != GraphImpl::none)
    sources.flags.push_back({"--cuda-graph-impl", {name_of(config.execution.cuda_graph_impl)}});
  if (config.parallel.sequence_parallel) sources.flags.push_back({"--sequence-parallel", {}});
  resolve(sources, {.purpose = Purpose::inspect});
}

}  // namespace megatron
