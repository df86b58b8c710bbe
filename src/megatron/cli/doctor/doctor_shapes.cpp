#include <algorithm>

#include "megatron/autograd/rank_context.h"
#include "megatron/base/cache_folder.h"
#include "megatron/base/counted.h"
#include "megatron/base/error.h"
#include "megatron/cli/doctor/doctor.h"
#include "megatron/cli/version.h"
#include "megatron/kernels/attention_dispatch.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/launch_problems.h"
#include "megatron/training/plan/plan.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

constexpr double kGib = 1 << 30;

DType dtype_of(const Config& config) {
  return config.precision.bf16 ? DType::BF16 : config.precision.fp16 ? DType::F16 : DType::F32;
}

// One micro-batch of attention as one rank computes it, in a layer that sees all keys or only a window of
// them; where ranks share the sequences' length, as if they did not.
AttentionKernels attention_of(const Config& config, Device device, bool windowed) {
  RankContext ctx(device, 1);
  const ModelConfig& model = config.model;
  const int64_t tp = config.parallel.tensor_model_parallel_size,
                batch = std::max<int64_t>(1, config.train.micro_batch_size);
  const int64_t heads = model.num_attention_heads / tp, tokens = batch * model.seq_length;
  int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  int64_t d = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / model.num_attention_heads,
          dv = d;
  if (model.multi_latent_attention) {
    groups = model.num_attention_heads;
    d = model.qk_head_dim + model.qk_pos_emb_head_dim;
    dv = model.v_head_dim;
  }
  groups = std::max<int64_t>(1, groups / tp);
  const DType dtype = dtype_of(config), wide = accumulation_dtype(dtype);
  auto make = [&](int64_t count, int64_t channels) { return ctx.zeros({tokens, count, channels}, dtype); };
  AttentionBackwardArgs args;
  AttentionArgs& f = args.forward;
  f.q = make(heads, d), f.k = make(groups, d), f.v = make(groups, dv), f.o = make(heads, dv);
  f.lse = ctx.zeros({heads, tokens}, wide);
  f.batch = batch;
  f.causal = !model.bidirectional_attention;
  f.dropout = model.attention_dropout;
  f.offsets.global_heads = heads;
  if (!model.multi_latent_attention) {
    if (windowed) f.window_left = model.window_size[0];
    f.softcap = model.attn_logit_softcapping.value_or(0);
    if (model.softmax_type != SoftmaxType::vanilla) f.sinks = ctx.zeros({heads}, dtype);
    if (model.softmax_type == SoftmaxType::learnable) args.dsinks = ctx.zeros({heads}, wide);
  }
  args.grad_o = make(heads, dv);
  args.dq = make(heads, d), args.dk = make(groups, d), args.dv = make(groups, dv);
  args.deterministic = config.precision.deterministic_mode;
  AttentionKernels kernels = probe_attention(ctx.kernel_context(), args);
  ctx.stream.synchronize();
  return kernels;
}

// Of the CPU: the one that the build has.
std::string matrix_library() {
  for (const BuildOption& option : build_info().options)
    if ((option.name == "oneDNN" || option.name == "OpenBLAS") && option.value != "left out")
      return fmt::format("{} where it takes them, else own", option.name);
  return "own";
}

bool has_mixer(const ModelConfig& model, std::initializer_list<MixerKind> kinds) {
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    if (std::find(kinds.begin(), kinds.end(), mixer_kind(model, layer)) != kinds.end()) return true;
  return false;
}

// Of the layers with attention: whether some see all keys (false), whether some see a window (true).
std::vector<bool> attention_kinds(const ModelConfig& model) {
  std::vector<bool> kinds;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const MixerKind kind = mixer_kind(model, layer);
    if (kind != MixerKind::attention && kind != MixerKind::latent_attention) continue;
    const bool windowed = kind == MixerKind::attention && has_window(model, layer);
    if (std::find(kinds.begin(), kinds.end(), windowed) == kinds.end()) kinds.push_back(windowed);
  }
  return kinds;
}

std::string kernel_of(const AttentionDispatch& dispatch) {
  return dispatch.refused.empty() ? dispatch.kernel
                                  : fmt::format("{}, for {}", dispatch.kernel, dispatch.refused);
}

}  // namespace

