#include "megatron/autotune/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/autotune/cost/unequal.h"

namespace megatron::autotune {
namespace {

constexpr double kMilli = 1e-3;

// One micro-batch on one stage, over all of its chunks.
struct StageTime {
  PassCost forward, backward;
  double forward_s = 0, backward_s = 0, exchange = 0, idle = 0;
  double total() const { return forward_s + backward_s + exchange; }
};

// The slower of GPU and host, and a little more where both are close: neither is even over time.
double slower_of(const CostConstants& constants, double gpu, double host) {
  const double most = std::max(gpu, host), least = std::min(gpu, host);
  return most <= 0 ? 0 : most * std::pow(1 + std::pow(least / most, constants.smooth), 1 / constants.smooth);
}

StageTime stage_time(const CostInputs& in, const ParallelPlan& plan, const PassPair& layer, double layers,
                     const PassPair* embedding, const PassPair* head, double exchange) {
  StageTime stage;
  stage.forward = layers * layer.forward;
  stage.backward = layers * layer.backward;
  for (const PassPair* part : {embedding, head}) {
    if (part == nullptr) continue;
    stage.forward += part->forward;
    stage.backward += part->backward;
  }
  const double more =
      plan.cuda_graphs ? 0 : in.constants.host_microbatch_ms * in.stack.host * kMilli / in.cluster.host_speed;
  stage.forward.host += more / 3;
  stage.backward.host += 2 * more / 3;
  if (plan.pp > 1 && in.stack.synchronous_pipeline) {
    stage.forward_s = slower_of(in.constants, stage.forward.gpu(), stage.forward.host);
    stage.backward_s = slower_of(in.constants, stage.backward.gpu(), stage.backward.host);
  } else {
    // Launches run ahead of the GPU, so that only their sum counts.
    const double gpu = stage.forward.gpu() + stage.backward.gpu();
    const double host = stage.forward.host + stage.backward.host;
    const double slower = slower_of(in.constants, gpu, host);
    stage.forward_s = slower * (gpu >= host ? stage.forward.gpu() / gpu : stage.forward.host / host);
    stage.backward_s = slower - stage.forward_s;
  }
  stage.idle = stage.forward_s + stage.backward_s - stage.forward.gpu() - stage.backward.gpu();
  stage.exchange = exchange;
  return stage;
}

// What shows of a group's reduction and gathering, once a step.
double exposed_data_parallel(const CostInputs& in, const ParallelPlan& plan, double params, int ranks,
                             int stride, double forward, double backward) {
  const DataParallelSeconds all = data_parallel_seconds(in, plan, params, ranks, stride);
  if (all.reduce <= 0) return 0;
  if (!plan.dp_overlap) return all.reduce + all.gather;
  return exposed_seconds(in.constants, all.reduce, backward) +
         exposed_seconds(in.constants, all.gather, forward);
}

// Sharded weights are gathered for both passes of every micro-batch, gradients reduced after each.
double sharded_seconds(const CostInputs& in, const ParallelPlan& plan, const LocalParams& params,
                       double forward, double backward) {
  const double width = plan.fp8() && in.stack.fp8_weight_gather ? 1 : 2;
  const double gather = collective_seconds(in, width * params.total(), plan.shards, plan.tp);
  const double reduce = collective_seconds(in, in.stack.grad_bytes * params.total(), plan.shards, plan.tp);
  if (plan.pp > 1)
    return exposed_seconds(in.constants, gather, forward) + exposed_seconds(in.constants, reduce, backward);
  return static_cast<double>(plan.microbatches()) *
         (exposed_seconds(in.constants, gather, forward) +
          exposed_seconds(in.constants, gather + reduce, backward));
}

double spread_of(const Breakdown& b, bool calibrated) {
  // Relative errors by kind, independent of each other; the floor is what repeated runs differ by.
  const std::array<std::pair<double, double>, 11> parts{{{b.gemm, 0.03},
                                                         {b.attention, 0.05},
                                                         {b.memory, 0.06},
                                                         {b.tp, 0.12},
                                                         {b.cp, 0.2},
                                                         {b.ep, 0.10},
                                                         {b.pp, 0.2},
                                                         {b.dp, 0.2},
                                                         {b.host, 0.10},
                                                         {b.bubble, 0.08},
                                                         {b.optimizer + b.step + b.offload, 0.2}}};
  double sum = 0;
  for (const auto& [seconds, error] : parts) sum += seconds * error * seconds * error;
  // Constants of another GPU kind carry over to about a tenth.
  const double kind = calibrated ? 0.02 : 0.12;
  return std::sqrt(sum / (b.total() * b.total()) + kind * kind);
}

// Copies of offloaded activations to the host and back that computation does not hide, of a micro-batch.
double offload_seconds(const CostInputs& in, const ParallelPlan& plan, double forward, double backward) {
  if (plan.offload_share <= 0) return 0;
  ParallelPlan kept = plan;
  kept.offload_share = 0;
  const double bytes = plan.offload_share * kept_activation_bytes(in, kept);
  const double copy = bytes / (0.8 * in.cluster.gpu.host_gbs * 1e9);
  return exposed_seconds(in.constants, copy, forward) + exposed_seconds(in.constants, copy, backward);
}

// The time in which stages wait for their first work and after their last. Weight gradients that are put off
// fill it: the gap of a stage is F + B - W instead of F + B + W under zb-h1, and F + B - 2 W under zb-v.
double bubble_seconds(const ParallelPlan& plan, double others, double weights) {
  switch (plan.schedule) {
    case Schedule::zb_h1:
      return std::max(others / 3, others - 2 * weights);
    case Schedule::zb_v:
      return std::max(others / 12, others - 3 * weights);
    case Schedule::one_f_one_b:
      break;
  }
  return others / plan.vpp;
}

}  // namespace

double stage_exchange_seconds(const CostInputs& in, const ParallelPlan& plan) {
  if (plan.pp == 1) return 0;
  const double bytes = 2.0 * static_cast<double>(plan.mbs) * static_cast<double>(plan.seq) / plan.cp *
                       static_cast<double>(in.model.hidden) / plan.tp;
  const Placement place = place_group(in.cluster, 2, plan.gpus / plan.pp);
  const double rate = place.domains > 1 ? in.constants.nic * network_gbs(in.cluster, {1, 2}, 1)
                                        : in.constants.nvlink * in.cluster.gpu.nvlink_gbs;
  const double both = plan.forward_only ? 1 : 2;
  const double seconds = both * (in.constants.latency_us * 1e-6 + bytes / (rate * 1e9));
  return plan.vpp > 1 ? in.constants.exposed * seconds * plan.vpp : seconds;
}

DataParallelSeconds data_parallel_seconds(const CostInputs& in, const ParallelPlan& plan, double params,
                                          int ranks, int stride) {
  if (ranks <= 1 || params <= 0) return {};
  const double efficiency = in.constants.grad_reduce;
  const double reduce = collective_seconds(in, in.stack.grad_bytes * params, ranks, stride) / efficiency;
  if (!plan.distributed_optimizer) return {2 * reduce, 0};
  const double width = plan.fp8() && in.stack.fp8_weight_gather ? 1 : 2;
  return {reduce, collective_seconds(in, width * params, ranks, stride) / efficiency};
}

double update_seconds(const CostInputs& in, const ParallelPlan& plan, const LocalParams& params) {
  const double owned =
      plan.shards > 1 ? params.total() / plan.shards
      : plan.distributed_optimizer
          ? params.dense / (static_cast<double>(plan.dp()) * plan.cp) + params.experts / plan.edp()
          : params.total();
  const double bytes = owned * in.stack.optimizer_bytes * in.constants.optimizer;
  return bytes / (in.constants.memory * in.cluster.gpu.memory_tbs * 1e12);
}

namespace {

// What the parts of an iteration's time make of it.
Prediction summed(const CostInputs& in, const ParallelPlan& plan, const Breakdown& b) {
  Prediction result;
  result.breakdown = b;
  result.seconds = b.total();
  result.uncertainty = spread_of(b, in.cluster.gpu.calibrated);
  const double tokens = plan.useful * static_cast<double>(plan.gbs) * static_cast<double>(plan.seq);
  result.tokens_per_second_per_gpu = tokens / result.seconds / plan.gpus;
  result.tflops_per_gpu = result.tokens_per_second_per_gpu * in.model.flops_per_token(plan.context()) /
                          (plan.forward_only ? 3e12 : 1e12);
  result.mfu = result.tflops_per_gpu / in.cluster.gpu.tflops16;
  result.network_binds_experts = in.model.moe() && plan.ep > 1 && exchange_seconds(in, plan).network;
  return result;
}

// Replicas of which some lack tensor ranks: these get fewer micro-batches, and all wait for the later ones.
Prediction predict_unequal(const CostInputs& in, const ParallelPlan& plan, const StagePrices& prices) {
  ParallelPlan whole = plan;
  whole.tp_spares = whole.reduced_replicas = 0;
  const UnequalBatches batches = unequal_batches(plan, reduced_slowdown(in.model, plan));
  const int64_t most = std::max<int64_t>({1, batches.whole, batches.whole == 0 ? batches.reduced : 0});
  whole.gbs = most * plan.mbs * plan.dp();
  Breakdown b = predict(in, whole, prices).breakdown;
  const double longer = batches.steps / static_cast<double>(most);
  for (double Breakdown::*part :
       {&Breakdown::gemm, &Breakdown::attention, &Breakdown::memory, &Breakdown::tp, &Breakdown::cp,
        &Breakdown::pp, &Breakdown::host, &Breakdown::bubble, &Breakdown::offload})
    b.*part *= longer;
  // Gradients meet in the layout of the fewer ranks: their reduction has more bytes a rank, and those of
  // the others are folded before and unfolded after it, inside the domain.
  const double left = plan.tp - plan.tp_spares;
  b.dp *= plan.tp / left;
  const LayerSplit layers = layer_split(in.model, plan);
  const double params = local_params(in.model, plan, layers.larger, false, false).total();
  b.dp += in.constants.exposed * 2 * in.stack.grad_bytes * params * plan.tp_spares / left /
          (in.constants.nvlink * in.cluster.gpu.nvlink_gbs * 1e9);
  return summed(in, plan, b);
}

}  // namespace

Prediction predict(const CostInputs& in, const ParallelPlan& plan) {
  return predict(in, plan, stage_prices(in, plan));
}

Prediction predict(const CostInputs& in, const ParallelPlan& plan, const StagePrices& prices) {
  if (plan.unequal()) return predict_unequal(in, plan, prices);
  const PassPair &layer = prices.layer, &embedding = prices.embedding, &head = prices.head;
  const LayerSplit layers = layer_split(in.model, plan);
  const double exchange = stage_exchange_seconds(in, plan);
  const auto microbatches = static_cast<double>(plan.microbatches());

  const bool one = plan.pp == 1;
  // A V begins and ends on the first stage.
  const bool v = plan.schedule == Schedule::zb_v;
  const StageTime last = stage_time(in, plan, layer, layers.last, one ? &embedding : nullptr,
                                    v && !one ? nullptr : &head, exchange);
  const StageTime first =
      one ? last
          : stage_time(in, plan, layer, layers.first_larger == 0 ? layers.larger : layers.first, &embedding,
                       v ? &head : nullptr, exchange);
  const StageTime middle =
      plan.pp > 2 ? stage_time(in, plan, layer, layers.larger, nullptr, nullptr, exchange) : first;
  const StageTime& slower = first.total() > middle.total() ? first : middle;
  const StageTime& slowest = slower.total() > last.total() ? slower : last;
  // A micro-batch passes every stage once before the slowest one works without pause.
  double all = last.total();
  if (!one) {
    const int smaller = std::max(0, layers.first_larger - 1);
    all += first.total() + (plan.pp - 2 - smaller) * middle.total();
    if (smaller > 0)
      all += smaller * stage_time(in, plan, layer, layers.first, nullptr, nullptr, exchange).total();
  }
  const double fill = bubble_seconds(plan, all - slowest.total(), (plan.pp - 1) * middle.backward.weight);

  Breakdown b;
  const PassCost work = [&] {
    PassCost sum = slowest.forward;
    sum += slowest.backward;
    return sum;
  }();
  b.gemm = microbatches * work.gemm;
  b.attention = microbatches * work.attention;
  b.memory = microbatches * work.memory;
  b.tp = microbatches * work.tp;
  b.cp = microbatches * work.cp;
  b.ep = microbatches * work.ep;
  b.pp = microbatches * slowest.exchange;
  b.host = microbatches * slowest.idle;
  b.bubble = fill;

  const bool last_binds = &slowest == &last;
  const LocalParams params = local_params(in.model, plan, last_binds ? layers.last : layers.larger,
                                          one || &slowest == &first, last_binds);
  if (!plan.lora && !plan.forward_only) {
    const double forward = slowest.forward_s, backward = slowest.backward_s;
    if (plan.shards > 1) {
      b.dp = sharded_seconds(in, plan, params, forward, backward);
      const int copies = plan.dp() * plan.cp / plan.shards;
      if (copies > 1)
        b.dp += exposed_data_parallel(in, plan, params.total() / plan.shards, copies, plan.tp * plan.shards,
                                      forward, backward);
    } else {
      b.dp =
          exposed_data_parallel(in, plan, params.dense, plan.dp() * plan.cp, plan.tp, forward, backward) +
          exposed_data_parallel(in, plan, params.experts, plan.edp(), plan.etp * plan.ep, forward, backward);
      // Split gradients are reduced after every micro-batch.
      if (plan.shard_grads && plan.microbatches() > 1) {
        const double again =
            data_parallel_seconds(in, plan, params.dense, plan.dp() * plan.cp, plan.tp).reduce +
            data_parallel_seconds(in, plan, params.experts, plan.edp(), plan.etp * plan.ep).reduce;
        b.dp += (microbatches - 1) * exposed_seconds(in.constants, again, backward);
      }
    }
    b.optimizer = update_seconds(in, plan, params);
  }
  b.offload = microbatches * offload_seconds(in, plan, slowest.forward_s, slowest.backward_s);
  b.step = (plan.gpus > 1 ? in.constants.step_ms : in.constants.step_single_ms) * kMilli;

  return summed(in, plan, b);
}

int balanced_last_stage(const CostInputs& in, const ParallelPlan& plan) {
  return plan.pp == 1 ? 0 : balanced_last_stage(in.model, plan, stage_prices(in, plan));
}

int balanced_last_stage(const ModelShape& model, const ParallelPlan& plan, const StagePrices& prices) {
  if (plan.pp == 1 || plan.schedule == Schedule::zb_v) return 0;
  const PassPair &layer = prices.layer, &head = prices.head;
  const double each =
      std::max(layer.forward.gpu() + layer.backward.gpu(), layer.forward.host + layer.backward.host);
  const double more = head.forward.gpu() + head.backward.gpu();
  const int total = static_cast<int>(model.layers);
  const int even = (total + plan.pp - 1) / plan.pp;
  int best = 0;
  double least = 1e300;
  for (int last = even; last >= std::max(1, even / 2); --last) {
    const double others = std::ceil(static_cast<double>(total - last) / (plan.pp - 1));
    const double slowest = std::max(others * each, last * each + more);
    if (slowest < least * (1 - 1e-9)) least = slowest, best = last;
  }
  return best;
}

std::string_view what_binds(const CostInputs& in, const ParallelPlan& plan, const Prediction& prediction) {
  const Breakdown& b = prediction.breakdown;
  const bool tp_crosses = place_group(in.cluster, plan.tp, 1).domains > 1;
  const bool cp_crosses = place_group(in.cluster, plan.cp, plan.tp).domains > 1;
  const bool dp_crosses = place_group(in.cluster, plan.dp() * plan.cp, plan.tp).domains > 1;
  double nic = (tp_crosses ? b.tp : 0) + (cp_crosses ? b.cp : 0) + (dp_crosses ? b.dp : 0);
  double nvlink = (tp_crosses ? 0 : b.tp) + (cp_crosses ? 0 : b.cp) + (dp_crosses ? 0 : b.dp);
  (prediction.network_binds_experts ? nic : nvlink) += b.ep;
  const std::array<std::pair<double, std::string_view>, 6> parts{{{b.gemm + b.attention, "compute"},
                                                                  {nic, "NIC"},
                                                                  {nvlink, "NVLink"},
                                                                  {b.host, "host"},
                                                                  {b.bubble, "bubble"},
                                                                  {b.memory + b.optimizer, "memory"}}};
  return std::max_element(parts.begin(), parts.end())->second;
}

}  // namespace megatron::autotune
