#pragma once

#include <memory>

#include "megatron/bridge/family.h"
#include "megatron/bridge/hf_weights.h"
#include "megatron/nn/parameter.h"
#include "megatron/nn/shard_plan.h"

namespace megatron {

// A Hugging Face model on the disk as one of ours: its configuration, and its weights by mapping the files,
// so that every rank reads just its slices. Opening it checks all of it: a ConfigError lists the tensors that
// are missing, too many or misshapen.
class AutoBridge {
 public:
  explicit AutoBridge(const std::string& directory);
  AutoBridge(const AutoBridge&) = delete;

  const std::string& directory() const { return weights_.files().path(); }
  const HfConfig& hf_config() const { return config_; }
  // Layout and precision are the caller's to choose.
  const ModelConfig& model_config() const { return model_.model; }
  const VisionConfig* vision_config() const { return model_.vision ? &*model_.vision : nullptr; }
  const HfWeights& weights() const { return weights_; }
  // Tensors that the files hold and the model does not use: buffers, copies, heads of other tasks.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // What a user should know and no error tells: keys of config.json that are unknown here, tensors left out.
  std::vector<std::string> notes() const;

  // Where the elements of one of our tensors are in the files.
  std::vector<HfPart> parts(std::string_view name, const Shape& global_shape) const;

  // Fills what a rank (or a buffer) holds of one of our tensors, converted to its dtype.
  void read(RankContext& ctx, std::string_view name, const ShardSpec& shard, const Tensor& target) const;
  // Fills the parameters of one rank, under any layout.
  void load(RankContext& ctx, std::span<Parameter* const> parameters) const;

 private:
  void check();
  bool same_as_embedding(std::string_view head) const;
  void copy_part(RankContext& ctx, const HfPart& part, const Box& source, const Tensor& target) const;

  HfConfig config_;
  HfWeights weights_;
  FamilyModel model_;
  std::vector<std::string> left_out_;
};

}  // namespace megatron
