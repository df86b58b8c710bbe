#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/models/vision_config.h"
#include "megatron/nn/parameter.h"

namespace megatron {

class AutoBridge;

// Where a model's weights lie: a Hugging Face directory, or a checkpoint of ours.
class ModelSource {
 public:
  static ModelSource hugging_face(const std::string& directory);
  static ModelSource checkpoint(const std::string& path);  // or what --save was given: its latest
  static ModelSource open(const std::string& path);        // whichever of the two it is

  const std::string& path() const { return path_; }
  std::vector<std::string> notes() const;  // what a user should know of its files, a sentence each
  // The fields of `model` that say what it is; layout and precision are the caller's to choose.
  Json model_settings() const;
  // Of its vision tower, where it has one.
  const VisionConfig* vision() const { return vision_ ? &*vision_ : nullptr; }
  // The tokens that end a text, by generation_config.json or config.json; none where neither says.
  std::vector<int64_t> end_tokens() const;
  double repetition_penalty() const;  // by generation_config.json; 1 where it says nothing
  // The folder of the tokenizer that came with the model; "" where there is none.
  std::string tokenizer_folder() const;
  // What the decoder of an encoder starts from, by the same files; 0 where neither says.
  int64_t start_token() const;
  // Gives one rank's parameters memory and fills it, under any layout.
  void load(RankContext& ctx, std::span<Parameter* const> parameters, DType dtype) const;

 private:
  std::string described_in() const;       // the folder of those files, with a slash
  Json described(const char* key) const;  // by generation_config.json or config.json; null where neither does

  std::string path_;
  std::shared_ptr<const AutoBridge> bridge_;  // null: a checkpoint
  std::optional<VisionConfig> vision_;
};

}  // namespace megatron
