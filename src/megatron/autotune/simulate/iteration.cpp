#include "megatron/autotune/simulate/iteration.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>

#include "megatron/autotune/simulate/stage_layout.h"
#include "megatron/base/error.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron::autotune {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

PipelineShape pipeline_of(const ParallelPlan& plan, int microbatches) {
  PipelineShape shape;
  shape.pp = plan.pp;
  shape.vpp = plan.schedule == Schedule::zb_v ? 2 : plan.vpp;
  shape.microbatches = microbatches;
  shape.forward_only = plan.forward_only;
  shape.kind = plan.pp == 1                       ? PipelineKind::none
               : plan.schedule == Schedule::zb_h1 ? PipelineKind::zb_h1
               : plan.schedule == Schedule::zb_v  ? PipelineKind::zb_v
               : plan.vpp > 1                     ? PipelineKind::interleaved
                                                  : PipelineKind::one_f_one_b;
  return shape;
}

struct ChunkCost {
  double forward = 0, data = 0, weight = 0;
  double reduce = 0, gather = 0;  // of its parameters, alone on the link
};

// Something on a link: it moves at full rate where it is alone.
struct Flow {
  int link = 0;
  double left = 0;  // seconds at full rate
  int stage = 0;
  SimulatedSpan span;
  int to = -1;  // of a message
  bool gradient = false;
  size_t arrival = 0;
};

class Events {
 public:
  Events(const CostInputs& in, const ParallelPlan& plan, const SimulationOptions& options, int microbatches)
      : in_(in), plan_(plan), shape_(pipeline_of(plan, microbatches)), lists_(schedules(shape_)) {
    prepare(options);
  }

