#pragma once

#include <memory>

#include "megatron/comm/process_group.h"
#include "megatron/inference/engine_options.h"
#include "megatron/inference/request.h"
#include "megatron/models/model.h"

namespace megatron {

// Continuous batching over a paged cache. Every rank of `world` makes one and steps alike; requests are given
// to the first, which schedules for all and is the only one whose listeners are told anything. Listeners are
// called by the thread that steps, and may submit and cancel. In fp32, what a request gets does not depend on
// what else runs, to the bit.
class Engine {
 public:
  Engine(RankContext& ctx, const ProcessGroup& world, Model& model, const EngineOptions& options = {});
  ~Engine();

  // Queues a request; from any thread. A request that can never run is refused with a ConfigError.
  RequestId submit(Request request, RequestListener listener);
  // Ends a request at the next step; from any thread. An unknown or finished one is left alone.
  void cancel(RequestId id);
  // Runs one batch; false: there was nothing to do. Every rank calls it, and gets the same answer.
  bool step();
  // The model's weights are others now, such as a trainer's after its step: what the cache holds of the old
  // ones is forgotten, and requests under way are read again. By the thread that steps, on any rank.
  void weights_changed();
  // Steps until stop() is called on the first rank, and sleeps while there is nothing to do; on every rank.
  void run();
  // Lets run() return on all ranks; requests that are not finished are cancelled. From any thread.
  void stop();

  EngineStats stats() const;  // from any thread
  const EngineOptions& options() const;
  int64_t max_length() const;  // tokens of a sequence that may be read; one more may be generated
  int64_t vocab_size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron
