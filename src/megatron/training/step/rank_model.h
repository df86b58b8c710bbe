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
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// Tokens that go through the model once, forward alone. Every rank gives the same.
struct ForwardPass {
  std::span<const int64_t> tokens;  // [rows, length]
  int64_t rows = 1;
  bool last_only = false;          // logits of each row's last token alone
  KvCache* cache = nullptr;        // one row, which goes on from what the cache has seen
  const Images* images = nullptr;  // that the tokens speak of, to a model with a vision tower
  LayerObserver on_layer;          // told on the ranks that hold the layer, of the tokens that they hold
  // Of models whose tokens see those after them: how many of each row are real, where not all are; the types
  // of the tokens, 0 where not given; what the decoder of an encoder reads, [rows, its length].
  std::span<const int64_t> lengths = {}, token_types = {}, decoder_tokens = {};
  // Where what the encoder makes of the tokens is kept: a pass that finds it here does not encode them again.
  Tensor* encoded = nullptr;
};

// One rank's part of a model under any layout: its chunks, not yet with memory.
class RankModel {
 public:
  // `vision`: of its tower, where it has one.
  RankModel(const Config& config, const ParallelContext& parallel, DType dtype,
            const VisionConfig* vision = nullptr);

  std::vector<std::unique_ptr<GptModel>>& chunks() { return chunks_; }
  std::vector<Parameter*> parameters();
  const ModelConfig& config() const { return config_; }
  const ModelParallel& parallel() const { return parallel_; }
  // Whether a KvCache may be used; without one, every pass takes the whole sequence.
  bool can_cache(Device device) const;

  // What a chunk of the pipeline makes of the ids of a micro-batch (the first chunk) or of what the stage
  // before it gave: hidden states, then those of MTP layers where the micro-batch has tokens for them.
  StageTensors forward(RankContext& ctx, int chunk, const StageTensors& input, const MicroBatch& micro);
  Head* head();  // of the chunk that has it; null: another rank's

  // Logits [rows · length or rows, vocabulary], whole on every rank; of a decoder's tokens where it has an
  // encoder.
  Tensor logits(RankContext& ctx, const ForwardPass& pass);

 private:
  Tensor encoder_decoder_logits(RankContext& ctx, const ForwardPass& pass);
  Tensor run_stages(RankContext& ctx, const Tensor& tokens, const SeqInfo& seq, const ForwardPass& pass);
  Tensor run_chunk(RankContext& ctx, GptModel& chunk, const Tensor& input, bool first, const SeqInfo& seq,
                   const ForwardPass& pass);
  void look_at_images(RankContext& ctx, const ForwardPass& pass, SeqInfo& seq) const;

  ModelConfig config_;
  ModelParallel parallel_;
  PipelineShape shape_;
  ProcessGroup stages_;
  DType dtype_;
  std::vector<std::unique_ptr<GptModel>> chunks_;  // none where there is an encoder with its decoder
  std::unique_ptr<T5Model> encoder_decoder_;
  std::optional<VisionConfig> vision_;
  std::unique_ptr<VisionTower> tower_;  // on the first stage
};

}  // namespace megatron
