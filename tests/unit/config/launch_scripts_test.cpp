#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/config/resolve/resolve.h"

// What launch scripts of Megatron-LM say in other words, beside something else, or of a model that has no use
// for it.
namespace megatron {
namespace {

Resolved run_of(std::vector<std::string> words, int64_t ranks = 8) {
  const std::vector<std::string> sizes = {"--hidden-size",
                                          "64",
                                          "--num-attention-heads",
                                          "8",
                                          "--seq-length",
                                          "64",
                                          "--micro-batch-size",
                                          "1",
                                          "--train-iters",
                                          "3",
                                          "--lr",
                                          "1e-3",
                                          "--vocab-size",
                                          "100",
                                          "--mock-data",
                                          "--tokenizer-type",
                                          "NullTokenizer",
                                          "--mamba-num-groups",
                                          "2",
                                          "--global-batch-size",
                                          "32",
                                          "--ranks"};
  words.insert(words.begin(), sizes.begin(), sizes.end());
  words.insert(words.begin() + static_cast<std::ptrdiff_t>(sizes.size()), std::to_string(ranks));
  words.insert(words.end(), {"--device", "cpu"});
  return resolve(read_sources(parse_command_line(words)));
}

bool notes_hold(const Resolved& resolved, std::string_view text) {
  return std::ranges::any_of(resolved.notes,
                             [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

std::string refusal(std::vector<std::string> words) {
  try {
    run_of(std::move(words));
  } catch (const Refused& refused) {
    return refused.problems()[0].text();
  }
  return "";
}

TEST(LaunchScripts, AHybridPatternSaysWhatThereIs) {
  const Resolved resolved = run_of({"--hybrid-layer-pattern", "M-*-/*-", "--num-layers", "8",
                                    "--mtp-num-layers", "2", "--position-embedding-type", "none"});
  EXPECT_EQ(resolved.config.model.num_layers, 4);
  EXPECT_EQ(resolved.config.model.mtp_num_layers, 1);
  EXPECT_TRUE(notes_hold(resolved, "model.num_layers is 4"));
  const Config old = run_of({"--hybrid-layer-pattern", "M-*-", "--mtp-num-layers", "2",
                             "--mtp-hybrid-override-pattern", "*-", "--position-embedding-type", "none"})
                         .config;
  EXPECT_EQ(old.model.hybrid_layer_pattern, "M-*-/*-/*-");
  EXPECT_EQ(old.model.mtp_num_layers, 2);
  EXPECT_TRUE(run_of({"--hybrid-layer-pattern", "M-+-"}).config.model.multi_latent_attention);
  EXPECT_FALSE(run_of({"--hybrid-layer-pattern", "M-*-", "--multi-latent-attention"})
                   .config.model.multi_latent_attention);
}

TEST(LaunchScripts, CutsOfAHybridPatternAreStages) {
  const auto layout = [](const char* pattern, const char* stages) {
    const ParallelConfig parallel =
        run_of({"--hybrid-layer-pattern", pattern, "--pipeline-model-parallel-size", stages,
                "--position-embedding-type", "none"})
            .config.parallel;
    return fmt::format("{} {}", parallel.pipeline_model_parallel_layout,
                       parallel.virtual_pipeline_model_parallel_size);
  };
  EXPECT_EQ(layout("M-|M-M*|-|M", "2"), "Ett|tttt|t|tL 2");
  EXPECT_EQ(layout("M-|M-M*-/*-", "2"), "Ett|tttttmL 1");
  EXPECT_EQ(layout("M-M*-M", "4"), "Ett|tt|t|tL 1");
  EXPECT_EQ(layout("M-M*", "2"), " 1");
  EXPECT_EQ(layout("M-|M*", "1"), " 1");
  EXPECT_NE(refusal({"--hybrid-layer-pattern", "M-|M*|-", "--pipeline-model-parallel-size", "2"}), "");
}

TEST(LaunchScripts, RecomputeOfWhatIsThere) {
  const std::vector<std::string> experts = {"--num-layers", "2", "--num-experts", "4",
                                            "--moe-layer-recompute"};
  const auto modules = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return run_of(words).config.execution.recompute_modules;
  };
  using Modules = std::vector<std::string>;
  EXPECT_EQ(modules(experts, {}), (Modules{"core_attn", "moe"}));
  EXPECT_EQ(modules(experts, {"--recompute-granularity", "selective", "--recompute-modules", "layernorm"}),
            (Modules{"layernorm", "moe"}));
  EXPECT_EQ(modules(experts, {"--recompute-granularity", "full", "--recompute-method", "uniform"}),
            Modules{});
  const std::vector<std::string> dense = {"--num-layers", "2", "--recompute-granularity", "selective",
                                          "--recompute-modules"};
  EXPECT_EQ(modules(dense, {"moe", "core_attn"}), (Modules{"core_attn"}));
  const Resolved none = run_of(
      {"--num-layers", "2", "--recompute-granularity", "selective", "--recompute-modules", "shared_experts"});
  EXPECT_EQ(none.config.execution.recompute_granularity, RecomputeGranularity::none);
  EXPECT_TRUE(notes_hold(none, "the model has no shared experts"));
}

TEST(LaunchScripts, PositionsAreTakenAwayOnce) {
  const auto type = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--num-layers", "2", "--no-position-embedding"});
    return run_of(words).config.model.position_embedding_type;
  };
  EXPECT_EQ(type({}), PositionEmbedding::none);
  EXPECT_EQ(type({"--position-embedding-type", "rope"}), PositionEmbedding::rope);
  EXPECT_EQ(type({"--use-rotary-position-embeddings"}), PositionEmbedding::rope);
  EXPECT_NE(refusal({"--num-layers", "2", "--no-position-embedding", "--position-embedding-type",
                     "learned_absolute"})
                .find("learned_absolute"),
            std::string::npos);
}

TEST(LaunchScripts, OtherNamesOfTheSame) {
  const Config fsdp = run_of({"--num-layers", "2", "--use-torch-fsdp2"}).config;
  EXPECT_TRUE(fsdp.ddp.use_megatron_fsdp);
  EXPECT_EQ(fsdp.ddp.data_parallel_sharding_strategy, ShardingStrategy::optim_grads_params);
  EXPECT_EQ(run_of({"--num-layers", "2", "--torch-fsdp2-no-reshard-after-forward", "--use-torch-fsdp2"})
                .config.ddp.data_parallel_sharding_strategy,
            ShardingStrategy::optim_grads);
  EXPECT_TRUE(run_of({"--num-layers", "2", "--no-weight-decay-cond-type", "apply_wd_to_qk_layernorm"})
                  .config.optimizer.apply_wd_to_qk_layernorm);
  const Config shards = run_of({"--num-layers", "2", "--tensor-model-parallel-size", "2",
                                "--tensor-parallel-num-weight-shards", "4"})
                            .config;
  EXPECT_TRUE(shards.ddp.use_megatron_fsdp);
  EXPECT_EQ(shards.parallel.tensor_parallel_num_weight_shards, 2);
  EXPECT_EQ(run_of({"--num-layers", "2", "--num-experts", "4", "--fine-grained-activation-offloading",
                    "--offload-modules", "fused_group_mlp"})
                .config.execution.offload_modules,
            (std::vector<std::string>{"expert_fc1", "moe_act"}));
}

TEST(LaunchScripts, Fp4IsFp8InBlocks) {
  const Resolved resolved = run_of(
      {"--num-layers", "2", "--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4", "--fp4-param-gather"});
  EXPECT_EQ(resolved.config.precision.fp8, Fp8Format::e4m3);
  EXPECT_EQ(resolved.config.precision.fp8_recipe, Fp8Recipe::blockwise);
  EXPECT_TRUE(notes_hold(resolved, "fp4 e2m1"));
  EXPECT_NE(refusal({"--num-layers", "2", "--bf16", "--fp4-format", "e2m1", "--fp8-format", "hybrid"}), "");
}

TEST(LaunchScripts, LengthsOfARunThatWasMadeShorter) {
  EXPECT_TRUE(notes_hold(run_of({"--num-layers", "2", "--lr-decay-style", "WSD", "--lr-wsd-decay-iters",
                                 "500", "--lr-decay-iters", "3"}),
                         "longer than the whole decay"));
  EXPECT_TRUE(
      notes_hold(run_of({"--num-layers", "2", "--bf16", "--fp8-format", "hybrid", "--fp8-recipe",
                         "tensorwise", "--first-last-layers-bf16", "--num-layers-at-end-in-bf16", "14"}),
                 "none is in fp8"));
  EXPECT_TRUE(
      notes_hold(run_of({"--num-layers", "2", "--window-attn-skip-freq", "([1,0]*12)"}), "--window-size"));
}

TEST(LaunchScripts, ATowerIsNoEncoderOfT5) {
  const ModelConfig model = run_of({"--encoder-num-layers", "3", "--decoder-num-layers", "2", "--img-h", "28",
                                    "--img-w", "28", "--patch-dim", "14", "--decoder-seq-length", "96",
                                    "--tokenizer-type", "NullMultimodalTokenizer", "--use-packed-sequence"})
                                .config.model;
  EXPECT_EQ(model.model_type, ModelType::gpt);
  EXPECT_EQ(model.num_layers, 2);
  EXPECT_EQ(model.vision_num_layers, 3);
}

TEST(LaunchScripts, NormedScoresAreNotClipped) {
  EXPECT_NE(refusal({"--num-layers", "2", "--qk-clip", "--qk-layernorm"}).find("normed"), std::string::npos);
  EXPECT_EQ(refusal({"--num-layers", "2", "--qk-clip"}), "");
}

}  // namespace
}  // namespace megatron
