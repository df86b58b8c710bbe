#include "megatron/autotune/report/plan_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace megatron::autotune {
namespace {

constexpr double kGibibyte = 1073741824.0;
constexpr size_t kShown = 10;

// 1234567 as "1,234,567".
std::string grouped(double number) {
  const std::string digits = fmt::format("{:.0f}", number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string model_text(const ModelShape& m) {
  const double billions = m.params() / 1e9;
  return billions < 1 ? fmt::format("{:.0f}M", billions * 1e3) : fmt::format("{:.1f}B", billions);
}

std::string head_text(const CostInputs& in, int gpus, int64_t gbs, int64_t seq, Precision precision) {
  return fmt::format("{} parameters on {} x {}; {} x {} tokens a step, {}\n", model_text(in.model), gpus,
                     in.cluster.gpu.name, gbs, seq, precision_name(precision));
}

std::string bar(double share, int width) {
  return std::string(
      static_cast<size_t>(std::clamp(std::lround(share * width), 0L, static_cast<long>(width))), '#');
}

std::string time_text(const Prediction& p) {
  std::string text;
  for (const auto& [name, seconds] : parts_of(p.breakdown)) {
    if (seconds < 5e-4 * p.seconds) continue;
    text += fmt::format("  {:<10} {:>9.1f} ms {:>5.1f} %  {}\n", name, seconds * 1e3,
                        100 * seconds / p.seconds, bar(seconds / p.seconds, 40));
  }
  return text;
}

std::string memory_text(const CostInputs& in, const MemoryUse& use) {
  std::string text;
  const auto line = [&](std::string_view name, double bytes) {
    if (bytes > 0.0005 * use.total()) text += fmt::format("  {:<12} {:>7.2f} GiB\n", name, bytes / kGibibyte);
  };
  line("weights", use.weights);
  line("gradients", use.gradients);
  line("optimizer", use.optimizer);
  line("activations", use.activations);
  line("logits", use.logits);
  line("other", use.other);
  return text + fmt::format("  {:<12} {:>7.2f} GiB of {:.1f}: {}\n", "all", use.total() / kGibibyte,
                            in.cluster.gpu.memory_gib, fits(in, use) ? "fits" : "does not fit");
}

Json breakdown_json(const Prediction& p) {
  Json json = Json::object();
  for (const auto& [name, seconds] : parts_of(p.breakdown)) json[name] = seconds * 1e3;
  return json;
}

Json plan_json(const ParallelPlan& plan) {
  Json json = Json::object();
  json["tp"] = plan.tp;
  json["pp"] = plan.pp;
  json["vpp"] = plan.vpp;
  json["cp"] = plan.cp;
  json["dp"] = plan.dp();
  json["ep"] = plan.ep;
  json["etp"] = plan.etp;
  json["micro_batch_size"] = plan.mbs;
  json["recompute"] = recompute_name(plan.recompute);
  json["recompute_share"] = plan.recompute == Recompute::none ? 0.0 : plan.recompute_share;
  json["sharding"] = plan.shards > 1 ? "fsdp" : plan.shard_grads ? "optimizer and gradients" : "optimizer";
  if (plan.shards > 1) json["shards"] = plan.shards;
  json["last_stage_layers"] = plan.last_stage_layers;
  json["schedule"] = schedule_name(plan.schedule);
  json["cp_comm_type"] = exchange_name(plan.cp_exchange);
  Json& modules = json["recompute_modules"] = Json::array();
  for (const std::string_view name : module_names(plan.modules)) modules.push_back(name);
  json["offload_share"] = plan.offload_share;
  json["cuda_graphs"] = plan.cuda_graphs;
  json["precision"] = precision_name(plan.precision);
  return json;
}

Json figures_json(const CostInputs& in, const ParallelPlan& plan, const Prediction& p, double bytes) {
  Json json = Json::object();
  json["iter_ms"] = p.seconds * 1e3;
  json["uncertainty"] = p.uncertainty;
  json["tok_s_gpu"] = p.tokens_per_second_per_gpu;
  json["tflops"] = p.tflops_per_gpu;
  json["mfu"] = p.mfu;
  json["mem_gib"] = bytes / kGibibyte;
  json["binds"] = what_binds(in, plan, p);
  json["breakdown_ms"] = breakdown_json(p);
  return json;
}

// What a plan does beside its sizes, in a few letters: "full 50%", "norm+act fsdp", "zb-v a2a graphs".
std::string extras_text(const ParallelPlan& plan) {
  std::string text;
  const auto add = [&](std::string_view word) { text += fmt::format("{}{}", text.empty() ? "" : " ", word); };
  constexpr std::pair<RecomputeModule, std::string_view> brief[] = {
      {recompute_layernorm, "norm"}, {recompute_mlp_act, "act"}, {recompute_mlp, "mlp"},
      {recompute_moe_act, "act"},    {recompute_moe, "moe"},     {recompute_shared_experts, "shared"},
      {recompute_mla_up_proj, "mla"}};
  if (plan.recompute == Recompute::selective) {
    std::string names;
    for (const auto& [module, name] : brief)
      if (plan.recomputes(module)) names += fmt::format("{}{}", names.empty() ? "" : "+", name);
    add(names);
  } else if (plan.recompute != Recompute::none) {
    add(plan.recompute_share >= 1
            ? std::string(recompute_name(plan.recompute))
            : fmt::format("{} {:.0f}%", recompute_name(plan.recompute), 100 * plan.recompute_share));
  }
  if (plan.schedule != Schedule::one_f_one_b) add(schedule_name(plan.schedule));
  if (plan.cp > 1 && plan.cp_exchange != ContextExchange::ring)
    add(plan.cp_exchange == ContextExchange::all_gather ? "ag" : "a2a");
  if (plan.shards > 1) add(plan.shards < plan.dp() * plan.cp ? "hsdp" : "fsdp");
  if (plan.shard_grads) add("zero2");
  if (plan.offload_share > 0) add(fmt::format("off {:.0f}%", 100 * plan.offload_share));
  if (plan.cuda_graphs) add("graphs");
  if (plan.etp > 1) add(fmt::format("etp{}", plan.etp));
  if (plan.unequal()) add(fmt::format("{}xtp{}", plan.reduced_replicas, plan.tp - plan.tp_spares));
  if (plan.packed > 0) add(fmt::format("packed{}", plan.seq));
  if (text.size() > 18) text = text.substr(0, 17) + "~";
  return text.empty() ? "-" : text;
}

}  // namespace

std::string prediction_text(const CostInputs& in, const ParallelPlan& plan) {
  const Prediction p = predict(in, plan);
  return head_text(in, plan.gpus, plan.gbs, plan.seq, plan.precision) +
         fmt::format("plan {} dp{}\n\n", plan_text(plan), plan.dp()) +
         fmt::format(
             "{:.1f} ms an iteration (+-{:.0f} %), {} tokens/s/GPU, {:.0f} TFLOP/s/GPU, MFU {:.1f} %\n",
             p.seconds * 1e3, 100 * p.uncertainty, grouped(p.tokens_per_second_per_gpu), p.tflops_per_gpu,
             100 * p.mfu) +
         time_text(p) + "\nmemory of the fullest GPU\n" + memory_text(in, memory_use(in, plan));
}

Json prediction_json(const CostInputs& in, const ParallelPlan& plan) {
  Json json = Json::object();
  json["plan"] = plan_json(plan);
  const MemoryUse use = memory_use(in, plan);
  json["predicted"] = figures_json(in, plan, predict(in, plan), use.total());
  json["fits"] = fits(in, use);
  Json& memory = json["memory_bytes"] = Json::object();
  memory["weights"] = use.weights;
  memory["gradients"] = use.gradients;
  memory["optimizer"] = use.optimizer;
  memory["activations"] = use.activations;
  memory["logits"] = use.logits;
  memory["other"] = use.other;
  return json;
}

std::string explain_text(const CostInputs& in, const ParallelPlan& plan) {
  const Prediction p = predict(in, plan);
  std::string text = prediction_text(in, plan) + fmt::format("\nwhat binds: {}\n", what_binds(in, plan, p));
  if (p.network_binds_experts && p.breakdown.ep > 0.05 * p.seconds)
    text += "the experts' exchange is NIC-bound: its groups leave the NVLink domain\n";
  for (const bool machine : {false, true}) {
    text += machine ? "\nanother machine\n" : "\nanother plan\n";
    int shown = 0;
    for (const WhatIf& other : what_if(in, plan)) {
      if (other.machine != machine || shown == 6) continue;
      text += fmt::format("  {:<28} {:>+6.1f} % time{}\n", other.change,
                          100 * (other.seconds / p.seconds - 1), other.fits ? "" : ", does not fit");
      ++shown;
    }
  }
  return text;
}

Json explain_json(const CostInputs& in, const ParallelPlan& plan) {
  Json json = prediction_json(in, plan);
  const double seconds = predict(in, plan).seconds;
  Json& changes = json["changes"] = Json::array();
  for (const WhatIf& other : what_if(in, plan)) {
    Json entry = Json::object();
    entry["change"] = other.change;
    entry["time"] = other.seconds / seconds - 1;
    entry["fits"] = other.fits;
    entry["of"] = other.machine ? "machine" : "plan";
    changes.push_back(std::move(entry));
  }
  return json;
}

std::string search_text(const SearchRequest& request, const SearchResult& r) {
  const CostInputs& in = request.in;
  std::string text = head_text(in, in.cluster.gpus(), request.gbs, request.seq, request.precision);
  text += fmt::format("{} plans, {} fit, in {:.2f} s\n", grouped(static_cast<double>(r.plans)),
                      grouped(static_cast<double>(r.fitting)), r.seconds);
  if (r.best.empty())
    return text + "no plan fits: take more GPUs, a smaller micro-batch or a shorter sequence\n";
  constexpr std::string_view row = "{:>2} {:>3}{:>4}{:>4}{:>4}{:>4}{:>4} {:<18} {:>9}{:>4}{:>6}{:>6} {}\n";
  text += "\n" + fmt::format(row, "", "tp", "pp", "vp", "cp", "ep", "mbs", "recompute, shards", "tok/s/GPU",
                             "+-%", "MFU %", "GiB", "binds");
  for (size_t i = 0; i < std::min(kShown, r.best.size()); ++i) {
    const Candidate& c = r.best[i];
    const ParallelPlan& p = c.plan;
    text += fmt::format(
        row, i + 1, p.tp, p.pp, p.vpp, p.cp, p.ep, p.mbs, extras_text(p),
        grouped(c.prediction.tokens_per_second_per_gpu),
        fmt::format("{:.0f}", 100 * c.prediction.uncertainty), fmt::format("{:.1f}", 100 * c.prediction.mfu),
        fmt::format("{:.1f}", c.planned.value_or(c.bytes) / kGibibyte), what_binds(in, p, c.prediction));
  }
  const Candidate& first = r.best[0];
  const auto fastest = std::min_element(
      r.best.begin(), r.best.end(),
      [](const Candidate& a, const Candidate& b) { return a.prediction.seconds < b.prediction.seconds; });
  text += "\nwhy the first: ";
  // Plans that near are a tie, which the search breaks.
  if (fastest != r.best.begin())
    text += fmt::format("{:.1f} % behind {}, but it asks for less or leaves more room;\n",
                        100 * (first.prediction.seconds / fastest->prediction.seconds - 1),
                        fastest - r.best.begin() + 1);
  text += fmt::format("{} spends\n", plan_text(first.plan)) + time_text(first.prediction);
  for (size_t i = 1; i < std::min<size_t>(4, r.best.size()); ++i)
    text += fmt::format("against {} ({:+.1f} %):\n  {}\n", i + 1,
                        100 * (r.best[i].prediction.seconds / first.prediction.seconds - 1),
                        why_faster(first.prediction, r.best[i].prediction));
  const auto ties = std::count_if(r.best.begin(), r.best.end(), [&](const Candidate& c) {
    return c.prediction.seconds < first.prediction.seconds * (1 + first.prediction.uncertainty);
  });
  text += fmt::format("{} of the best {} lie within the uncertainty: compare them by short runs\n", ties,
                      r.best.size());
  text += "\nfront of time and memory\n";
  for (size_t i = 0; i < std::min<size_t>(6, r.front.size()); ++i) {
    const Candidate& c =
        r.front[i * (r.front.size() - 1) / std::max<size_t>(1, std::min<size_t>(6, r.front.size()) - 1)];
    std::string plan = plan_text(c.plan);
    if (plan.size() > 53) plan = plan.substr(0, 50) + "...";
    text += fmt::format("  {:>9.1f} ms {:>6.1f} GiB  {}\n", c.prediction.seconds * 1e3, c.bytes / kGibibyte,
                        plan);
  }
  text += "\nrefused:";
  for (const auto& [reason, count] : r.refused)
    text += fmt::format("\n  {:>9} {}", grouped(static_cast<double>(count)), reason);
  return text + "\n";
}

Json search_json(const SearchRequest& request, const SearchResult& r) {
  Json json = Json::object();
  json["plans"] = r.plans;
  json["fitting"] = r.fitting;
  json["seconds"] = r.seconds;
  const auto list = [&](const std::vector<Candidate>& candidates) {
    Json rows = Json::array();
    for (const Candidate& c : candidates) {
      Json row = Json::object();
      row["config"] = plan_json(c.plan);
      row["predicted"] = figures_json(request.in, c.plan, c.prediction, c.bytes);
      if (c.planned) row["planned_gib"] = *c.planned / kGibibyte;
      if (c.measured) row["measured_ms"] = *c.measured * 1e3;
      if (!c.stage_layers.empty()) {
        Json& stages = row["stage_layers"] = Json::array();
        for (const int layers : c.stage_layers) stages.push_back(layers);
      }
      rows.push_back(std::move(row));
    }
    return rows;
  };
  json["candidates"] = list(r.best);
  json["front"] = list(r.front);
  Json& refused = json["rejected_counts_by_reason"] = Json::object();
  for (const auto& [reason, count] : r.refused) refused[reason] = count;
  return json;
}

}  // namespace megatron::autotune
