#include "megatron/parallel/pipeline/simulator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "megatron/base/error.h"

namespace megatron {
namespace {

enum Progress : uint8_t { has_input = 1, has_forward = 2, has_gradient = 4, has_data = 8, has_weight = 16 };

class Simulator {
 public:
  Simulator(const PipelineShape& shape, const std::vector<std::vector<Step>>& lists, const StepCosts& costs,
            SendMode mode)
      : shape_(shape),
        lists_(lists),
        costs_(costs),
        mode_(mode),
        stages_(shape.pp * shape.vpp),
        ranks_(lists.size()) {
    require(static_cast<int>(lists.size()) == shape.pp, "simulate: {} lists for pp={}", lists.size(),
            shape.pp);
    const size_t slots = static_cast<size_t>(stages_ * shape.microbatches);
    progress_.assign(slots, 0);
    for (auto& times : arrival_) times.assign(slots, -1);
    result_.timelines.resize(lists.size());
    result_.peak_activations.assign(lists.size(), 0);
    result_.peak_in_flight.assign(lists.size(), 0);
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < lists_.size(); ++r)
        while (advance(static_cast<int>(r))) moved = true;
    }
    check_finished();
    double busy = 0;
    for (const auto& rank : ranks_) {
      result_.makespan = std::max(result_.makespan, rank.clock);
      busy += rank.busy;
    }
    const double total = result_.makespan * static_cast<double>(lists_.size());
    result_.bubble = total > 0 ? 1 - busy / total : 0;
    return std::move(result_);
  }

 private:
  struct Rank {
    size_t next = 0;
    double clock = 0;
    double busy = 0;
    int activations = 0;
    int in_flight = 0;
  };
  struct Message {
    Step step;
    double time;
  };
  // Messages from one rank to another are matched in the order in which they were sent, as process groups
  // match them.
  struct Channel {
    std::deque<Message> sent, posted;
  };

  [[noreturn]] void stop(int rank, std::string_view why) const {
    const size_t at = ranks_[static_cast<size_t>(rank)].next;
    fail("simulate {} pp={} vpp={} micro-batches={}: rank {} at step {} ({}): {}",
         pipeline_kind_name(shape_.kind), shape_.pp, shape_.vpp, shape_.microbatches, rank, at,
         to_string(lists_[static_cast<size_t>(rank)][at]), why);
  }

  size_t slot(int rank, const Step& step) const {
    return static_cast<size_t>(model_stage(shape_, rank, step.chunk) * shape_.microbatches + step.microbatch);
  }
  uint8_t& progress(int rank, const Step& step) { return progress_[slot(rank, step)]; }
  double& arrival(Payload payload, size_t slot) { return arrival_[static_cast<size_t>(payload)][slot]; }

  bool advance(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (rank.next == lists_[static_cast<size_t>(r)].size()) return false;
    const Step& step = lists_[static_cast<size_t>(r)][rank.next];
    if (step.microbatch < 0 || step.microbatch >= shape_.microbatches || step.chunk < 0 ||
        step.chunk >= shape_.vpp)
      stop(r, "no such chunk and micro-batch");
    if (step.kind == StepKind::send) return send(r, step);
    if (step.kind == StepKind::recv) return receive(r, step);
    return compute(r, step);
  }

