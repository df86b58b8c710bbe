#include "megatron/cli/bench/module_bench.h"

#include <chrono>
#include <functional>
#include <memory>

#include "megatron/autograd/op_listener.h"
#include "megatron/base/error.h"
#include "megatron/base/seconds_since.h"
#include "megatron/models/gpt.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/attention.h"
#include "megatron/transformer/latent_attention.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

// Sums up what ops cost and, where a database listens, how long each took: on a GPU the host waits for each.
class OpMeter final : public OpListener {
 public:
  OpMeter(RankContext& ctx, const ModuleBench& bench, bool timed)
      : ctx_(ctx), database_(timed ? bench.database : nullptr), spans_(timed && bench.spans) {
    ctx_.tracer = this;
    last_ = Clock::now();
  }
  ~OpMeter() override { ctx_.tracer = nullptr; }

  using OpListener::op;
  void op(const OpKey& key, const Cost& cost) override {
    flops += cost.flops;
    bytes += cost.bytes;
    if (!database_ && !spans_) return;
    ctx_.stream.synchronize();
    const auto now = Clock::now();
    const double us = std::chrono::duration<double, std::micro>(now - last_).count();
    if (database_)
      database_->add(to_string(key), key.name, phase_name(key.phase), cost.flops, cost.bytes, us);
    if (spans_) {
      const double end = std::chrono::duration<double, std::micro>(now.time_since_epoch()).count();
      spans.push_back({ctx_.rank, report::TraceLane::compute, to_string(key), end - us, end});
    }
    last_ = Clock::now();
  }

  double flops = 0, bytes = 0;
  std::vector<report::TraceSpan> spans;

 private:
  RankContext& ctx_;
  autotune::OpDatabase* database_;
  bool spans_;
  Clock::time_point last_;
};

// A module with its inputs. Hidden states have the rows of this rank.
struct Bench {
  std::vector<std::unique_ptr<Module>> parts;
  std::function<Tensor(RankContext&, const Tensor& x)> forward;
  Tensor input;
  bool differentiable = true;  // hidden states are, token ids are not
};

int64_t rows_of_rank(const Config& config, const ModuleCase& one) {
  const int64_t ranks = config.parallel.context_parallel_size *
                        (config.parallel.sequence_parallel ? config.parallel.tensor_model_parallel_size : 1);
  return one.tokens() / ranks;
}

Tensor token_ids(RankContext& ctx, const Config& config, const ModuleCase& one) {
  const int64_t rows = one.tokens() / config.parallel.context_parallel_size;
  std::vector<int64_t> ids(static_cast<size_t>(rows));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int64_t>((i * 2654435761U) % static_cast<uint64_t>(config.model.vocab_size));
  return ctx.device == kMeta ? ctx.empty({rows}, DType::I64) : ctx.from_vector(ids, {rows});
}

// What a part of a model makes of token ids, where it has the embedding, or of hidden states.
Tensor hidden_states(RankContext& ctx, GptModel& part, const Tensor& x, const SeqInfo& seq) {
  return part.run_stage(ctx, {x}, {.ids = x, .seq = seq})[0];
}

Bench make_bench(RankContext& ctx, const Config& config, const ModelParallel& parallel, DType dtype,
                 const std::string& name, const ModuleCase& one) {
  const ModelConfig& model = config.model;
  Bench bench;
  const auto gpt = [&](ModelSlice slice) {
    auto part = std::make_unique<GptModel>(model, slice, parallel, dtype);
    GptModel* raw = part.get();
    bench.parts.push_back(std::move(part));
    return raw;
  };
  const auto keep = [&](auto part) {
    auto* raw = part.get();
    bench.parts.push_back(std::move(part));
    return raw;
  };
  // Packed rows are sequences of the case's length, one behind the other.
  const int64_t sequences = std::max<int64_t>(1, one.tokens() / one.seqlen);
  GptModel angles(model, {.first_layer = 0, .layers = 0, .embedding = false, .head = false, .mtp = false},
                  parallel, dtype);
  const auto seq =
      std::make_shared<const SeqInfo>(angles.sequences(ctx, sequences, one.tokens() / sequences));
  const Tensor hidden = ctx.full({rows_of_rank(config, one), model.hidden_size}, dtype, 0.5);
  bench.input = hidden;
  const auto with_loss = [&](GptModel* part, bool first) {
    const Tensor labels = token_ids(ctx, config, one);
    bench.forward = [seq, part, labels](RankContext& c, const Tensor& x) {
      return part->token_losses(c, hidden_states(c, *part, x, *seq), labels);
    };
    if (first) bench.input = labels, bench.differentiable = false;
  };
  const std::string layer = "decoder.layers.0";
  if (name == "Embedding") {
    GptModel* part = gpt({.first_layer = 0, .layers = 0, .embedding = true, .head = false, .mtp = false});
    bench.input = token_ids(ctx, config, one);
    bench.differentiable = false;
    bench.forward = [seq, part](RankContext& c, const Tensor& x) { return hidden_states(c, *part, x, *seq); };
  } else if (name == "Decoder") {
    GptModel* part =
        gpt({.first_layer = 0, .layers = model.num_layers, .embedding = false, .head = false, .mtp = false});
    bench.forward = [seq, part](RankContext& c, const Tensor& x) { return hidden_states(c, *part, x, *seq); };
  } else if (name == "Postprocess") {
    with_loss(
        gpt({.first_layer = model.num_layers, .layers = 0, .embedding = false, .head = true, .mtp = false}),
        false);
  } else if (name == "GPTModel") {
    with_loss(
        gpt({.first_layer = 0, .layers = model.num_layers, .embedding = true, .head = true, .mtp = false}),
        true);
  } else if (name == "TransformerLayer") {
    TransformerLayer* part =
        keep(std::make_unique<TransformerLayer>(layer, model.num_layers - 1, model, parallel));
    bench.forward = [seq, part](RankContext& c, const Tensor& x) {
      Residual residual{x, {}};
      part->forward(c, residual, *seq);
      return residual.update ? ops::add(c, residual.hidden, residual.update) : residual.hidden;
    };
  } else if (name == "SelfAttention" || name == "MLA") {
    TokenMixer* part;
    if (name == "MLA")
      part = keep(std::make_unique<LatentAttention>(layer + ".self_attention", 0, model, parallel));
    else
      part = keep(std::make_unique<SelfAttention>(layer + ".self_attention", 0, model, parallel));
    bench.forward = [seq, part](RankContext& c, const Tensor& x) { return part->forward(c, x, *seq); };
  } else if (name == "MLPDense") {
    Mlp* part = keep(std::make_unique<Mlp>(layer + ".mlp", model, parallel.tensor));
    bench.forward = [part](RankContext& c, const Tensor& x) { return part->forward(c, x); };
  } else if (name == "MoELayer") {
    MoeLayer* part = keep(std::make_unique<MoeLayer>(layer + ".mlp", model.num_layers - 1, model, parallel));
    bench.forward = [seq, part](RankContext& c, const Tensor& x) { return part->forward(c, x, *seq); };
  } else if (name == "LayerNorm") {
    Norm* part =
        keep(std::make_unique<Norm>(layer + ".input_layernorm", model.hidden_size, model, parallel.tensor));
    bench.forward = [part](RankContext& c, const Tensor& x) { return part->forward(c, x); };
  } else {
    throw ConfigError(fmt::format("profile-ops: no operator is called {}", name));
  }
  return bench;
}

