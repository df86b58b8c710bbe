#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// A pipeline schedule is data: for each rank of the pipeline a list of steps, which one executor runs.

enum class PipelineKind {
  none,         // one stage
  gpipe,        // all forwards, then all backwards
  one_f_one_b,  // forward and backward in turn
  interleaved,  // 1F1B over several model chunks per rank
  zb_h1,        // 1F1B with the weight gradients moved into the bubble, in 1F1B's memory
  zb_v,         // two chunks per rank laid out as a V, weight gradients in the bubble
};
std::string_view pipeline_kind_name(PipelineKind kind);

enum class StepKind : uint8_t {
  forward,
  backward,         // data and weight gradients in one
  backward_data,    // B: the gradient of the input
  backward_weight,  // W: the gradients of the weights, any time after B
  send,
  recv,
};
enum class Payload : uint8_t { activation, gradient };  // of a send or recv

// The lists of all ranks are views of one common sequence of events, in which a message is one event. So they
// finish whether sends are buffered or wait for their receiver, and any run of sends and receives between two
// computations may be posted as one batch. A receive stands as early as its message can exist: an
// asynchronous executor posts it there and waits for it before the computation that needs it.
struct Step {
  StepKind kind;
  Payload payload = Payload::activation;
  int chunk = 0;  // the local model chunk that computes, sends or receives
  int microbatch = 0;
  int peer = -1;  // pipeline rank at the other end of a message
  friend bool operator==(const Step&, const Step&) = default;
};
std::string to_string(const Step& step);  // "F0.3", "send gradient 1.2 -> 0"

struct PipelineShape {
  PipelineKind kind = PipelineKind::none;
  int pp = 1;
  int vpp = 1;
  int microbatches = 1;
  int group = 0;  // interleaved: micro-batches that run through one chunk before the next; 0: pp
  bool forward_only = false;
  bool overlap_experts =
      false;  // interleaved: one more warm-up forward, so that the F and B of a pair are independent
  bool delay_weights = false;  // W behind B, once the gradient of the input is on its way
  friend auto operator<=>(const PipelineShape&, const PipelineShape&) = default;
};

// Where a chunk stands in the model: 0 holds the embedding, pp*vpp-1 the loss.
int model_stage(const PipelineShape& shape, int rank, int chunk);
struct ChunkPlace {
  int rank = 0;
  int chunk = 0;
  friend bool operator==(const ChunkPlace&, const ChunkPlace&) = default;
};
ChunkPlace chunk_at(const PipelineShape& shape, int model_stage);

void check_pipeline(const PipelineShape& shape);  // throws a ConfigError

// One list per pipeline rank. Where two neighbouring model stages live on one rank, no message passes between
// them.
std::vector<std::vector<Step>> schedules(const PipelineShape& shape);
std::vector<Step> schedule(PipelineKind kind, int pp, int stage, int vpp, int microbatches);

}  // namespace megatron
