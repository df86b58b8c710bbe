#include "megatron/cli/bench/bench_ops_cases.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/index.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/moe.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/quantize.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/softmax.h"
#include "megatron/optimizer/adam.h"
#include "megatron/optimizer/grad_norm.h"

namespace megatron {
namespace {

using Inputs = std::span<const Tensor>;

Tensor random(RankContext& ctx, const Shape& shape, DType dtype, double deviation = 1) {
  Tensor out = ctx.empty(shape, dtype);
  ctx.kernels->random(ctx.kernel_context(), {.out = out,
                                             .b = deviation,
                                             .key = {1234, static_cast<uint64_t>(shape.numel())},
                                             .global_strides = shape.row_major_strides()});
  return out;
}

Tensor random_ids(RankContext& ctx, int64_t count, int64_t below) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int64_t>(Philox::at({99, 0}, i).word[0] % static_cast<uint64_t>(below));
  return ctx.from_vector(ids, {count});
}

// A parameter and the place for its gradient, which every run overwrites.
struct Trained {
  Tensor value;
  std::shared_ptr<GradAccumulator> sink = std::make_shared<GradAccumulator>();

  Trained(RankContext& ctx, const Shape& shape, DType dtype) : value(random(ctx, shape, dtype, 0.02)) {
    sink->main_grad = ctx.zeros(shape, accumulation_dtype(dtype));
  }
  Weight get() const {
    sink->start_step();
    return {value, sink.get()};
  }
};

struct Cases {
  int64_t tokens;
  std::vector<BenchCase> list = {};

  void add(std::string op, std::string shape, DType dtype, std::function<BenchOp(RankContext&)> make) {
    list.push_back({std::move(op), std::move(shape), dtype, std::move(make)});
  }
  // An op from one activation of this shape to another.
  void add_map(std::string op, const Shape& shape, DType dtype,
               std::function<Tensor(RankContext&, const Tensor&)> call, bool has_backward = true) {
    std::string text;
    for (int64_t size : shape) text += fmt::format("{}{}", text.empty() ? "" : "x", size);
    add(std::move(op), text, dtype, [=](RankContext& ctx) {
      auto run = [call](RankContext& c, Inputs in) { return std::vector{call(c, in[0])}; };
      return BenchOp{{random(ctx, shape, dtype)}, run, has_backward};
    });
  }

  void linear(int64_t in, int64_t out, DType dtype) {
    int64_t rows = tokens;
    add("linear", fmt::format("{}x{}->{}", rows, in, out), dtype, [=](RankContext& ctx) {
      Trained w(ctx, {out, in}, dtype);
      auto run = [w](RankContext& c, Inputs x) { return std::vector{ops::linear(c, x[0], w.get())}; };
      LibraryGemm y{.m = rows, .n = out, .k = in, .transpose_b = true, .in = dtype, .out = dtype};
      LibraryGemm dx{.m = rows, .n = in, .k = out, .in = dtype, .out = dtype};
      LibraryGemm dw{.m = out, .n = in, .k = rows, .transpose_a = true, .in = dtype, .out = DType::F32};
      return BenchOp{{random(ctx, {rows, in}, dtype)}, run, true, {y}, {dx, dw}};
    });
  }

  void attention(int64_t batch, int64_t length, int64_t heads, int64_t channels, DType dtype) {
    add("attention", fmt::format("{}x{}x{}x{}", batch, length, heads, channels), dtype,
        [=](RankContext& ctx) {
          Shape shape{batch * length, heads, channels};
          auto run = [batch](RankContext& c, Inputs in) {
            return std::vector{ops::attention(c, in[0], in[1], in[2], {.batch = batch}).o};
          };
          return BenchOp{{random(ctx, shape, dtype), random(ctx, shape, dtype), random(ctx, shape, dtype)},
                         run};
        });
  }

  // The GEMMs of unfused attention: one per head.
  void batched_matmul(int64_t batch, int64_t n, int64_t channels, DType dtype) {
    add("matmul", fmt::format("{}x {}x{}x{}", batch, n, channels, n), dtype, [=](RankContext& ctx) {
      auto run = [](RankContext& c, Inputs in) { return std::vector{ops::matmul(c, in[0], in[1])}; };
      return BenchOp{{random(ctx, {batch, n, channels}, dtype), random(ctx, {batch, channels, n}, dtype)},
                     run};
    });
  }

