#pragma once

#include <string>

#include "megatron/device/kernel_context.h"

namespace megatron {

// Which matrix kernels were measured to be fastest, kept between runs: in $MEGATRON_CACHE, or in
// $XDG_CACHE_HOME/megatron or ~/.cache/megatron; nowhere where none of these is set.
class GemmCache {
 public:
  explicit GemmCache(const KernelContext& ctx);  // measuring is on from here; uses what was kept
  void save(const KernelContext& ctx) const;     // what is new; that it cannot be written is no error

 private:
  std::string path_, known_;
};

}  // namespace megatron
