#pragma once

#include <gtest/gtest.h>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/models/gpt.h"
#include "megatron/parallel/parallel_context.h"
#include "support/golden.h"

namespace megatron::testing {

// A golden decoder, whole on one rank: what Hugging Face's files say, and its logits.
class HfCase : public ::testing::TestWithParam<const char*> {
 protected:
  HfCase() { alone_.world().attach(ctx_); }
  std::string path(const std::string& file) const {
    return golden_path("hf_models", std::string(GetParam()) + "/" + file);
  }

  std::unique_ptr<GptModel> whole_model() {
    const ModelConfig& config = bridge_.model_config();
    auto model =
        std::make_unique<GptModel>(config, ModelSlice{0, config.num_layers}, ModelParallel{}, DType::F32);
    for (Parameter* parameter : model->parameters()) {
      parameter->allocate(ctx_, DType::F32);
      parameter->allocate_gradient(ctx_);
    }
    bridge_.load(ctx_, model->parameters());
    return model;
  }

  // What the last layer makes of in.input_ids.
  Tensor hidden_states(GptModel& model) {
    const Tensor ids = io_.tensor("in.input_ids");
    MicroBatch micro{.ids = to_device(ctx_, ids).view({ids.numel()})};
    micro.seq = model.sequences(ctx_, ids.size(0), ids.size(1));
    return model.run_stage(ctx_, {}, micro)[0];
  }

  RankContext ctx_{test_device()};
  ParallelContext alone_;
  AutoBridge bridge_{path("model")};
  SafetensorsFile io_{path("io.safetensors")};
};

}  // namespace megatron::testing