  void norms(int64_t hidden, DType dtype) {
    int64_t rows = tokens;
    auto add_norm = [&](std::string op, NormKind kind) {
      add(std::move(op), fmt::format("{}x{}", rows, hidden), dtype, [=](RankContext& ctx) {
        Trained w(ctx, {hidden}, dtype), b(ctx, {hidden}, dtype);
        auto run = [=](RankContext& c, Inputs in) {
          Weight bias = kind == NormKind::Layer ? b.get() : Weight{};
          return std::vector{ops::norm(c, in[0], w.get(), bias, {.kind = kind})};
        };
        return BenchOp{{random(ctx, {rows, hidden}, dtype)}, run};
      });
    };
    add_norm("rmsnorm", NormKind::Rms);
    add_norm("layernorm", NormKind::Layer);
    add("residual_rmsnorm", fmt::format("{}x{}", rows, hidden), dtype, [=](RankContext& ctx) {
      Trained w(ctx, {hidden}, dtype);
      auto run = [w](RankContext& c, Inputs in) {
        auto [y, sum] = ops::norm_with_residual(c, in[0], in[1], w.get());
        return std::vector{y, sum};
      };
      return BenchOp{{random(ctx, {rows, hidden}, dtype), random(ctx, {rows, hidden}, dtype)}, run};
    });
  }

  void rotations(int64_t heads, int64_t channels, DType dtype) {
    int64_t rows = tokens;
    auto rotation = [=](RankContext& ctx) {
      std::vector<int64_t> positions(static_cast<size_t>(rows));
      for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
      return ops::rope_tables(ctx, ctx.from_vector(positions, {rows}), ops::rope_frequencies(channels, 1e4),
                              dtype);
    };
    add("rope", fmt::format("{}x{}x{}", rows, heads, channels), dtype, [=](RankContext& ctx) {
      auto run = [turn = rotation(ctx)](RankContext& c, Inputs in) {
        return std::vector{ops::rope(c, in[0], turn)};
      };
      return BenchOp{{random(ctx, {rows, heads, channels}, dtype)}, run};
    });
    add("split_qkv", fmt::format("{}x{}x{}", rows, 3 * heads, channels), dtype, [=](RankContext& ctx) {
      auto run = [=, turn = rotation(ctx)](RankContext& c, Inputs in) {
        auto [q, k, v] = ops::split_qkv(c, in[0], heads, heads, channels, turn);
        return std::vector{q, k, v};
      };
      return BenchOp{{random(ctx, {rows, 3 * heads * channels}, dtype)}, run};
    });
  }

  // The second half of a gated feed-forward layer: activation and GEMM in one node.
  void activated_linear(int64_t ffn, int64_t hidden, DType dtype) {
    int64_t rows = tokens;
    add("activated_linear", fmt::format("{}x{}->{}", rows, 2 * ffn, hidden), dtype, [=](RankContext& ctx) {
      Trained w(ctx, {hidden, ffn}, dtype);
      auto run = [w](RankContext& c, Inputs in) {
        return std::vector{
            ops::call_linear(c, in[0], w.get(),
                             {.input_activation = ops::ActivationOptions(), .keep_active = false})
                .y};
      };
      return BenchOp{{random(ctx, {rows, 2 * ffn}, dtype)}, run};
    });
  }

  // All of it, with the activation on the way out of the first GEMM where the device can.
  void gated_mlp(int64_t rows, int64_t hidden, int64_t ffn, DType dtype) {
    add("gated_mlp", fmt::format("{}x{}->{}", rows, hidden, 2 * ffn), dtype, [=](RankContext& ctx) {
      Trained up(ctx, {2 * ffn, hidden}, dtype), down(ctx, {hidden, ffn}, dtype);
      auto run = [up, down](RankContext& c, Inputs in) {
        const ops::ActivationOptions swiglu;
        auto [y, active] = ops::call_linear(c, in[0], up.get(), {.output_activation = swiglu});
        return std::vector{
            ops::call_linear(c, y, down.get(), {.input_activation = swiglu, .active = active}).y};
      };
      return BenchOp{{random(ctx, {rows, hidden}, dtype)}, run};
    });
  }