double live_activations(const RankContext& ctx) {
  return static_cast<double>(
      ctx.allocator->statistics().by_tag[static_cast<size_t>(MemoryTag::Activation)].current);
}

}  // namespace

std::vector<std::string> bench_modules(const ModelConfig& model) {
  std::vector<std::string> names = {"Embedding", "LayerNorm"};
  names.emplace_back(model.multi_latent_attention ? "MLA" : "SelfAttention");
  if (model.num_moe_experts > 0) names.emplace_back("MoELayer");
  if (model.ffn_hidden_size > 0) names.emplace_back("MLPDense");
  for (const char* name : {"TransformerLayer", "Decoder", "Postprocess", "GPTModel"})
    names.emplace_back(name);
  return names;
}

ModuleFigures bench_module(RankContext& ctx, const Config& config, const ParallelContext& parallel,
                           DType dtype, const std::string& module, const ModuleCase& one,
                           const ModuleBench& options) {
  const ModelParallel split = model_parallel(config, parallel);
  auto bench = std::make_unique<Bench>(make_bench(ctx, config, split, dtype, module, one));
  ModuleFigures figures;
  for (const auto& part : bench->parts)
    for (Parameter* parameter : part->parameters()) {
      parameter->allocate(ctx, dtype);
      if (ctx.device != kMeta) parameter->initialize(ctx, 1234);
      parameter->allocate_gradient(ctx);
      figures.weight_bytes += static_cast<double>(parameter->value.bytes());
    }
  const bool real = ctx.device != kMeta;
  const int passes = real ? options.warmup + options.iterations : 1;
  for (int pass = 0; pass < passes; ++pass) {
    const bool counts = !real || pass >= options.warmup;
    Tape tape(ctx);
    const Tensor x = bench->differentiable ? tape.watch(bench->input) : bench->input;
    const double before = live_activations(ctx);
    const auto begin = Clock::now();
    Tensor y;
    double flops = 0, bytes = 0;
    std::vector<report::TraceSpan> spans;
    {
      OpMeter meter(ctx, options, counts);
      TapeScope scope(ctx, &tape);
      y = bench->forward(ctx, x);
      ctx.stream.synchronize();
      flops = meter.flops, bytes = meter.bytes;
      spans = std::move(meter.spans);
    }
    const auto middle = Clock::now();
    const double kept = live_activations(ctx) - before;
    const Tensor dy = ctx.full(y.shape(), y.dtype(), 1);
    const auto again = Clock::now();
    {
      OpMeter meter(ctx, options, counts);
      tape.backward_data(ctx, std::vector{y}, std::vector{dy});
      ctx.stream.synchronize();
      figures.backward_flops = meter.flops, figures.backward_bytes = meter.bytes;
      spans.insert(spans.end(), meter.spans.begin(), meter.spans.end());
    }
    if (!counts) continue;
    figures.activation_bytes = kept;
    figures.forward_flops = flops, figures.forward_bytes = bytes;
    figures.spans = std::move(spans);
    if (!real) continue;
    figures.forward += std::chrono::duration<double>(middle - begin).count() / options.iterations;
    figures.backward += seconds_since(again) / options.iterations;
  }
  return figures;
}

}  // namespace megatron