  SimulatedIteration run() {
    gather_weights();
    for (;;) {
      for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < shape_.pp; ++stage) moved |= advance(stage);
      }
      const double next = next_event();
      if (next == kNever) break;
      pass_time(next);
    }
    finish();
    return std::move(result_);
  }

 private:
  struct Stage {
    size_t next = 0;
    double free = 0;  // when its computation ends
    double busy = 0;
    std::vector<int> left;         // passes of a chunk until its gradients are complete
    std::deque<Flow> collectives;  // they go one after the other
    bool collective_runs = false;
  };

  void prepare(const SimulationOptions& options) {
    const std::vector<int> layers =
        options.chunk_layers.empty() ? default_chunk_layers(in_.model, plan_) : options.chunk_layers;
    const int chunks = shape_.pp * shape_.vpp;
    require(static_cast<int>(layers.size()) == chunks, "simulate: {} chunks for pp {} x vpp {}",
            layers.size(), shape_.pp, shape_.vpp);
    const StagePrices prices = stage_prices(in_, plan_);
    const std::vector<PassPair> each = layer_costs(in_, plan_);
    costs_.resize(static_cast<size_t>(chunks));
    size_t layer = 0;
    for (int at = 0; at < chunks; ++at) {
      PassPair sum;
      for (int i = 0; i < layers[static_cast<size_t>(at)] && layer < each.size(); ++i, ++layer) {
        sum.forward += each[layer].forward;
        sum.backward += each[layer].backward;
      }
      const bool first = at == 0, last = at == chunks - 1;
      if (first) sum.forward += prices.embedding.forward, sum.backward += prices.embedding.backward;
      if (last) sum.forward += prices.head.forward, sum.backward += prices.head.backward;
      ChunkCost& cost = costs_[static_cast<size_t>(at)];
      const double gpu = sum.forward.gpu() + sum.backward.gpu();
      const double host = sum.forward.host + sum.backward.host;
      const double slower = gpu > 0 ? std::max(1.0, host / gpu) : 1;
      cost.forward = slower * sum.forward.gpu();
      const bool apart = plan_.schedule != Schedule::one_f_one_b;
      cost.weight = apart ? slower * sum.backward.weight : 0;
      cost.data = slower * sum.backward.gpu() - cost.weight;
      const int rank = chunk_at(shape_, at).rank;
      if (rank == options.slow_stage) {
        cost.forward *= options.slowdown;
        cost.data *= options.slowdown;
        cost.weight *= options.slowdown;
      }
      const LocalParams params = local_params(in_.model, plan_, layers[static_cast<size_t>(at)], first, last);
      if (!plan_.lora && !plan_.forward_only && plan_.shards <= 1) {
        const DataParallelSeconds dense =
            data_parallel_seconds(in_, plan_, params.dense, plan_.dp() * plan_.cp, plan_.tp);
        const DataParallelSeconds experts =
            data_parallel_seconds(in_, plan_, params.experts, plan_.edp(), plan_.etp * plan_.ep);
        cost.reduce = dense.reduce + experts.reduce;
        cost.gather = dense.gather + experts.gather;
      }
      update_ = std::max(update_, plan_.forward_only ? 0 : update_seconds(in_, plan_, params) * shape_.vpp);
    }
    message_ = stage_exchange_seconds(in_, plan_) / (plan_.forward_only ? 1 : 2);
    if (plan_.vpp > 1 && plan_.schedule == Schedule::one_f_one_b)
      message_ /= in_.constants.exposed * plan_.vpp;  // the whole of one message
    stages_.resize(static_cast<size_t>(shape_.pp));
    result_.stages.resize(stages_.size());
    for (Stage& stage : stages_) stage.left.assign(static_cast<size_t>(shape_.vpp), shape_.microbatches);
    const size_t slots = static_cast<size_t>(chunks * shape_.microbatches);
    for (auto& times : arrival_) times.assign(slots, kNever);
    weights_ready_.assign(static_cast<size_t>(chunks), 0);
  }

  size_t slot(int model_stage, int microbatch) const {
    return static_cast<size_t>(model_stage * shape_.microbatches + microbatch);
  }

  // Weights of the chunks are gathered in the order in which they are needed.
  void gather_weights() {
    if (!plan_.distributed_optimizer) return;
    for (int chunk = 0; chunk < shape_.vpp; ++chunk)
      for (int rank = 0; rank < shape_.pp; ++rank) {
        const int at = model_stage(shape_, rank, chunk);
        const double seconds = costs_[static_cast<size_t>(at)].gather;
        if (seconds <= 0) continue;
        weights_ready_[static_cast<size_t>(at)] = kNever;
        add_collective(rank, {SpanKind::gather, chunk, 0, 0, 0}, seconds, static_cast<size_t>(at));
      }
  }

  void add_collective(int rank, SimulatedSpan span, double seconds, size_t at) {
    Stage& stage = stages_[static_cast<size_t>(rank)];
    stage.collectives.push_back({rank, seconds, rank, span, -1, false, at});
    start_collective(rank);
  }
  void start_collective(int rank) {
    Stage& stage = stages_[static_cast<size_t>(rank)];
    if (stage.collective_runs || stage.collectives.empty()) return;
    stage.collective_runs = true;
    Flow flow = stage.collectives.front();
    stage.collectives.pop_front();
    flow.span.begin = now_;
    flows_.push_back(flow);
  }

  bool advance(int rank) {
    Stage& stage = stages_[static_cast<size_t>(rank)];
    const auto& list = lists_[static_cast<size_t>(rank)];
    if (stage.next == list.size() || stage.free > now_) return false;
    const Step& step = list[stage.next];
    const int at = model_stage(shape_, rank, step.chunk);
    const ChunkCost& cost = costs_[static_cast<size_t>(at)];
    if (step.kind == StepKind::recv) {
      ++stage.next;
      return true;
    }
    if (step.kind == StepKind::send) {
      const bool gradient = step.payload == Payload::gradient;
      const int target = at + (gradient ? -1 : 1);
      Flow flow{rank,
                message_,
                rank,
                {SpanKind::message, step.chunk, step.microbatch, now_, 0},
                step.peer,
                gradient,
                slot(target, step.microbatch)};
      flows_.push_back(flow);
      ++stage.next;
      return true;
    }
    double seconds = 0;
    SpanKind kind = SpanKind::forward;
    const int last = shape_.pp * shape_.vpp - 1;
    if (step.kind == StepKind::forward) {
      if (at > 0 && arrival_[0][slot(at, step.microbatch)] > now_) return false;
      if (weights_ready_[static_cast<size_t>(at)] > now_) return false;
      seconds = cost.forward;
    } else if (step.kind == StepKind::backward_weight) {
      seconds = cost.weight;
      kind = SpanKind::weight;
    } else {
      if (at < last && arrival_[1][slot(at, step.microbatch)] > now_) return false;
      seconds = cost.data + (step.kind == StepKind::backward ? cost.weight : 0);
      kind = SpanKind::backward;
    }
    stage.free = now_ + seconds;
    stage.busy += seconds;
    result_.stages[static_cast<size_t>(rank)].push_back(
        {kind, step.chunk, step.microbatch, now_, stage.free});
    ends_.push_back(stage.free);
    std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
    done_.push_back({stage.free, rank, at, step});
    ++stage.next;
    return true;
  }

  // What a pass leaves to others when it ends.
  void complete(int rank, int at, const Step& step) {
    if (step.kind == StepKind::forward) {
      if (at + 1 < shape_.pp * shape_.vpp && chunk_at(shape_, at + 1).rank == rank)
        arrival_[0][slot(at + 1, step.microbatch)] = now_;
      return;
    }
    if (step.kind != StepKind::backward_weight && at > 0 && chunk_at(shape_, at - 1).rank == rank)
      arrival_[1][slot(at - 1, step.microbatch)] = now_;
    const bool whole = step.kind == StepKind::backward || step.kind == StepKind::backward_weight;
    Stage& stage = stages_[static_cast<size_t>(rank)];
    if (whole && --stage.left[static_cast<size_t>(step.chunk)] == 0) {
      const double seconds = costs_[static_cast<size_t>(at)].reduce;
      if (seconds > 0)
        add_collective(rank, {SpanKind::reduce, step.chunk, 0, 0, 0}, seconds, static_cast<size_t>(at));
    }
  }

  int sharing(int link) const {
    return static_cast<int>(
        std::count_if(flows_.begin(), flows_.end(), [&](const Flow& f) { return f.link == link; }));
  }

  double next_event() const {
    double next = ends_.empty() ? kNever : ends_.front();
    for (const Flow& flow : flows_) next = std::min(next, now_ + flow.left * sharing(flow.link));
    return next;
  }

  void pass_time(double until) {
    std::vector<double> moved(flows_.size());
    for (size_t i = 0; i < flows_.size(); ++i) moved[i] = (until - now_) / sharing(flows_[i].link);
    now_ = until;
    const double tiny = 1e-12 + 1e-12 * now_;
    for (size_t i = 0; i < flows_.size(); ++i) flows_[i].left -= moved[i];
    std::vector<Flow> ended;
    std::vector<Flow> kept;
    for (const Flow& flow : flows_) (flow.left <= tiny ? ended : kept).push_back(flow);
    flows_ = std::move(kept);
    for (Flow& flow : ended) end_flow(flow);
    while (!ends_.empty() && ends_.front() <= now_ + tiny) {
      std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
      ends_.pop_back();
    }
    std::vector<Done> pending;
    std::vector<Done> finished;
    for (const Done& d : done_) (d.time <= now_ + tiny ? finished : pending).push_back(d);
    done_ = std::move(pending);
    for (const Done& d : finished) {
      stages_[static_cast<size_t>(d.rank)].free = std::min(stages_[static_cast<size_t>(d.rank)].free, now_);
      complete(d.rank, d.at, d.step);
    }
  }

  void end_flow(Flow& flow) {
    flow.span.end = now_;
    result_.stages[static_cast<size_t>(flow.stage)].push_back(flow.span);
    if (flow.to >= 0) {
      arrival_[flow.gradient ? 1 : 0][flow.arrival] = now_;
      result_.messages.push_back({flow.stage, flow.to, flow.gradient, flow.span.begin, now_});
      return;
    }
    if (flow.span.kind == SpanKind::gather) weights_ready_[flow.arrival] = now_;
    stages_[static_cast<size_t>(flow.stage)].collective_runs = false;
    start_collective(flow.stage);
  }

  void finish() {
    double computed = 0, communicated = 0, busy = 0;
    for (size_t rank = 0; rank < stages_.size(); ++rank) {
      require(stages_[rank].next == lists_[rank].size(), "simulate: stage {} stopped at step {} of {}", rank,
              stages_[rank].next, lists_[rank].size());
      busy += stages_[rank].busy;
      for (const SimulatedSpan& span : result_.stages[rank])
        (span.kind == SpanKind::reduce ? communicated : computed) =
            std::max(span.kind == SpanKind::reduce ? communicated : computed, span.end);
    }
    result_.bubble = computed > 0 ? 1 - busy / (computed * shape_.pp) : 0;
    result_.data_parallel = std::max(0.0, communicated - computed);
    result_.update = update_;
    result_.step = (plan_.gpus > 1 ? in_.constants.step_ms : in_.constants.step_single_ms) * 1e-3;
    const double start = std::max(computed, communicated);
    if (update_ > 0)
      for (auto& spans : result_.stages) spans.push_back({SpanKind::update, 0, 0, start, start + update_});
    result_.seconds = start + result_.update + result_.step;
    result_.ranks_per_stage = std::max(1, plan_.gpus / plan_.pp);
    result_.microbatches = shape_.microbatches;
  }

  struct Done {
    double time;
    int rank, at;
    Step step;
  };

  const CostInputs& in_;
  const ParallelPlan& plan_;
  PipelineShape shape_;
  std::vector<std::vector<Step>> lists_;
  std::vector<ChunkCost> costs_;
  std::vector<Stage> stages_;
  std::vector<Flow> flows_;
  std::vector<double> ends_;  // a heap: the earliest end of a pass first
  std::vector<Done> done_;
  std::vector<double> arrival_[2];  // of activations and gradients, by model stage and micro-batch
  std::vector<double> weights_ready_;
  double message_ = 0, update_ = 0, now_ = 0;
  SimulatedIteration result_;
};

}  // namespace

