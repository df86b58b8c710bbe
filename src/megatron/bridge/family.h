#pragma once

#include <functional>

#include "megatron/bridge/hf_config.h"
#include "megatron/bridge/weight_rules.h"
#include "megatron/models/vision_config.h"

namespace megatron {

// What a family looks at: the configuration and, where weights are there, which tensors the files hold.
struct HfSource {
  const HfConfig& config;
  std::function<bool(std::string_view name)> holds;  // empty: configuration alone

  // Whether the model has such a tensor: the files decide, without them the flag.
  bool has_tensor(std::string_view name, bool otherwise) const { return holds ? holds(name) : otherwise; }
};

// A kind of Hugging Face model: how its configuration and its weights become ours.
struct Family {
  std::vector<std::string_view> architectures;
  ModelConfig (*configure)(const HfSource& source);
  std::vector<WeightRule> rules;
  VisionConfig (*configure_vision)(const HfSource& source) = nullptr;  // of those with a vision tower
  std::vector<std::string_view> unused = {};  // how names begin of tensors that files may hold for nothing
  std::vector<Spelling> spellings = {};       // of files that other tools wrote
};

// A model as a family reads it.
struct FamilyModel {
  const Family& family;
  TensorNames files;
  ModelConfig model;
  std::optional<VisionConfig> vision;
  std::vector<std::string> unknown_keys;  // of config.json: nobody here knows whether they change the model

  // A ConfigError where the configuration makes no sense.
  FamilyModel(const Family& family, const HfSource& source);
  // Where the elements of one of our tensors are in the files; nowhere where no rule says.
  std::vector<HfPart> parts(std::string_view name, const Shape& global_shape) const;

 private:
  ModelConfig sizes_of(std::string_view name) const;  // whose heads the tensor has
};

// Whether an architecture is a model without a head (LlamaModel): its embedding is the head, or it has none.
bool is_base_model(std::string_view architecture);

// A ConfigError with what there is, where no family has the architecture. A base model is of the family of
// the model that has a head.
const Family& find_family(std::string_view architecture);
std::vector<std::string_view> supported_architectures();  // sorted

}  // namespace megatron
