#pragma once

#include "megatron/training/setup/checkpoint_tensors.h"

namespace megatron {

// Compares what a rank asks for with what a checkpoint has, as strictly as --dist-ckpt-strictness says.
class LoadCheck {
 public:
  LoadCheck(const TensorSource& source, const LoadOptions& options) : source_(source), options_(options) {}

  // Leaves the tensors that can be read; shapes become those of the checkpoint where it pads its vocabulary.
  // A ConfigError lists what does not fit.
  LoadReport fit(std::vector<ShardedTensor>& tensors) const;

 private:
  bool reports_missing() const;
  bool reports_unexpected() const;
  bool tolerates_missing() const;
  bool may_lack(std::string_view parameter) const;
  bool fits(ShardedTensor& target, const StoredTensor& stored) const;
  std::vector<std::string> unexpected(const std::vector<ShardedTensor>& tensors) const;

  const TensorSource& source_;
  const LoadOptions& options_;
};

}  // namespace megatron
