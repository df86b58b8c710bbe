#include "megatron/parallel/pipeline/schedule.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/parallel/pipeline/compute_order.h"

namespace megatron {
namespace {

struct KindName {
  PipelineKind kind;
  std::string_view name;
};
constexpr KindName kKinds[] = {
    {PipelineKind::none, "none"},        {PipelineKind::gpipe, "gpipe"},
    {PipelineKind::one_f_one_b, "1f1b"}, {PipelineKind::interleaved, "interleaved"},
    {PipelineKind::zb_h1, "zb-h1"},      {PipelineKind::zb_v, "zb-v"}};

bool fills_bubbles(PipelineKind kind) { return kind == PipelineKind::zb_h1 || kind == PipelineKind::zb_v; }
bool splits_backward(const PipelineShape& shape) { return fills_bubbles(shape.kind) || shape.delay_weights; }

int cost(StepKind kind) { return kind == StepKind::backward ? 2 : 1; }

// Runs the compute orders of all ranks against each other in unit time and writes down what happens: the
// common sequence of events that every rank's list is taken from. Weight steps go where a rank would wait, or
// where its memory is full.
class Weaver {
 public:
  explicit Weaver(const PipelineShape& shape)
      : shape_(shape), stages_(shape.pp * shape.vpp), ranks_(static_cast<size_t>(shape.pp)) {
    std::vector<std::vector<Step>> orders = compute_orders(shape);
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].order = std::move(orders[r]);
    const size_t slots = static_cast<size_t>(stages_) * static_cast<size_t>(shape.microbatches);
    forward_done_.assign(slots, kNever);
    backward_done_.assign(slots, kNever);
  }

  std::vector<std::vector<Step>> weave() {
    while (true) {
      std::optional<Choice> best;
      bool finished = true;
      for (int r = 0; r < shape_.pp; ++r) {
        const std::optional<Choice> choice = choose(r);
        if (!choice) continue;
        finished = false;
        if (!best || choice->start < best->start) best = choice;
      }
      if (finished) return lists();
      require(best->start != kNever,
              "schedule: {} with pp={} vpp={} and {} micro-batches cannot run: every rank waits",
              pipeline_kind_name(shape_.kind), shape_.pp, shape_.vpp, shape_.microbatches);
      run(*best);
    }
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

  struct Rank {
    std::vector<Step> order;
    size_t next = 0;
    int free = 0;                   // when its last step ends
    int in_flight = 0;              // forwards whose weight step is still to come
    std::deque<Step> weight_steps;  // ready to run
  };
  struct Choice {
    int rank;
    bool weight;  // the oldest weight step, not the next of the order
    int start;
  };
  struct Event {
    int time;
    bool compute;  // at one time messages come first: they end steps that went before
    int rank;
    Step step;
  };

  int& done(std::vector<int>& table, int stage, int microbatch) {
    return table[static_cast<size_t>(stage * shape_.microbatches + microbatch)];
  }

  // When the input of a step is there; kNever while its producer has not been run.
  int input_ready(int rank, const Step& step) {
    const int stage = model_stage(shape_, rank, step.chunk);
    if (step.kind == StepKind::forward)
      return stage == 0 ? 0 : done(forward_done_, stage - 1, step.microbatch);
    const int own = done(forward_done_, stage, step.microbatch);
    return stage == stages_ - 1 ? own : std::max(own, done(backward_done_, stage + 1, step.microbatch));
  }

  std::optional<Choice> choose(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (rank.next == rank.order.size()) {
      if (rank.weight_steps.empty()) return std::nullopt;
      return Choice{r, true, rank.free};
    }
    // Outside of zero-bubble schedules W follows its B at once.
    if (!rank.weight_steps.empty() && !fills_bubbles(shape_.kind)) return Choice{r, true, rank.free};
    const Step& step = rank.order[rank.next];
    const int ready = input_ready(r, step);
    const int start = ready == kNever ? kNever : std::max(ready, rank.free);
    const bool full = step.kind == StepKind::forward && rank.in_flight >= shape_.pp * shape_.vpp;
    if (!rank.weight_steps.empty() && (full || start > rank.free)) return Choice{r, true, rank.free};
    return Choice{r, false, start};
  }

  void run(const Choice& choice) {
    Rank& rank = ranks_[static_cast<size_t>(choice.rank)];
    Step step;
    if (choice.weight) {
      step = rank.weight_steps.front();
      rank.weight_steps.pop_front();
      --rank.in_flight;
    } else {
      step = rank.order[rank.next++];
      if (step.kind == StepKind::forward)
        ++rank.in_flight;
      else if (splits_backward(shape_)) {
        step.kind = StepKind::backward_data;
        Step weight = step;
        weight.kind = StepKind::backward_weight;
        rank.weight_steps.push_back(weight);
      } else
        --rank.in_flight;
    }
    events_.push_back({choice.start, true, choice.rank, step});
    rank.free = choice.start + cost(step.kind);
    if (!choice.weight) deliver(choice.rank, step, rank.free);
  }

  void deliver(int rank, const Step& step, int time) {
    const int stage = model_stage(shape_, rank, step.chunk);
    const bool forward = step.kind == StepKind::forward;
    done(forward ? forward_done_ : backward_done_, stage, step.microbatch) = time;
    const int target = forward ? stage + 1 : stage - 1;
    if (target < 0 || target == stages_) return;
    const ChunkPlace place = chunk_at(shape_, target);
    if (place.rank == rank) return;
    const Payload payload = forward ? Payload::activation : Payload::gradient;
    events_.push_back(
        {time, false, rank, {StepKind::send, payload, step.chunk, step.microbatch, place.rank}});
    events_.push_back(
        {time, false, place.rank, {StepKind::recv, payload, place.chunk, step.microbatch, rank}});
  }

  std::vector<std::vector<Step>> lists() {
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      return a.time != b.time ? a.time < b.time : a.compute < b.compute;
    });
    std::vector<std::vector<Step>> lists(ranks_.size());
    for (const Event& event : events_) lists[static_cast<size_t>(event.rank)].push_back(event.step);
    return lists;
  }