  // GPT-2's: biases, and GELU by its tanh form.
  void gelu_mlp(int64_t rows, int64_t hidden, int64_t ffn, DType dtype) {
    add("gelu_mlp", fmt::format("{}x{}->{}", rows, hidden, ffn), dtype, [=](RankContext& ctx) {
      Trained up(ctx, {ffn, hidden}, dtype), up_bias(ctx, {ffn}, dtype);
      Trained down(ctx, {hidden, ffn}, dtype), down_bias(ctx, {hidden}, dtype);
      auto run = [=](RankContext& c, Inputs in) {
        const ops::ActivationOptions gelu{.kind = Unary::GeluTanh, .gated = false};
        auto [y, active] =
            ops::call_linear(c, in[0], up.get(), {.bias = up_bias.get(), .output_activation = gelu});
        return std::vector{
            ops::call_linear(c, y, down.get(),
                             {.bias = down_bias.get(), .input_activation = gelu, .active = active})
                .y};
      };
      return BenchOp{{random(ctx, {rows, hidden}, dtype)}, run};
    });
  }

  void vocabulary(int64_t hidden, int64_t size, DType dtype) {
    int64_t rows = tokens;
    add("embedding", fmt::format("{} of {}x{}", rows, size, hidden), dtype, [=](RankContext& ctx) {
      Trained table(ctx, {size, hidden}, dtype);
      auto run = [table, ids = random_ids(ctx, rows, size)](RankContext& c, Inputs) {
        return std::vector{ops::embedding(c, table.get(), ids)};
      };
      return BenchOp{{}, run};
    });
    add("cross_entropy", fmt::format("{}x{}", rows, size), dtype, [=](RankContext& ctx) {
      auto run = [labels = random_ids(ctx, rows, size)](RankContext& c, Inputs in) {
        return std::vector{ops::cross_entropy(c, in[0], labels)};
      };
      return BenchOp{{random(ctx, {rows, size}, dtype)}, run};
    });
    add("linear_cross_entropy", fmt::format("{}x{}->{}", rows, hidden, size), dtype, [=](RankContext& ctx) {
      Trained w(ctx, {size, hidden}, dtype);
      auto run = [w, labels = random_ids(ctx, rows, size)](RankContext& c, Inputs in) {
        return std::vector{ops::linear_cross_entropy(c, in[0], w.get(), labels)};
      };
      return BenchOp{{random(ctx, {rows, hidden}, dtype)}, run};
    });
  }

  void elementwise(int64_t width, DType dtype) {
    Shape shape{tokens, width};
    auto add_pair = [&](std::string op, Tensor (*call)(RankContext&, const Tensor&, const Tensor&)) {
      add(std::move(op), fmt::format("{}x{}", shape[0], width), dtype, [=](RankContext& ctx) {
        auto run = [call](RankContext& c, Inputs in) { return std::vector{call(c, in[0], in[1])}; };
        return BenchOp{{random(ctx, shape, dtype), random(ctx, shape, dtype)}, run};
      });
    };
    add_pair("add", ops::add);
    add_pair("mul", ops::mul);
    add_map("scale", shape, dtype, [](auto& c, auto& x) { return ops::scale(c, x, 0.5); });
    add_map("cast", shape, dtype, [dtype](auto& c, auto& x) {
      return ops::cast(c, x, dtype == DType::F32 ? DType::BF16 : DType::F32);
    });
    add_map("transpose", shape, dtype,
            [](auto& c, auto& x) { return ops::contiguous(c, ops::transpose(c, x, 0, 1)); });
    add_pair("concat", [](RankContext& c, const Tensor& a, const Tensor& b) {
      return ops::concat(c, std::vector{a, b}, 1);
    });
    add("gather_rows", fmt::format("{}x{}", shape[0], width), dtype, [=](RankContext& ctx) {
      auto run = [ids = random_ids(ctx, shape[0], shape[0])](RankContext& c, Inputs in) {
        return std::vector{ops::gather_rows(c, in[0], ids)};
      };
      return BenchOp{{random(ctx, shape, dtype)}, run};
    });
    add_map("sum", shape, dtype, [](auto& c, auto& x) { return ops::sum(c, x); });
    add_map("softmax", shape, dtype, [](auto& c, auto& x) { return ops::softmax(c, x); });
    add_map("dropout", shape, dtype, [](auto& c, auto& x) { return ops::dropout(c, x, 0.1, {7, 1}); });
    add_map("gelu", {tokens, 4 * width}, dtype,
            [](auto& c, auto& x) { return ops::activation(c, Unary::GeluTanh, x); });
    add_map("swiglu", {tokens, 4 * width}, dtype,
            [](auto& c, auto& x) { return ops::gated_activation(c, {}, x); });
  }

