#include <algorithm>

#include "megatron/autograd/rank_context.h"
#include "megatron/base/error.h"
#include "megatron/cli/doctor.h"
#include "megatron/cli/version.h"
#include "megatron/kernels/choices.h"
#include "megatron/training/parallel_setup.h"
#include "megatron/training/plan.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

constexpr double kGib = 1 << 30;

DType dtype_of(const Config& config) {
  return config.precision.bf16 ? DType::BF16 : config.precision.fp16 ? DType::F16 : DType::F32;
}

// The attention of one rank for one sequence of the first layer that has one.
struct Heads {
  int64_t length, heads, groups, d, dv;
};
Heads heads_of(const Config& config) {
  const ModelConfig& model = config.model;
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  int64_t d = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / model.num_attention_heads,
          dv = d;
  if (model.multi_latent_attention) {
    groups = model.num_attention_heads;
    d = model.qk_head_dim + model.qk_pos_emb_head_dim;
    dv = model.v_head_dim;
  }
  return {model.seq_length, model.num_attention_heads / tp, std::max<int64_t>(1, groups / tp), d, dv};
}

AttentionChoice attention_of(const Config& config, Device device) {
  RankContext ctx(device, 1);
  const Heads h = heads_of(config);
  const DType dtype = dtype_of(config), stats = accumulation_dtype(dtype);
  auto make = [&](int64_t heads, int64_t channels) { return ctx.zeros({h.length, heads, channels}, dtype); };
  AttentionBackwardArgs args;
  AttentionArgs& f = args.forward;
  f.q = make(h.heads, h.d), f.k = make(h.groups, h.d), f.v = make(h.groups, h.dv), f.o = make(h.heads, h.dv);
  f.lse = ctx.zeros({h.heads, h.length}, stats);
  f.dropout = config.model.attention_dropout;
  f.place.global_heads = h.heads;
  args.grad_o = make(h.heads, h.dv);
  args.dq = make(h.heads, h.d), args.dk = make(h.groups, h.d), args.dv = make(h.groups, h.dv);
  args.deterministic = config.precision.deterministic_mode;
  AttentionChoice choice = choose_attention(ctx.kernel_context(), args);
  ctx.stream.synchronize();
  return choice;
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

}  // namespace

CheckList shape_section(const Config& config, int64_t world_size, const GpuReport& report,
                        const Machine& machine) {
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
  add(Grade::Ok, "device", fmt::format("{}, {}", cuda ? "cuda" : "cpu", dtype_of(config)));
  add(Grade::Ok, "products",
      cuda ? "cuBLASLt, the fastest of its proposals for each shape"
           : fmt::format("{} ({})", matrix_library(), cpu_instruction_set()));
  if (config.precision.fp8 != Fp8Format::none) {
    const bool fits = model.hidden_size % 16 == 0 && model.ffn_hidden_size % 16 == 0;
    add(fits ? Grade::Ok : Grade::Note, "fp8",
        fits ? "attention's and the MLP's linears" : "some shapes stay in bf16",
        fits ? "" : "make hidden_size and ffn_hidden_size multiples of 16");
    for (size_t i = 0; cuda && i < report.gpus.size(); ++i)
      if (config.precision.fp8_recipe == Fp8Recipe::blockwise && report.gpus[i].compute_capability != 90)
        add(Grade::Wrong, "fp8",
            fmt::format("cuda:{} has no products with a scale per block: they need compute capability 9.0",
                        i),
            "use --fp8-recipe tensorwise");
  }
  if (has_mixer(model, {MixerKind::attention, MixerKind::latent_attention})) {
    const Heads h = heads_of(config);
    const AttentionChoice choice = attention_of(config, device);
    const std::string shape = fmt::format("{} tokens, {} heads of {}/{} channels on {} key heads", h.length,
                                          h.heads, h.d, h.dv, h.groups);
    const bool dropped = cuda && choice.forward != "cuDNN" && model.attention_dropout > 0;
    add(dropped ? Grade::Note : Grade::Ok, "attention", fmt::format("{}: {}", shape, choice.forward),
        dropped ? fmt::format("attention_dropout = {} keeps it from cuDNN: --attention-dropout 0",
                              model.attention_dropout)
                : "");
    add(Grade::Ok, "its gradient", choice.backward);
  }
  if (has_mixer(model, {MixerKind::mamba, MixerKind::delta_net}))
    add(Grade::Ok, "scans", "own, in chunks with states between them");
  const int64_t model_ranks = config.parallel.tensor_model_parallel_size *
                              config.parallel.pipeline_model_parallel_size *
                              config.parallel.context_parallel_size;
  try {
    Config whole = config;
    const ParallelSizes sizes = parallel_sizes(whole, world_size > 0 ? world_size : model_ranks);
    if (whole.train.micro_batch_size == 0) whole.train.micro_batch_size = 1;
    if (whole.train.global_batch_size == 0)
      whole.train.global_batch_size = whole.train.micro_batch_size * sizes.dp();
    const RunPlan plan = plan_run(whole, sizes, dtype_of(config));
    const int64_t ranks = std::max<int64_t>(1, config.run.ranks);
    const auto gpus = static_cast<int64_t>(report.gpus.size());
    const int64_t sharing = cuda ? (ranks + gpus - 1) / gpus : ranks;
    const double needed = plan.largest().bytes() * static_cast<double>(sharing);
    const double there = static_cast<double>(
        cuda ? report.gpus[0].free_bytes
             : std::min(machine.available_memory, machine.memory_limit.value_or(~uint64_t{0})));
    const bool fits = needed < there;
    add(fits ? Grade::Ok : Grade::Wrong, "memory",
        fmt::format("{:.2f} GiB of {:.1f} for {} rank{} {}", needed / kGib, there / kGib, sharing,
                    sharing == 1 ? "" : "s", cuda ? "on a GPU" : "on this machine"),
        fits ? "" : "megatron plan --memory-gib tells which settings help");
  } catch (const ConfigError& error) {
    add(Grade::Wrong, "memory", error.what(), "mend the layout; megatron plan tells more");
  }
  return section;
}

}  // namespace megatron