  const PipelineShape& shape_;
  int stages_;
  std::vector<Rank> ranks_;
  std::vector<int> forward_done_, backward_done_;  // by model stage and micro-batch
  std::vector<Event> events_;
};

template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ConfigError("pipeline schedule: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

std::string_view pipeline_kind_name(PipelineKind kind) { return kKinds[static_cast<size_t>(kind)].name; }

std::string to_string(const Step& step) {
  constexpr std::string_view letters[] = {"F", "BW", "B", "W"};
  if (step.kind < StepKind::send)
    return fmt::format("{}{}.{}", letters[static_cast<size_t>(step.kind)], step.chunk, step.microbatch);
  const bool send = step.kind == StepKind::send;
  return fmt::format("{} {} {}.{} {} {}", send ? "send" : "recv",
                     step.payload == Payload::activation ? "activation" : "gradient", step.chunk,
                     step.microbatch, send ? "->" : "<-", step.peer);
}

int model_stage(const PipelineShape& shape, int rank, int chunk) {
  if (shape.kind == PipelineKind::zb_v && chunk == 1) return 2 * shape.pp - 1 - rank;
  return chunk * shape.pp + rank;
}

ChunkPlace chunk_at(const PipelineShape& shape, int stage) {
  if (shape.kind == PipelineKind::zb_v && stage >= shape.pp) return {2 * shape.pp - 1 - stage, 1};
  return {stage % shape.pp, stage / shape.pp};
}

void check_pipeline(const PipelineShape& s) {
  check(s.pp >= 1 && s.vpp >= 1 && s.microbatches >= 1,
        "pp={} vpp={} micro-batches={}: all must be at least 1", s.pp, s.vpp, s.microbatches);
  const std::string_view name = pipeline_kind_name(s.kind);
  if (s.kind == PipelineKind::none) check(s.pp == 1, "none runs on one stage, but pp={}: choose 1f1b", s.pp);
  if (s.kind == PipelineKind::zb_v)
    check(s.vpp == 2, "zb-v gives every rank two chunks, but vpp={}: use vpp=2, or zb-h1 with vpp=1", s.vpp);
  else if (s.kind == PipelineKind::interleaved) {
    check(s.pp > 1 || s.vpp == 1, "interleaving {} chunks needs pp > 1", s.vpp);
    if (s.forward_only) return;  // a pass without a way back waits for nobody, however few there are
    const int group = s.group == 0 ? s.pp : s.group;
    check(group >= s.pp && group <= s.microbatches,
          "interleaving groups of {} micro-batches; a group holds at least pp={} and at most all {}: use "
          "more micro-batches or 1f1b",
          group, s.pp, s.microbatches);
    const int rest = s.microbatches % group;
    check(rest == 0 || rest >= s.pp,
          "interleaving {} micro-batches in groups of {} leaves a last group of {}, fewer than pp={}, and "
          "the ranks would wait for "
          "each other for ever: use a multiple of {} micro-batches",
          s.microbatches, group, rest, s.pp, group);
  } else
    check(s.vpp == 1, "{} runs one chunk per rank, but vpp={}: choose interleaved", name, s.vpp);
  check(s.group == 0 || s.kind == PipelineKind::interleaved,
        "{} has no micro-batch groups: leave the group size out", name);
}

std::vector<std::vector<Step>> schedules(const PipelineShape& shape) {
  check_pipeline(shape);
  return Weaver(shape).weave();
}

std::vector<Step> schedule(PipelineKind kind, int pp, int stage, int vpp, int microbatches) {
  check(stage >= 0 && stage < pp, "no stage {} in pp={}", stage, pp);
  return schedules({kind, pp, vpp, microbatches})[static_cast<size_t>(stage)];
}

}  // namespace megatron
