#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/models/gpt.h"
#include "megatron/models/t5.h"
#include "megatron/models/vision_language.h"
#include "megatron/nn/draft_input.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/pipeline/step_plan.h"

namespace megatron {

// Tokens that go through the model once, forward alone. Every rank gives the same.
struct ForwardPass {
  std::span<const int64_t> tokens;  // [rows, length]
  int64_t rows = 1;
  bool last_only = false;          // logits of each row's last token alone
  const Images* images = nullptr;  // that the tokens speak of, to a model with a vision tower
  LayerObserver on_layer;          // told on the ranks that hold the layer, of the tokens that they hold
  // Of models whose tokens see those after them: how many of each row are real, where not all are; the types
  // of the tokens, 0 where not given; what the decoder of an encoder reads, [rows, its length].
  std::span<const int64_t> lengths = {}, token_types = {}, decoder_tokens = {};
  // Where what the encoder makes of the tokens is kept: a pass that finds it here does not encode them again.
  Tensor* encoded = nullptr;
  // Routers replay these experts of the tokens, [rows · length, layers with experts, k], on the device;
  // undefined: they choose by their logits.
  Tensor routed_experts = {};
};

// How many tokens of a micro-batch a context-parallel rank holds, and of the source that an encoder reads.
struct StageTokens {
  int64_t own = 0, source = 0;
};

// Micro-batches that go through the pipeline: in training, evaluation and inference alike.
struct PipelinePass {
  int microbatches = 1;
  bool forward_only = true;
  bool captured = false;  // by a CUDA graph, not run
  std::function<StageTokens(int microbatch)> tokens;
  // What a chunk of this rank reads of a micro-batch.
  std::function<MicroBatch(RankContext&, int microbatch, const ModelChunk&)> micro_batch;
  // What is made of the last chunk's tensors, on the rank that has it: a loss, logits.
  std::function<Tensor(RankContext&, const StageTensors&, const MicroBatch&)> last;
  LayerObserver on_layer = {};
};

// One rank's part of a model under any layout: its chunks, not yet with memory.
class Model {
 public:
  Model(const Config& config, const ParallelContext& parallel, DType dtype);

  // Its pipeline chunks; the one of an encoder with its decoder is all of it.
  const std::vector<ModelChunk*>& chunks() const { return all_chunks_; }
  GptModel& decoder(int chunk) { return *chunks_.at(static_cast<size_t>(chunk)); }
  const std::vector<std::unique_ptr<GptModel>>& decoders() const { return chunks_; }
  std::vector<Parameter*> parameters();
  const ModelConfig& config() const { return config_; }
  const ModelParallel& parallel() const { return parallel_; }
  DType dtype() const { return dtype_; }
  int stages() const { return shape_.pp; }
  // Whether decode() may be used; otherwise every pass takes the whole sequence.
  bool can_decode() const;
  CacheShapes cache_shapes() const;  // of this rank's layers
  // Refuses tokens that stand for an image, in a text that has none.
  void check_text(std::span<const int64_t> tokens) const;

  Head* head();  // of the chunk that has it; null: another rank's

  // Runs the passes of micro-batches with the other stages. Returns what `last` made of them, in their order,
  // on the rank that has the last chunk.
  std::vector<Tensor> run(RankContext& ctx, const PipelinePass& pass);

  // Logits [rows · length or rows, vocabulary], whole on every rank; of a decoder's tokens where it has an
  // encoder.
  Tensor logits(RankContext& ctx, const ForwardPass& pass);
  // One step of a decoder behind what the cache holds: logits [rows that are wanted, vocabulary], whole on
  // every rank.
  Tensor decode(RankContext& ctx, const StepInput& input, PagedCache& cache);

  // With --moe-enable-routing-replay, the experts that routers chose in the last logits() or decode(), int64
  // [tokens, layers with experts, k], the same on every rank.
  const Tensor& routed_experts() const { return routed_experts_; }

  // How many tokens its MTP layers can guess; 0: it has none, or not beside its head.
  int64_t draft_depths() const;
  CacheShapes draft_shapes(int64_t depth) const;  // of this rank
  // What MTP layers guess behind positions of the last decode(): of each depth, a token for every sequence
  // that wants one; the same on every rank. A depth has a cache of its own.
  std::vector<std::vector<int64_t>> draft(RankContext& ctx, const DraftInput& input,
                                          std::span<const std::unique_ptr<PagedCache>> caches);

 private:
  std::vector<Shape> stage_inputs(int stage, const StageTokens& tokens, bool mtp) const;
  int last_rank() const { return chunk_at(shape_, shape_.pp * shape_.vpp - 1).rank; }
  GptModel* draft_chunk() const;  // null: another rank's
  std::vector<int64_t> likeliest(RankContext& ctx, GptModel& head, const Tensor& hidden);
  void look_at_images(RankContext& ctx, const ForwardPass& pass, MicroBatch& micro) const;

  ModelConfig config_;
  ModelParallel parallel_;
  PipelineShape shape_;
  int mtp_stage_;            // -1: there is none
  int encoder_stages_ = 0;   // that begin with a layer of an encoder
  int64_t elastic_choices_;  // numbers that travel behind hidden states, 0: none
  bool overlap_messages_;
  ProcessGroup stages_;
  StepPlans plans_;
  DType dtype_;
  std::vector<std::unique_ptr<GptModel>> chunks_;  // none where there is an encoder with its decoder
  std::unique_ptr<T5Model> encoder_decoder_;
  std::vector<ModelChunk*> all_chunks_;  // of either
  Tensor routed_experts_;
  Tensor decoded_;  // hidden states of the last decode(), on the last stage
};

}  // namespace megatron
