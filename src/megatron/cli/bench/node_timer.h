#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// Times every node of a training step on its device: an event behind each, so that what lies between two
// belongs to the later one (small kernels that nobody reports with it).
class NodeTimer final : public Tracer {
 public:
  explicit NodeTimer(RankContext& ctx) : ctx_(ctx) {}
  ~NodeTimer() override { ctx_.tracer = nullptr; }

  void start_step();
  void end_step();  // waits for the device
  void op(const char* name, Phase phase, const Cost& cost) override;

  // Per step: how often, milliseconds, TFLOP/s, TB/s and the share of each node; what the host needed.
  std::string table() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Key {
    std::string name;
    Phase phase;
    double flops;  // of one call: shapes of GEMMs are told apart by it, other nodes have 0
    auto operator<=>(const Key&) const = default;
  };
  struct Row {
    int64_t calls = 0;
    double seconds = 0, flops = 0, bytes = 0;
  };
  struct Mark {
    Key key;
    Cost cost;
    Event after;
    double host_seconds;  // since the step began, or on the host itself the time of the node
  };

  RankContext& ctx_;
  std::vector<Mark> marks_;
  std::vector<Event> begin_;
  Clock::time_point start_;
  std::map<Key, Row> rows_;
  double seconds_ = 0, host_seconds_ = 0;
  int steps_ = 0;
};

}  // namespace megatron