CheckList shape_section(const Resolved& resolved, const GpuReport& report, const Machine& machine) {
  const Config& config = resolved.config;
  CheckList section{"this model", {}};
  auto add = [&](Grade grade, std::string subject, std::string text, std::string advice = "") {
    section.findings.push_back({grade, std::move(subject), std::move(text), std::move(advice)});
  };
  const bool cuda = config.run.device != DeviceChoice::cpu && !report.gpus.empty();
  if (config.run.device == DeviceChoice::cuda && !cuda) {
    add(Grade::Wrong, "device", "cuda was asked for, but no usable GPU is there",
        "leave --device out, or use --device cpu");
    return section;
  }
  const Device device = cuda ? Device{DeviceType::Cuda, 0} : kCpu;
  const ModelConfig& model = config.model;
  std::optional<RunPlan> plan;
  std::string no_plan;
  try {
    plan = plan_run(resolved);
  } catch (const ConfigError& error) {
    no_plan = error.what();
  }
  if (plan)
    for (const Problem& problem : launch_problems(resolved, plan->refusals))
      add(Grade::Wrong, "kernels", fmt::format("{} = {}: {}", problem.setting, problem.value, problem.reason),
          problem.fix);
  if (!section.findings.empty()) return section;
  add(Grade::Ok, "device", fmt::format("{}, {}", cuda ? "cuda" : "cpu", dtype_of(config)));
  add(Grade::Ok, "gemm",
      cuda ? config.precision.deterministic_mode || cache_folder().empty()
                 ? "cuBLASLt, its first proposal for each shape"
                 : "cuBLASLt, the fastest of its proposals for each shape, measured in the first step of "
                   "training"
           : fmt::format("{} ({})", matrix_library(), cpu_instruction_set()));
  if (config.precision.fp8 != Fp8Format::none) {
    const bool fits = model.hidden_size % 16 == 0 && model.ffn_hidden_size % 16 == 0 &&
                      (model.num_moe_experts == 0 || model.moe_ffn_hidden_size % 16 == 0);
    const char* which = model.num_moe_experts > 0 ? "linears of attention, MLP and experts"
                                                  : "attention's and the MLP's linears";
    add(fits ? Grade::Ok : Grade::Note, "fp8", fits ? which : "some shapes stay in bf16",
        fits ? "" : "make hidden_size, ffn_hidden_size and moe_ffn_hidden_size multiples of 16");
  }
  for (const bool windowed : attention_kinds(model)) {
    const AttentionKernels kernels = attention_of(config, device, windowed);
    const bool dropped = cuda && model.attention_dropout > 0;
    add(dropped ? Grade::Note : Grade::Ok, "attention",
        fmt::format("{}: {}", kernels.forward.shape, kernel_of(kernels.forward)),
        dropped ? fmt::format("attention_dropout = {} keeps it from cuDNN: --attention-dropout 0",
                              model.attention_dropout)
                : "");
    add(Grade::Ok, "its gradient", kernel_of(kernels.backward));
  }
  if (has_mixer(model, {MixerKind::mamba, MixerKind::delta_net}))
    add(Grade::Ok, "scans", "own, in chunks with states between them");
  if (!plan) {
    add(Grade::Wrong, "memory", no_plan, "mend the layout; megatron plan tells more");
    return section;
  }
  const int64_t ranks = std::max<int64_t>(1, config.run.ranks);
  const auto gpus = static_cast<int64_t>(report.gpus.size());
  const int64_t sharing = cuda ? (ranks + gpus - 1) / gpus : ranks;
  const double needed = plan->largest().bytes() * static_cast<double>(sharing);
  const double there = static_cast<double>(
      cuda ? report.gpus[0].free_bytes
           : std::min(machine.available_memory, machine.memory_limit.value_or(~uint64_t{0})));
  const bool fits = needed < there;
  add(fits ? Grade::Ok : Grade::Wrong, "memory",
      fmt::format("{:.2f} GiB of {:.1f} for {} {}", needed / kGib, there / kGib, counted(sharing, "rank"),
                  cuda ? "on a GPU" : "on this machine"),
      fits ? "" : "megatron plan --memory-gib tells which settings help");
  return section;
}

}  // namespace megatron
