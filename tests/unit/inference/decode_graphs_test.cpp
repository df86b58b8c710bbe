// Steps of one token a sequence: filled up by padding they give the same, on any device, and as CUDA graphs.
#include "megatron/inference/decode_graphs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/models/persistent_decode.h"
#include "support/to_doubles.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::Answer;
using testing::small_config;
using testing::SmallModel;
using testing::to_doubles;

void with_model(Device device, const Config& config, DType dtype,
                const std::function<void(RankContext&, const ProcessGroup&, Model&)>& use) {
  run_ranks(1, [&](int, const ProcessGroup& world) {
    RankContext ctx(device);
    Model model(config, ParallelContext::from_sizes(world, parallel_sizes(config, 1)), dtype);
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, parameter->keep_fp32 ? accumulation_dtype(dtype) : dtype);
      parameter->initialize(ctx, 7);
    }
    use(ctx, world, model);
  });
}

StepInput step_of(const std::vector<std::vector<int64_t>>& texts, bool whole) {
  StepInput input;
  for (size_t i = 0; i < texts.size(); ++i) {
    StepInput::Sequence& s = input.sequences.emplace_back();
    const auto read = texts[i].end() - 1;
    s.tokens = whole ? std::vector(texts[i].begin(), read) : std::vector{*read};
    s.first = whole ? 0 : std::ssize(texts[i]) - 1;
    s.logits = 1;
    s.prompt = std::ssize(texts[i]);
    for (int64_t at = 0; at <= std::ssize(texts[i]) / 4; ++at)
      s.blocks.push_back(static_cast<int64_t>(i) + 3 * at);
  }
  return input;
}

class PaddedStep : public ::testing::TestWithParam<const SmallModel*> {};

// Three sequences with room for eight, and for more blocks than they have: the same bits.
TEST_P(PaddedStep, PaddingChangesNothing) {
  with_model(kCpu, small_config(*GetParam()), DType::F32,
             [](RankContext& ctx, const ProcessGroup&, Model& model) {
               ctx.batch_invariant = true;
               ASSERT_TRUE(can_capture_decode(model));
               constexpr int64_t blocks = 12, block_size = 4;
               PagedCache cache(ctx, model.cache_shapes(), DType::F32, blocks + 1, block_size, 1);
               const std::vector<std::vector<int64_t>> texts = {
                   {3, 1, 4, 1, 5, 9}, {2, 7}, {1, 8, 2, 8, 1, 8, 2, 8, 4}};
               model.decode(ctx, step_of(texts, true), cache);
               const StepInput input = step_of(texts, false);
               const auto expected = ctx.to_vector<float>(model.decode(ctx, input, cache));
               const StepFrequencies frequencies = step_frequencies(ctx, model.config(), DType::F32);
               SequenceBatch batch(ctx, 8, 8, block_size);
               for (int again = 0; again < 2; ++again) {
                 batch.refill(ctx, input, blocks);
                 const auto padded = ctx.to_vector<float>(decode_step(ctx, model, batch, cache, frequencies));
                 ASSERT_EQ(padded.size(), 8 * expected.size() / 3);
                 EXPECT_TRUE(std::equal(expected.begin(), expected.end(), padded.begin()));
               }
             });
}

INSTANTIATE_TEST_SUITE_P(Kinds, PaddedStep,
                         ::testing::Values(&testing::kDense, &testing::kWindow, &testing::kLatent,
                                           &testing::kExperts),
                         [](const auto& info) {
                           std::string name = info.param->name;
                           std::erase(name, ' ');
                           return name;
                         });

TEST(DecodeStep, RoomIsRoundedUp) {
  const auto padded = DecodeGraphs::padded;
  EXPECT_EQ(padded(1), 1);
  EXPECT_EQ(padded(3), 4);
  EXPECT_EQ(padded(8), 8);
  EXPECT_EQ(padded(9), 16);
  EXPECT_EQ(padded(17), 32);
  EXPECT_EQ(padded(64), 64);
  EXPECT_EQ(padded(65), 96);
}

TEST(DecodeStep, OthersAreRefused) {
  const SmallModel capacity{"experts with a capacity", [](ModelConfig& model) {
                              testing::kExperts.change(model);
                              model.moe_expert_capacity_factor = 1;
                            }};
  for (const SmallModel* kind : {&testing::kHybrid, &capacity, &testing::kLengths, &testing::kMtp})
    with_model(kCpu, small_config(*kind), DType::F32, [&](RankContext&, const ProcessGroup&, Model& model) {
      EXPECT_FALSE(can_capture_decode(model)) << kind->name;
    });
  RankContext ctx;
  SequenceBatch batch(ctx, 2, 1, 4);
  EXPECT_THROW(batch.refill(ctx, step_of({{1}, {2}, {3}}, false), 9), Error) << "three sequences";
  EXPECT_THROW(batch.refill(ctx, step_of({{1, 2, 3, 4, 5}}, false), 9), Error) << "two blocks";
  EXPECT_THROW(batch.refill(ctx, step_of({{1, 2, 3}}, true), 9), Error) << "two tokens";
}

class DecodeGraphsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: NOTHING was tested";
  }

  struct Run {
    std::vector<Answer> answers;
    EngineStats stats;
  };
  static Run run(const Config& config, DType dtype, const std::vector<Request>& requests, bool graphs,
                 bool forgets = false) {
    Run result;
    result.answers.resize(requests.size());
    with_model(Device{DeviceType::Cuda, 0}, config, dtype,
               [&](RankContext& ctx, const ProcessGroup& world, Model& model) {
                 EngineOptions options{.block_size = 4};
                 options.cuda_graphs = graphs;
                 Engine engine(ctx, world, model, options);
                 for (size_t i = 0; i < requests.size(); ++i)
                   engine.submit(requests[i], result.answers[i].listener());
                 for (int step = 0; engine.step(); ++step) {
                   result.stats = engine.stats();
                   if (forgets && step == 6) engine.weights_changed();
                 }
               });
    return result;
  }
  static std::vector<Request> alike(int count) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
      Request& request = requests.emplace_back();
      for (int64_t at = 0; at < 9; ++at) request.prompt.push_back((at * at + 5 * i) % 50);
      request.max_tokens = 30;
      if (i % 2) request.sampling = {.temperature = 1, .top_k = 8, .seed = static_cast<uint64_t>(i)};
    }
    return requests;
  }
};

// As many sequences as a graph has room for run the same kernels: the same tokens and log-probabilities.
TEST_F(DecodeGraphsOnGpu, GraphsGiveTheSameBits) {
  for (const SmallModel* kind : {&testing::kDense, &testing::kWindow, &testing::kLatent, &testing::kExperts})
    for (DType dtype : {DType::F32, DType::BF16})
      for (int count : {1, 2, 4, 8})
        for (int logprobs : {-1, 2}) {
          SCOPED_TRACE(fmt::format("{} {} {}", kind->name, name_of(dtype), count));
          std::vector<Request> requests = alike(count);
          for (Request& request : requests) request.top_logprobs = logprobs;
          const Run plain = run(small_config(*kind), dtype, requests, false),
                    captured = run(small_config(*kind), dtype, requests, true);
          EXPECT_EQ(plain.stats.cuda_graphs, 0);
          EXPECT_GT(captured.stats.cuda_graphs, 0);
          EXPECT_GT(captured.stats.graph_bytes, 0);
          EXPECT_EQ(captured.stats.graph_fault, "");
          for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_EQ(captured.answers[i].ids, plain.answers[i].ids) << "request " << i;
            EXPECT_EQ(captured.answers[i].logprobs, plain.answers[i].logprobs) << "request " << i;
            EXPECT_EQ(captured.answers[i].finish, FinishReason::length);
          }
        }
}

// Requests that come and go: padding, other numbers of blocks, prompts in between. In fp64, so that GEMMs of
// other shapes lead to the same tokens.
TEST_F(DecodeGraphsOnGpu, MixedRequestsGetTheSameTokens) {
  for (const SmallModel* kind :
       {&testing::kDense, &testing::kWindow, &testing::kLatent, &testing::kExperts}) {
    std::vector<Request> requests = testing::mixed_requests(11);
    for (size_t i = 0; i < requests.size(); ++i)
      if (i % 3) requests[i].top_logprobs = -1;
    const Run plain = run(small_config(*kind), DType::F64, requests, false),
              captured = run(small_config(*kind), DType::F64, requests, true),
              again = run(small_config(*kind), DType::F64, requests, true, true);
    EXPECT_GT(captured.stats.cuda_graphs, 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(captured.answers[i].ids, plain.answers[i].ids) << kind->name << " request " << i;
      EXPECT_EQ(again.answers[i].ids, plain.answers[i].ids) << kind->name << " request " << i;
    }
  }
}