  // Each token goes to two of eight experts.
  void experts(int64_t hidden, DType dtype) {
    constexpr int64_t count = 8, k = 2;
    int64_t rows = tokens;
    auto order = [=](RankContext& ctx) {
      return ops::expert_sort(ctx, random_ids(ctx, rows * k, count).view({rows, k}), count);
    };
    add_map("top_k", {tokens, 64}, dtype, [](auto& c, auto& x) { return ops::top_k(c, x, 8).values; });
    add("moe_permute", fmt::format("{}x{} to {} of {}", rows, hidden, k, count), dtype,
        [=](RankContext& ctx) {
          auto run = [o = order(ctx)](RankContext& c, Inputs in) {
            return std::vector{ops::permute(c, in[0], o)};
          };
          return BenchOp{{random(ctx, {rows, hidden}, dtype)}, run};
        });
    add("moe_unpermute", fmt::format("{}x{} from {} of {}", rows, hidden, k, count), dtype,
        [=](RankContext& ctx) {
          auto run = [o = order(ctx)](RankContext& c, Inputs in) {
            return std::vector{ops::unpermute(c, in[0], o, in[1])};
          };
          return BenchOp{{random(ctx, {rows * k, hidden}, dtype), random(ctx, {rows, k}, DType::F32)}, run};
        });
    int64_t out = hidden / 2;
    add("grouped_linear", fmt::format("{}x{}->{} in {}", rows * k, hidden, out, count), dtype,
        [=](RankContext& ctx) {
          Trained w(ctx, {count, out, hidden}, dtype);
          auto run = [w, o = order(ctx)](RankContext& c, Inputs in) {
            return std::vector{ops::call_linear(c, in[0], w.get(), {.offsets = o.offsets}).y};
          };
          return BenchOp{{random(ctx, {rows * k, hidden}, dtype)}, run};
        });
    add_map(
        "fp8_quantize", {tokens, hidden}, dtype,
        [](auto& c, auto& x) { return ops::quantize(c, x.detach(), DType::F8E4M3, 1, 128).data; }, false);
  }

  void optimizer(int64_t count, DType dtype) {
    auto parameter = [=](RankContext& ctx) {
      auto p = std::make_shared<Parameter>("weight", ShardSpec::whole({count / 256, 256}),
                                           Initializer::normal(0.02));
      p->allocate(ctx, dtype);
      p->initialize(ctx, 1234);
      p->allocate_gradient(ctx);
      ctx.kernels->fill(ctx.kernel_context(), {p->accumulator.main_grad, 0.01});
      p->accumulator.expect_use();
      p->accumulator.contribute(ctx);
      return p;
    };
    add("adam", fmt::format("{}", count), dtype, [=](RankContext& ctx) {
      auto p = parameter(ctx);
      auto adam = std::make_shared<Adam>(ctx, whole_slices(std::vector<Parameter*>{p.get()}), AdamOptions{});
      auto run = [p, adam](RankContext& c, Inputs) {
        adam->step(c, 1e-4);
        return std::vector<Tensor>{};
      };
      return BenchOp{{}, run, false};
    });
    if (dtype == DType::F32)
      add("grad_norm", fmt::format("{}", count), dtype, [=](RankContext& ctx) {
        auto p = parameter(ctx);
        auto run = [p, slices = whole_slices(std::vector<Parameter*>{p.get()}), alone = ParallelContext()](
                       RankContext& c, Inputs) {
          return std::vector{gradient_norm(c, slices, alone, false)};
        };
        return BenchOp{{}, run, false};
      });
  }
};

}  // namespace

std::vector<BenchCase> bench_cases(int64_t tokens) {
  Cases cases{tokens};
  for (DType dtype : {DType::F32, DType::BF16}) {
    for (auto [in, out] :
         {std::pair{256, 768}, {256, 256}, {256, 1280}, {640, 256}, {256, 14336}, {1024, 1024}, {1024, 4096}})
      cases.linear(in, out, dtype);
    cases.attention(8, 256, 8, 32, dtype);
    cases.attention(2, 1024, 8, 64, dtype);
    cases.attention(1, 4096, 8, 64, dtype);
    cases.batched_matmul(64, 256, 32, dtype);
    cases.norms(1024, dtype);
    cases.activated_linear(2816, 1024, dtype);
    cases.gated_mlp(tokens, 1024, 2816, dtype);
    cases.gelu_mlp(tokens, 1024, 4096, dtype);
    cases.rotations(16, 64, dtype);
    cases.elementwise(1024, dtype);
    cases.vocabulary(256, 14336, dtype);
    cases.experts(1024, dtype);
    cases.optimizer(10 << 20, dtype);
  }
  return std::move(cases.list);
}

}  // namespace megatron
