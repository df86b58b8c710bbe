#include "megatron/parallel/upload_ahead.h"

#include "megatron/base/error.h"

namespace megatron {

UploadAhead::UploadAhead(RankContext& ctx, const Stream& copies, int microbatches, Upload upload)
    : ctx_(ctx), copies_(copies), microbatches_(microbatches), upload_(std::move(upload)) {}

// Runs after a fault, too, which made every later call of the device fail: nothing is left to report then.
UploadAhead::~UploadAhead() {
  try {
    join();
  } catch (const Error&) {
  }
}

UploadAhead::Sent UploadAhead::send(int microbatch) {
  // The memory that it gets may still be read by work that is on the rank's stream already.
  Event unused(ctx_.runtime);
  unused.record(ctx_.stream);
  unused.wait(copies_);
  Sent sent{microbatch, upload_(microbatch, copies_), Event(ctx_.runtime)};
  sent.arrived.record(copies_);
  return sent;
}

void UploadAhead::join() {
  if (next_) next_->arrived.wait(ctx_.stream);
  next_.reset();
}

MicroBatch UploadAhead::take(int microbatch) {
  if (next_ && next_->index != microbatch) join();
  if (!next_) next_ = send(microbatch);
  MicroBatch batch = next_->batch;
  join();
  // Before anything of `batch` is computed, so that this copy need not wait for that.
  if (microbatch + 1 < microbatches_) next_ = send(microbatch + 1);
  return batch;
}

}  // namespace megatron
