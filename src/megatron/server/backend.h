#pragma once

#include "megatron/inference/engine.h"

namespace megatron {

// What the server asks of an engine: all members may be called from any thread.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual RequestId submit(Request request, RequestListener listener) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace megatron
