#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "megatron/autograd/tape.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/median.h"
#include "megatron/base/seconds_since.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/config/resolve/tp_overlap_file.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/run/rank_launch.h"
#include "megatron/transformer/head_groups.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/linear.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;
using Method = TpOverlapFile::Method;

// Seconds of the passes of a linear, of the slowest rank.
struct PassSeconds {
  double forward = 0, backward = 0;
};

// One of the four linear layers alone on the ranks of a tensor-parallel group.
class LinearBench {
 public:
  LinearBench(const Config& config, const TensorParallel& tp, DType dtype, std::string_view name,
              int64_t tokens, int64_t repeat)
      : config_(config), tp_(tp), dtype_(dtype), name_(name), tokens_(tokens), repeat_(repeat) {
    const ModelConfig& m = config.model;
    const int64_t values = m.num_attention_heads * m.kv_channels, gates = m.gated_linear_unit ? 2 : 1;
    in_ = name == "proj" ? values : name == "fc2" ? m.ffn_hidden_size : m.hidden_size;
    out_ = name == "qkv"   ? values + 2 * query_groups(m) * m.kv_channels
           : name == "fc1" ? gates * m.ffn_hidden_size
                           : m.hidden_size;
  }

  PassSeconds run(RankContext& ctx, const TpOverlapFile::Linear& file) const {
    const bool gathers = TpOverlapFile::gathers_input(name_);
    LinearOptions options{.initializer = input_initializer(config_.model)};
    options.overlap = layer_overlap({.on = true}, file, gathers);
    if (gathers) {
      ColumnParallelLinear linear("linear", in_, out_, tp_, options);
      return time(ctx, linear, tp_.token_rows(tokens_), in_);
    }
    RowParallelLinear linear("linear", in_, out_, tp_, options);
    return time(ctx, linear, tokens_, in_ / tp_.size());
  }

 private:
  template <class Linear>
  PassSeconds time(RankContext& ctx, Linear& linear, int64_t rows, int64_t columns) const {
    for (Parameter* parameter : linear.parameters()) {
      parameter->allocate(ctx, dtype_);
      parameter->initialize(ctx, 1234);
      parameter->allocate_gradient(ctx);
    }
    const Tensor input = ctx.full({rows, columns}, dtype_, 0.5);
    std::vector<double> forward, backward;
    for (int64_t i = 0; i <= repeat_; ++i) {
      Tape tape(ctx);
      const Tensor x = tape.watch(input);
      ctx.stream.synchronize();
      tp_.group.barrier();
      const auto begin = Clock::now();
      Tensor y;
      {
        TapeScope scope(ctx, &tape);
        y = linear.forward(ctx, x);
      }
      ctx.stream.synchronize();
      const auto end = Clock::now();
      const Tensor dy = ctx.full(y.shape(), y.dtype(), 1);
      ctx.stream.synchronize();
      tp_.group.barrier();
      const auto again = Clock::now();
      tape.backward_data(ctx, std::vector{y}, std::vector{dy});
      ctx.stream.synchronize();
      if (i == 0) continue;  // the first one allocates and chooses kernels
      forward.push_back(std::chrono::duration<double>(end - begin).count());
      backward.push_back(seconds_since(again));
    }
    // All ranks have to choose alike.
    const std::vector<double> own = {median(forward), median(backward)};
    const Tensor both = ctx.from_vector(own, {2});
    tp_.group.all_reduce(both, ReduceOp::Max).wait();
    const std::vector<double> slowest = ctx.to_vector<double>(both);
    return {slowest[0], slowest[1]};
  }

  const Config& config_;
  const TensorParallel& tp_;
  DType dtype_;
  std::string_view name_;
  int64_t tokens_, repeat_, in_ = 0, out_ = 0;
};

// The ways of a GEMM that are tried: each of its methods, with what it can be told.
std::vector<TpOverlapFile::Gemm> ways_of(std::string_view linear, std::string_view pass, int ranks) {
  std::vector<TpOverlapFile::Gemm> ways = {{.method = Method::none}};
  for (const Method method : TpOverlapFile::methods(linear, pass)) {
    if (method == Method::pipeline) {
      for (const int splits : {2, 4, 8}) ways.push_back({.method = method, .splits = splits});
      continue;
    }
    ways.push_back({.method = method});
    const bool gathers = TpOverlapFile::gathers_input(linear) == (pass == "fprop");
    if (method == Method::ring_exchange && gathers && ranks % 2 == 0)
      ways.push_back({.method = method, .aggregate = true});
  }
  return ways;
}

struct Tried {
  std::string gemm;
  TpOverlapFile::Gemm way;
  double seconds;
  bool chosen;
};

