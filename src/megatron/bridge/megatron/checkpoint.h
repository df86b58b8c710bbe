#pragma once

#include <memory>
#include <optional>

#include "megatron/bridge/megatron/tensors.h"
#include "megatron/checkpoint/tensor_source.h"
#include "megatron/config/schema/model_config.h"

namespace megatron {

// A checkpoint that Megatron-LM wrote, as one of ours: whole tensors under our names, and what its run needs
// to go on. Opening it reads no tensors.
struct MegatronCheckpoint {
  std::string path;
  std::vector<MegatronTensor>
      tensors;  // sorted; the optimizer's as optimizer.{master,exp_avg,exp_avg_sq}.<name>
  TrainingState state;
  std::optional<ModelConfig> model;  // none where the checkpoint keeps no arguments
  std::vector<std::string> notes;    // what is left out, and what else its reader should know
  std::shared_ptr<const void> files;

  const MegatronTensor* find(std::string_view name) const;
};

// A checkpoint of either format (torch_dist, torch), or a root whose tracker file names one. A ConfigError
// lists what does not fit together.
MegatronCheckpoint open_megatron(const std::string& path);

// Its tensors, to be read by ranks of any layout.
TensorSource megatron_source(std::shared_ptr<const MegatronCheckpoint> checkpoint);

// The readers, one for each format.
MegatronCheckpoint open_torch_dist(const std::string& directory);
MegatronCheckpoint open_torch_legacy(const std::string& directory);

}  // namespace megatron
