#pragma once

#include <string>

namespace megatron {

enum class CheckpointKind {
  none,          // nothing there is a checkpoint
  megatron,      // our own: index.json and safetensors
  torch_dist,    // Megatron-LM's: .metadata and *.distcp
  torch,         // Megatron-LM's legacy form: mp_rank_XX/model_optim_rng.pt
  hugging_face,  // config.json and safetensors
};

struct FoundCheckpoint {
  CheckpointKind kind = CheckpointKind::none;
  std::string path;  // of the checkpoint itself, where a root was named
};

// What a path holds, by its contents: a checkpoint, or a root whose tracker file names one. A root of our own
// gives its latest.
FoundCheckpoint recognise_checkpoint(const std::string& path);

// "Megatron-LM torch_dist", for messages.
const char* name_of(CheckpointKind kind);

}  // namespace megatron
