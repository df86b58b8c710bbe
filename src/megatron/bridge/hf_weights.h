#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/bridge/hf_config.h"
#include "megatron/checkpoint/safetensors_directory.h"

namespace megatron {

// The weights of a Hugging Face model as numbers, in whichever form its files keep them: plain, fp8 with one
// scale for each block of a matrix (X and X_scale_inv: DeepSeek), or MXFP4 (X_blocks and X_scales: gpt-oss).
class HfWeights {
 public:
  HfWeights(const std::string& directory, const HfConfig& config);

  const SafetensorsDirectory& files() const { return *files_; }
  std::vector<std::string> names() const;  // sorted; a tensor in several pieces has one name
  bool contains(std::string_view name) const;
  // Of the numbers. MXFP4 matrices stand in the files as [experts, out, in] and are seen like plain ones of
  // the same family, [experts, in, out].
  Shape shape(std::string_view name) const;
  DType dtype(std::string_view name) const;  // bf16 where the files have fewer bits
  bool quantized(std::string_view name) const;

  // Mapped, not copied; of tensors that are not quantised.
  Tensor mapped(std::string_view name) const { return files_->tensor(name); }
  // Entries [begin, end) of the first dimension of a quantised tensor, as fp32 numbers.
  Tensor dequantized(std::string_view name, int64_t begin, int64_t end) const;

 private:
  bool is_mxfp4(std::string_view name) const;
  bool is_fp8(std::string_view name) const;
  Tensor from_fp8(std::string_view name, int64_t begin, int64_t end) const;
  Tensor from_mxfp4(std::string_view name, int64_t begin, int64_t end) const;

  std::shared_ptr<const SafetensorsDirectory> files_;
  int64_t block_rows_ = 128, block_columns_ = 128;  // of fp8
};

}  // namespace megatron