  // False while a posted input is still under way.
  bool compute(int r, const Step& step) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    uint8_t& done = progress(r, step);
    const int stage = model_stage(shape_, r, step.chunk);
    double cost = 0;
    switch (step.kind) {
      case StepKind::forward:
        if (done & has_forward) stop(r, "it ran before");
        if (stage > 0 && !(done & has_input)) stop(r, "its input was not received");
        if (stage > 0 && !wait(r, step, Payload::activation)) return false;
        done |= has_forward;
        cost = costs_.forward;
        ++rank.activations;
        ++rank.in_flight;
        hand_over(r, stage + 1, step, has_input);
        break;
      case StepKind::backward:
      case StepKind::backward_data:
        if (done & has_data) stop(r, "it ran before");
        if (!(done & has_forward)) stop(r, "its forward did not run");
        if (stage < stages_ - 1 && !(done & has_gradient)) stop(r, "its output gradient was not received");
        if (stage < stages_ - 1 && !wait(r, step, Payload::gradient)) return false;
        done |= has_data;
        cost = costs_.backward_data;
        --rank.activations;
        if (step.kind == StepKind::backward) {
          done |= has_weight;
          cost += costs_.backward_weight;
          --rank.in_flight;
        }
        hand_over(r, stage - 1, step, has_gradient);
        break;
      default:
        if (done & has_weight) stop(r, "it ran before");
        if (!(done & has_data)) stop(r, "its data gradient did not run");
        done |= has_weight;
        cost = costs_.backward_weight;
        --rank.in_flight;
    }
    auto& peak = result_.peak_activations[static_cast<size_t>(r)];
    peak = std::max(peak, rank.activations);
    auto& in_flight = result_.peak_in_flight[static_cast<size_t>(r)];
    in_flight = std::max(in_flight, rank.in_flight);
    rank.busy += cost;
    record(r, step, rank.clock + cost);
    return true;
  }

  bool wait(int r, const Step& step, Payload payload) {
    const double time = arrival(payload, slot(r, step));
    if (time < 0) return false;
    double& clock = ranks_[static_cast<size_t>(r)].clock;
    clock = std::max(clock, time);
    return true;
  }

  void hand_over(int r, int stage, const Step& step, Progress what) {
    if (stage < 0 || stage >= stages_) return;
    const ChunkPlace place = chunk_at(shape_, stage);
    if (place.rank != r) return;
    const size_t at = static_cast<size_t>(stage * shape_.microbatches + step.microbatch);
    progress_[at] |= what;
    arrival(what == has_input ? Payload::activation : Payload::gradient, at) = 0;
  }

  void record(int r, const Step& step, double end) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    result_.timelines[static_cast<size_t>(r)].push_back({step, rank.clock, end});
    rank.clock = end;
    ++rank.next;
  }

  bool send(int r, const Step& step) {
    const bool activation = step.payload == Payload::activation;
    if (!(progress(r, step) & (activation ? has_forward : has_data)))
      stop(r, "what it sends was not computed");
    const int target = model_stage(shape_, r, step.chunk) + (activation ? 1 : -1);
    if (target < 0 || target >= stages_ || chunk_at(shape_, target).rank != step.peer)
      stop(r, "it goes to the wrong rank");
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (mode_ == SendMode::buffered) {
      channels_[{r, step.peer}].sent.push_back({step, rank.clock + costs_.message});
      record(r, step, rank.clock);
      settle(r, step.peer);
      return true;
    }
    // A rendezvous happens when both ends stand at it.
    if (step.peer < 0 || step.peer >= shape_.pp) stop(r, "no such peer");
    Rank& peer = ranks_[static_cast<size_t>(step.peer)];
    const auto& list = lists_[static_cast<size_t>(step.peer)];
    if (peer.next == list.size() || list[peer.next].kind != StepKind::recv || list[peer.next].peer != r)
      return false;
    const Step& other = list[peer.next];
    const double end = std::max(rank.clock, peer.clock) + costs_.message;
    match(r, step, step.peer, other, end);
    record(step.peer, other, end);
    record(r, step, end);
    return true;
  }

  bool receive(int r, const Step& step) {
    if (mode_ == SendMode::rendezvous) return false;  // its sender moves both
    progress(r, step) |= step.payload == Payload::activation ? has_input : has_gradient;
    channels_[{step.peer, r}].posted.push_back({step, ranks_[static_cast<size_t>(r)].clock});
    record(r, step, ranks_[static_cast<size_t>(r)].clock);
    settle(step.peer, r);
    return true;
  }

  void settle(int sender, int receiver) {
    Channel& channel = channels_[{sender, receiver}];
    while (!channel.sent.empty() && !channel.posted.empty()) {
      const Message &sent = channel.sent.front(), &posted = channel.posted.front();
      match(sender, sent.step, receiver, posted.step, std::max(sent.time, posted.time));
      channel.sent.pop_front();
      channel.posted.pop_front();
    }
  }

  void match(int sender, const Step& sent, int receiver, const Step& received, double time) {
    const int from = model_stage(shape_, sender, sent.chunk),
              to = model_stage(shape_, receiver, received.chunk);
    const bool activation = sent.payload == Payload::activation;
    if (sent.payload != received.payload || sent.microbatch != received.microbatch ||
        to != from + (activation ? 1 : -1))
      stop(receiver,
           fmt::format("\"{}\" meets \"{}\" of rank {}", to_string(received), to_string(sent), sender));
    progress(receiver, received) |= activation ? has_input : has_gradient;
    arrival(sent.payload, slot(receiver, received)) = time;
  }

  void check_finished() {
    std::string waiting;
    for (size_t r = 0; r < lists_.size(); ++r)
      if (ranks_[r].next < lists_[r].size())
        waiting += fmt::format("{}rank {} at step {} ({})", waiting.empty() ? "" : ", ", r, ranks_[r].next,
                               to_string(lists_[r][ranks_[r].next]));
    require(waiting.empty(), "simulate {} pp={} vpp={} micro-batches={}: deadlock: {}",
            pipeline_kind_name(shape_.kind), shape_.pp, shape_.vpp, shape_.microbatches, waiting);
    for (const auto& [ends, channel] : channels_)
      require(channel.sent.empty() && channel.posted.empty(),
              "simulate: from rank {} to {}, {} messages were never received and {} receives never served",
              ends.first, ends.second, channel.sent.size(), channel.posted.size());
    const uint8_t wanted = shape_.forward_only ? has_forward : has_forward | has_data | has_weight;
    for (int stage = 0; stage < stages_; ++stage)
      for (int m = 0; m < shape_.microbatches; ++m)
        require((progress_[static_cast<size_t>(stage * shape_.microbatches + m)] & wanted) == wanted,
                "simulate: model stage {} did not finish micro-batch {}", stage, m);
  }

  const PipelineShape& shape_;
  const std::vector<std::vector<Step>>& lists_;
  const StepCosts& costs_;
  SendMode mode_;
  int stages_;
  std::vector<Rank> ranks_;
  std::vector<uint8_t> progress_;   // by model stage and micro-batch
  std::vector<double> arrival_[2];  // of activation and gradient; negative: not yet
  std::map<std::pair<int, int>, Channel> channels_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const PipelineShape& shape, const std::vector<std::vector<Step>>& lists,
                    const StepCosts& costs, SendMode mode) {
  return Simulator(shape, lists, costs, mode).run();
}

}  // namespace megatron