// As on the CPU, where nothing is captured and the host looks for the largest logit.
TEST_F(DecodeGraphsOnGpu, TheTokensAreThoseOfTheCpu) {
  const std::vector<Request> requests = alike(5);
  const Run captured = run(small_config(testing::kDense), DType::F64, requests, true);
  const auto expected =
      testing::answers(small_config(testing::kDense), DType::F64, {.block_size = 4}, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(captured.answers[i].ids, expected[i].ids);
}

const SmallModel kLlama{"Llama", [](ModelConfig& model) {
                          model.hidden_size = 128;
                          model.kv_channels = 64;
                          model.ffn_hidden_size = 160;
                          model.init_method_std = 0.1;
                          model.normalization = Normalization::rms_norm;
                          model.gated_linear_unit = true;
                          model.activation_func = Activation::silu;
                          model.add_bias_linear = false;
                          model.share_embeddings_and_output_weights = false;
                        }};

// Three sequences of which decode() has read all but the last token: `use` gets a step of those.
void with_step(const SmallModel& kind,
               const std::function<void(RankContext&, Model&, const SeqInfo&, const Tensor&)>& use) {
  with_model(Device{DeviceType::Cuda, 0}, small_config(kind), DType::BF16,
             [&](RankContext& ctx, const ProcessGroup&, Model& model) {
               NoGrad no_grad(ctx);
               constexpr int64_t blocks = 12, block_size = 4;
               PagedCache cache(ctx, model.cache_shapes(), DType::BF16, blocks + 1, block_size, 1);
               const std::vector<std::vector<int64_t>> texts = {
                   {3, 1, 4, 1, 5, 9}, {2, 7}, {1, 8, 2, 8, 1, 8, 2, 8, 4}};
               model.decode(ctx, step_of(texts, true), cache);
               const StepInput input = step_of(texts, false);
               const Tensor expected = model.decode(ctx, input, cache);
               SequenceBatch batch(ctx, 4, 4, block_size);
               batch.refill(ctx, input, blocks);
               SeqInfo seq = model_sequences(ctx, batch, model.config(), DType::BF16);
               seq.cache = &cache;
               use(ctx, model, seq, expected);
             });
}

// All layers by one kernel, beside a kernel for each part of them.
TEST_F(DecodeGraphsOnGpu, OneKernelForAllLayers) {
  const SmallModel tied{"tied", [](ModelConfig& model) {
                          kLlama.change(model);
                          model.share_embeddings_and_output_weights = true;
                          model.layernorm_zero_centered_gamma = true;
                          model.rotary_interleaved = true;
                          model.rotary_percent = 0.5;
                        }};
  for (const SmallModel* kind : {&kLlama, &tied})
    with_step(*kind, [&](RankContext& ctx, Model& model, const SeqInfo& seq, const Tensor& expected) {
      const Tensor logits = decode_persistently(ctx, model, seq.sequences->ids, seq);
      ASSERT_TRUE(logits.defined()) << kind->name;
      const std::vector<double> by_one = to_doubles(ctx, logits.slice(0, 0, 3).slice(1, 0, expected.size(1))),
                                by_parts = to_doubles(ctx, expected);
      double square = 0, error = 0;
      for (size_t i = 0; i < by_parts.size(); ++i) {
        square += by_parts[i] * by_parts[i];
        error += (by_one[i] - by_parts[i]) * (by_one[i] - by_parts[i]);
      }
      EXPECT_LE(std::sqrt(error / square), 0.02) << kind->name;
    });
}

// Whatever the kernel does not know, and rows that must not depend on each other.
TEST_F(DecodeGraphsOnGpu, OneKernelLeavesOtherModelsAlone) {
  const std::function<void(ModelConfig&)> others[] = {
      [](ModelConfig& model) { model.add_qkv_bias = true; },
      [](ModelConfig& model) { model.qk_layernorm = true; },
      [](ModelConfig& model) { model.qk_l2_norm = true; },
      [](ModelConfig& model) {
        model.window_size = {5, 0};
      },
      [](ModelConfig& model) { model.softmax_type = SoftmaxType::off_by_one; },
      [](ModelConfig& model) { model.attn_logit_softcapping = 20; },
      [](ModelConfig& model) { model.final_logit_softcapping = 20; },
      [](ModelConfig& model) { model.output_multiplier = 0.5; },
      [](ModelConfig& model) { model.embedding_multiplier = 2; },
      [](ModelConfig& model) { model.attention_output_gate = true; },
      [](ModelConfig& model) { model.parallel_residual = true; },
      [](ModelConfig& model) { model.post_mlp_layernorm = true; },
      [](ModelConfig& model) { model.fp32_residual_connection = true; },
      [](ModelConfig& model) { model.normalization = Normalization::layer_norm; },
      [](ModelConfig& model) { model.activation_func = Activation::gelu; },
      [](ModelConfig& model) { model.glu_linear_offset = 1; },
      [](ModelConfig& model) { model.activation_func_clamp_value = 7; },
      [](ModelConfig& model) { model.query_scaling_beta = 0.1; },
      [](ModelConfig& model) { model.use_mup = true; },
      [](ModelConfig& model) { model.position_embedding_type = PositionEmbedding::none; },
      [](ModelConfig& model) { model.no_rope_freq = 2; },
      testing::kExperts.change,
  };
  for (size_t i = 0; i < std::size(others); ++i)
    with_step({"other", [&](ModelConfig& model) { kLlama.change(model), others[i](model); }},
              [&](RankContext& ctx, Model& model, const SeqInfo& seq, const Tensor&) {
                EXPECT_FALSE(decode_persistently(ctx, model, seq.sequences->ids, seq)) << i;
              });
  with_step(kLlama, [](RankContext& ctx, Model& model, const SeqInfo& seq, const Tensor&) {
    ctx.batch_invariant = true;
    EXPECT_FALSE(decode_persistently(ctx, model, seq.sequences->ids, seq));
  });
}

TEST_F(DecodeGraphsOnGpu, StatesAreNotCaptured) {
  const Run run_with = run(small_config(testing::kHybrid), DType::F32, alike(3), true);
  EXPECT_EQ(run_with.stats.cuda_graphs, 0);
  EXPECT_EQ(run_with.answers[0].ids.size(), 30U);
}

}  // namespace
}  // namespace megatron
