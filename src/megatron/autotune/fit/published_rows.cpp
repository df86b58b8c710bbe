#include "megatron/autotune/fit/published_rows.h"

#include <fmt/core.h>

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

std::string text(const Json& row, std::string_view key) {
  const Json* value = row.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::optional<int64_t> number(const Json& row, std::string_view key) {
  const Json* value = row.find(key);
  if (value == nullptr || value->is_null()) return {};
  const int64_t result = value->as_int();
  if (result < 0 || result > (int64_t{1} << 32)) throw ConfigError(fmt::format("{} is {}", key, result));
  return result;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Precision precision_of(std::string_view name) {
  if (name.starts_with("FP8")) return Precision::fp8;
  if (name.starts_with("MXFP8")) return Precision::mxfp8;
  if (name.starts_with("NVFP4")) return Precision::nvfp4;
  return Precision::bf16;
}

bool is_blackwell(std::string_view system) { return system.starts_with("B") || system.starts_with("GB"); }

const Stack& stack_of(std::string_view source, std::string_view note, std::string_view system,
                      std::string_view release) {
  if (contains(source, "torchtitan"))
    return stack_named(contains(note, "eager") ? "torch-eager" : "torchtitan");
  if (contains(source, "llmq")) return stack_named("llmq");
  if (contains(source, "torch.compile")) return stack_named("torch-compile");
  if (contains(source, "Automodel")) return stack_named("automodel");
  return stack_named(is_blackwell(system) && release >= "26.06" ? "megatron-core-26.06" : "megatron-core");
}

// Why a row says nothing about the cost model: its software or its flags are known to differ from what is
// assumed.
std::string exclusion(const Json& row, std::string_view source, std::string_view note) {
  const std::string model = text(row, "model"), release = text(row, "container"),
                    system = text(row, "system");
  const std::string precision = text(row, "precision");
  if (contains(note, "tokendrop")) return "token drop, capacity padding";
  if (contains(source, "Automodel")) return "AutoModel, checkpointing or offload not stated";
  if (model.starts_with("gpt-oss") && release < "26.06")
    return "gpt-oss before 26.06, attention with sinks on a slow path";
  if (model.starts_with("gpt-oss") && release == "26.06.01")
    return "gpt-oss 26.06.01, a regression of its attention";
  if (model == "qwen3-30b-a3b" && system == "H100" && (release == "25.11" || release == "26.02"))
    return "Qwen3-30B 25.11 and 26.02, same plan 77 % faster a release later";
  if (contains(source, "llmq") && system == "H100" &&
      (model == "qwen2.5-14b" || (precision == "FP8" && (model == "qwen2.5-3b" || model == "qwen2.5-7b"))))
    return "llmq FP8 of 3B and more and all 14B, offload not stated";
  if (model == "qwen3-235b-a22b" && system == "B300" && release < "26.04")
    return "B300 Qwen3-235B before 26.04";
  if (contains(precision, "rowwise")) return "torchtitan rowwise FP8, a known slow kernel";
  if (contains(source, "torchtitan") && number(row, "seq").value_or(0) >= 131072)
    return "torchtitan, sequences of 128k and more";
  if (model == "megatron-gpt-1.7b" || model == "megatron-gpt-7.1b")
    return "Megatron-LM 1.7B and 7.1B, unfused loss and unknown micro-batch";
  return "";
}

// What recipes switch on, as far as a row does not say it.
void assume_flags(ParallelPlan& plan, const ModelShape& model, const std::string& system,
                  std::string_view source, std::string_view release) {
  const bool megatron = contains(source, "NVIDIA");
  plan.tp_overlap = megatron && plan.tp > 1 && !model.moe();
  // Experts' exchanges run beside another micro-batch where groups span nodes, then through plain all-to-all.
  const bool nodes_of_eight = !system.starts_with("GB");
  plan.ep_overlap = megatron && plan.ep > 8 && plan.pp > 1 && nodes_of_eight;
  plan.deduplicating_dispatcher = megatron && (!plan.ep_overlap || is_blackwell(system));
  // Before 26.02.01 the small models' steps on nodes of eight ran without graphs: the host's time of a MoE
  // layer explains them.
  const bool early = nodes_of_eight && release < "26.02.01" && plan.pp == 1;
  plan.cuda_graphs = megatron && model.moe() && system != "H100" && !early;
  if (model.mamba_layers > 0) plan.recompute = Recompute::moe;
}

}  // namespace

std::optional<TableRow> published_row(const Json& row, std::shared_ptr<const ModelShape> model) {
  TableRow result;
  const std::string source = text(row, "source"), note = text(row, "note"), system = text(row, "system");
  result.id = row.at("id").as_int();
  result.model = model;
  result.moe = model->moe();
  ParallelPlan& plan = result.plan;
  plan.gpus = static_cast<int>(std::clamp<int64_t>(number(row, "gpus").value_or(1), 1, 1 << 20));
  plan.gbs = std::max<int64_t>(1, number(row, "gbs").value_or(1));
  plan.seq = std::max<int64_t>(1, number(row, "seq").value_or(4096));
  const auto tp = number(row, "tp"), pp = number(row, "pp"), cp = number(row, "cp"), vp = number(row, "vp"),
             ep = number(row, "ep"), mbs = number(row, "mbs");
  if (!tp || !pp || !cp || *tp < 1 || *pp < 1 || *cp < 1) return {};
  if (*tp > plan.gpus || *pp > plan.gpus || *cp > plan.gpus || *tp * *pp * *cp > plan.gpus)
    throw ConfigError("tp x pp x cp is more than the GPUs");
  plan.tp = static_cast<int>(std::min<int64_t>(*tp, plan.gpus));
  plan.pp = static_cast<int>(std::min<int64_t>(*pp, plan.gpus));
  plan.cp = static_cast<int>(std::min<int64_t>(*cp, plan.gpus));
  plan.vpp = static_cast<int>(std::clamp<int64_t>(vp.value_or(1), 1, 1000));
  plan.ep = static_cast<int>(std::clamp<int64_t>(ep.value_or(1), 1, plan.gpus));
  plan.mbs = std::clamp<int64_t>(mbs.value_or(1), 1, plan.gbs);
  const int64_t shards = number(row, "fsdp").value_or(0);
  // Context ranks share in the sharding.
  plan.shards = shards * plan.cp > 1 && shards > 0
                    ? static_cast<int>(std::min<int64_t>(shards * plan.cp, plan.gpus))
                    : 0;
  plan.precision = precision_of(text(row, "precision"));
  plan.lora = text(row, "task") == "lora";
  const std::string recompute = text(row, "recompute");
  if (recompute == "full") plan.recompute = Recompute::full;
  if (recompute.starts_with("selective (op)")) plan.recompute = Recompute::half_gemms;
  result.cluster = cluster_of(gpu_spec(system), plan.gpus);
  const std::string release = text(row, "container");
  // gpt-oss does not show what other models' experts gained in 26.06.
  const bool gained = !model->name.starts_with("gpt-oss");
  result.stack = &stack_of(source, note, system, gained ? release : "");
  assume_flags(plan, *model, system, source, release);
  if (contains(note, "async TP")) plan.tp_overlap = true;
  result.excluded = exclusion(row, source, note);
  const bool complete = mbs && vp && (ep || !model->moe());
  const std::string kind = model->moe() ? "MoE" : complete ? "dense" : "dense, mbs unknown";
  result.set = fmt::format("{} {}", system, kind);
  result.family = model->name;
  result.configuration =
      fmt::format("{} {} {} {} gbs{} seq{} {} {}", system, model->name, text(row, "task"),
                  precision_name(plan.precision), plan.gbs, plan.seq, plan.gpus, plan_text(plan));
  result.group = fmt::format("{} {} {} {} {} gbs{} seq{} {}", source, text(row, "container"), system,
                             model->name, text(row, "task"), plan.gbs, plan.seq, text(row, "precision"));
  result.release = fmt::format("{} {} {}", source, text(row, "container"), system);
  result.fitted = system == "H100" && complete && result.excluded.empty();

  if (const Json* memory = row.find("memory_gib"); memory != nullptr && memory->is_number())
    result.memory_gib = memory->as_double();
  const Json* tokens = row.find("tokens_s_gpu");
  const Json* tflops = row.find("tflops_gpu");
  if (tokens != nullptr && tokens->is_number()) {
    result.measured = tokens->as_double();
  } else if (tflops != nullptr && tflops->is_number()) {
    // Megatron-LM counts masked attention too.
    double flops = model->flops_per_token(plan.seq);
    if (!contains(text(row, "tflops_convention"), "halved"))
      flops += 3 * 2 * model->mean_context(plan.seq) * (model->query_width() + model->value_width()) *
               static_cast<double>(model->layers);
    result.measured = tflops->as_double() * 1e12 / flops;
  } else {
    return {};
  }
  if (!(result.measured > 0)) throw ConfigError("the published figure is not positive");
  if (plan.pp > 1) {
    plan.last_stage_layers = balanced_last_stage(result.inputs(Calibration{}), plan);
  }
  return result;
}

}  // namespace megatron::autotune
