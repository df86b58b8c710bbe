#pragma once

#include <functional>
#include <optional>

#include "megatron/nn/micro_batch.h"
#include "megatron/parallel/micro_batch.h"

namespace megatron {

// Brings the micro-batches of one chunk to the device in their order, each while the one before it is
// computed with: its copies run on a stream of their own. Belongs to the thread of the rank.
class UploadAhead {
 public:
  // Makes a micro-batch whose copies from the host are on `copies`; see to_device().
  using Upload = std::function<MicroBatch(int microbatch, const Stream& copies)>;

  // `ctx` and `copies` outlive it.
  UploadAhead(RankContext& ctx, const Stream& copies, int microbatches, Upload upload);
  ~UploadAhead();
  UploadAhead(const UploadAhead&) = delete;
  UploadAhead& operator=(const UploadAhead&) = delete;

  // What the rank's stream computes from now on finds it there. Sends the next one.
  MicroBatch take(int microbatch);

 private:
  struct Sent {
    int index;
    MicroBatch batch;
    Event arrived;
  };
  Sent send(int microbatch);
  void join();  // memory that is being written goes back to others only behind the copy

  RankContext& ctx_;
  const Stream& copies_;
  int microbatches_;
  Upload upload_;
  std::optional<Sent> next_;
};

}  // namespace megatron
