#pragma once

#include <map>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/safetensors_directory.h"

namespace megatron {

// The names of the files of a Hugging Face directory that describe the model, sorted: all but its weights.
std::vector<std::string> described_by(const std::string& directory);

// What a checkpoint keeps of the Hugging Face directory that it came from: the files beside the weights,
// under hf/, and in hf/tensors.json which file held which tensor.
std::vector<CheckpointAsset> source_files(const std::string& directory, const SafetensorsDirectory& weights);

// What a checkpoint keeps, in the same place, of a Hugging Face tokenizer: a folder, or its tokenizer.json.
std::vector<CheckpointAsset> tokenizer_files(const std::string& path);

// Whether such a file belongs to the tokenizer: its vocabulary, merges, special tokens, chat templates.
bool is_tokenizer_file(const std::string& name);

using TensorFiles = std::map<std::string, std::string, std::less<>>;  // tensor → file
TensorFiles read_tensor_files(const std::string& checkpoint);         // empty where it keeps none

inline constexpr std::string_view kSourceFolder = "hf/";
inline constexpr std::string_view kTensorFiles = "hf/tensors.json";

}  // namespace megatron