std::string_view span_kind_name(SpanKind kind) {
  constexpr std::string_view names[] = {
      "forward", "backward", "weight gradients", "message", "gather weights", "reduce gradients", "update"};
  return names[static_cast<size_t>(kind)];
}

std::vector<int> default_chunk_layers(const ModelShape& model, const ParallelPlan& plan) {
  const LayerSplit split = layer_split(model, plan);
  const int vpp = plan.schedule == Schedule::zb_v ? 2 : plan.vpp;
  PipelineShape shape = pipeline_of(plan, 1);
  std::vector<int> result(static_cast<size_t>(plan.pp * vpp));
  for (int stage = 0; stage < plan.pp; ++stage) {
    const double layers = stage == plan.pp - 1          ? split.last
                          : stage >= split.first_larger ? split.larger
                                                        : split.first;
    for (int chunk = 0; chunk < vpp; ++chunk) {
      const int whole = static_cast<int>(layers);
      result[static_cast<size_t>(model_stage(shape, stage, chunk))] =
          whole / vpp + (chunk < whole % vpp ? 1 : 0);
    }
  }
  return result;
}

SimulatedIteration simulate_iteration(const CostInputs& in, const ParallelPlan& plan,
                                      const SimulationOptions& options) {
  const int all = static_cast<int>(plan.microbatches());
  // The steady state repeats after a group of as many micro-batches as there are stages.
  const int few = options.most_microbatches / plan.pp * plan.pp;
  if (options.most_microbatches <= 0 || all <= few + plan.pp || few < 2 * plan.pp)
    return Events(in, plan, options, all).run();
  const int more = few + plan.pp;
  SimulatedIteration base = Events(in, plan, options, few).run();
  const SimulatedIteration longer = Events(in, plan, options, more).run();
  const double each = (longer.seconds - base.seconds) / plan.pp;
  const double pipeline = longer.seconds - longer.data_parallel - longer.update - longer.step;
  const double busy = (1 - longer.bubble) * pipeline / more * all;
  SimulatedIteration result = longer;
  result.seconds += each * (all - more);
  result.bubble = 1 - busy / (pipeline + each * (all - more));
  result.microbatches = all;
  return result;
}

}  // namespace megatron::autotune