// Every way of each GEMM in turn, beside the best of those before it.
TpOverlapFile fastest_overlaps(RankContext& ctx, const Config& config, const TensorParallel& tp, DType dtype,
                               int64_t tokens, int64_t repeat, std::vector<Tried>& tried) {
  TpOverlapFile file;
  for (const std::string_view name : TpOverlapFile::kLinears) {
    TpOverlapFile::Linear& linear = file.linear(name);
    for (const std::string_view pass : TpOverlapFile::kPasses)
      if (!TpOverlapFile::methods(name, pass).empty())
        TpOverlapFile::gemm(linear, pass).method = Method::none;
    const LinearBench bench(config, tp, dtype, name, tokens, repeat);
    for (const std::string_view pass : TpOverlapFile::kPasses) {
      if (TpOverlapFile::methods(name, pass).empty()) continue;
      const size_t first = tried.size();
      for (const TpOverlapFile::Gemm& way : ways_of(name, pass, tp.size())) {
        TpOverlapFile::gemm(linear, pass) = way;
        const PassSeconds seconds = bench.run(ctx, linear);
        tried.push_back({fmt::format("{}_{}", name, pass), way,
                         pass == "fprop" ? seconds.forward : seconds.backward, false});
      }
      const auto best =
          std::min_element(tried.begin() + static_cast<std::ptrdiff_t>(first), tried.end(),
                           [](const Tried& a, const Tried& b) { return a.seconds < b.seconds; });
      best->chosen = true;
      TpOverlapFile::gemm(linear, pass) = best->way;
    }
  }
  return file;
}

std::string way_text(const TpOverlapFile::Gemm& way) {
  if (way.method == Method::pipeline) return fmt::format("pipeline in {}", way.splits);
  return fmt::format("{}{}", method_name(way.method), way.aggregate ? " aggregate" : "");
}

}  // namespace

int profile_tp_overlap(Invocation& invocation, Config config, const std::string& path, int64_t repeat,
                       bool json) {
  require_file_place("--tp-overlap", path);
  const int64_t ranks = config.parallel.tensor_model_parallel_size;
  if (ranks < 2)
    throw UsageError("autotune profile-ops: --tp-overlap needs --tensor-model-parallel-size of 2 or more");
  if (config.model.multi_latent_attention || config.model.ffn_hidden_size == 0)
    throw UsageError("autotune profile-ops: --tp-overlap needs a model with QKV and feed-forward layers");
  config.run.ranks = ranks;
  config.parallel.sequence_parallel = config.parallel.tp_comm_overlap = true;
  config.parallel.context_parallel_size = config.parallel.expert_model_parallel_size = 1;
  const ParallelSizes sizes = parallel_sizes(config, ranks);
  check_parallel(sizes);
  const int64_t tokens =
      std::max<int64_t>(1, config.train.micro_batch_size) * std::max<int64_t>(1, config.model.seq_length);
  if (tokens % ranks != 0)
    throw UsageError(fmt::format(
        "autotune profile-ops: --tp-overlap: {} ranks do not divide {} tokens; give another --seq-length",
        ranks, tokens));
  const DType dtype = config.precision.bf16 ? DType::BF16 : config.precision.fp16 ? DType::F16 : DType::F32;
  std::vector<Tried> tried;
  TpOverlapFile file;
  run_on_ranks(config, launch_place(), invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
    const ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    const ModelParallel split = model_parallel(config, parallel);
    std::vector<Tried> own;
    const TpOverlapFile best = fastest_overlaps(ctx, config, split.tensor, dtype, tokens, repeat, own);
    if (ctx.rank == 0) file = best, tried = std::move(own);
  });
  write_file_atomically(
      path,
      fmt::format("# tp {}, {} tokens, hidden {}\n", ranks, tokens, config.model.hidden_size) + file.text());
  if (json) {
    Json document = Json::object();
    document["file"] = path;
    Json& rows = document["tried"] = Json::array();
    for (const Tried& one : tried) {
      Json row = Json::object();
      row["gemm"] = one.gemm;
      row["way"] = way_text(one.way);
      row["ms"] = one.seconds * 1e3;
      row["chosen"] = one.chosen;
      rows.push_back(std::move(row));
    }
    fmt::print(invocation.out, "{}\n", document.dump(1));
    return 0;
  }
  fmt::print(invocation.out, "tp {}, {} tokens\n\n{:<14}{:<26}{:>10}\n", ranks, tokens, "GEMM", "overlap",
             "pass ms");
  for (const Tried& one : tried)
    fmt::print(invocation.out, "{:<14}{:<26}{:>10.3f}{}\n", one.gemm, way_text(one.way), one.seconds * 1e3,
               one.chosen ? "  <" : "");
  fmt::print(invocation.out, "\n{}: for --tp-comm-overlap --tp-comm-overlap-cfg\n", path);
  return 0;
}

}  // namespace megatron
