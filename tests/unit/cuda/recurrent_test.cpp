#include "unit/cuda/twin.h"

// Kernels of layers that carry a state along a sequence, against those of the CPU.
namespace megatron::testing {
namespace {

class CudaRecurrent : public Twin {
 protected:
  // Sequences of one length, or packed ones, an empty one among them.
  struct Rows {
    SequenceRows cpu, gpu;
    int64_t tokens;
    std::string name;
  };
  Rows equal(int64_t count, int64_t length) { return {{count, {}}, {count, {}}, count * length, "equal"}; }
  Rows packed(const std::vector<double>& cuts) {
    Both cu = cast(cuts, {static_cast<int64_t>(cuts.size())}, DType::I32);
    auto count = static_cast<int64_t>(cuts.size()) - 1;
    return {{count, cu.cpu}, {count, cu.gpu}, static_cast<int64_t>(cuts.back()), "packed"};
  }
  // Rows that lie apart, as the parts of a projection do, and begin at any element, or at an eighth one.
  Both apart(int64_t tokens, int64_t width, DType dtype, double low = -1, double high = 1,
             int64_t first = 4) {
    return uniform({tokens, width + 2 * first}, dtype, low, high).map([&](const Tensor& x) {
      return x.slice(1, first, first + width);
    });
  }
  // A sum over tokens for each head, whose terms cancel: held to the size of the terms, `terms` [tokens,
  // heads].
  void sums_alike(const Both& x, const Both& terms, const std::string& what) {
    const auto expected = values(cpu, x.cpu), got = values(gpu(), x.gpu), each = values(cpu, terms.cpu);
    const double tolerance = x.cpu.dtype() == DType::F64 ? 1e-13 : 1e-5;
    for (size_t head = 0; head < expected.size(); ++head) {
      double size = 0;
      for (size_t i = head; i < each.size(); i += expected.size()) size += std::abs(each[i]);
      EXPECT_LE(std::abs(expected[head] - got[head]), tolerance * size) << what << ", head " << head;
    }
  }
  static bool on_cpu(const Tensor& x) { return x.device().is_cpu(); }
  // Of a sum of many terms of either sign.
  static double sums_within(DType dtype) {
    return dtype == DType::F64 ? 1e-11 : dtype == DType::F32 ? 2e-4 : dtype == DType::F16 ? 4e-3 : 2e-2;
  }
};

TEST_F(CudaRecurrent, EveryKernelOfTheCpuIsThere) {
  std::map<std::string, bool> there;
  KernelTable::visit(*cpu.kernels, [&](const char* name, auto kernel) { there[name] = kernel != nullptr; });
  KernelTable::visit(*gpu().kernels, [&](const char* name, auto kernel) {
    EXPECT_TRUE(kernel != nullptr || !there[name]) << name;
  });
}

// By windows of four, four channels a thread where they lie well, and of sixteen.
TEST_F(CudaRecurrent, CausalConvolution) {
  for (DType dtype : floats())
    for (const Rows& rows : {equal(3, 37), packed({0, 5, 5, 7, 300, 801})})
      for (int64_t width : {4, 3, 2, 7})
        for (bool with_bias : {true, false}) {
          const int64_t channels = width == 2 ? 33 : 300;
          const DType wide = accumulation_dtype(dtype);
          Both x = apart(rows.tokens, channels, dtype, -2, 2), weight = uniform({channels, width}, dtype);
          Both bias = with_bias ? uniform({channels}, dtype) : Both{},
               y = output({rows.tokens, channels}, dtype);
          auto of = [&](const Tensor& x) { return on_cpu(x) ? rows.cpu : rows.gpu; };
          run(&KernelTable::causal_conv, [&](auto on) {
            return CausalConvArgs{of(on(x)), on(x), on(weight), on(bias), on(y)};
          });
          const std::string what = label(dtype) + " " + rows.name + " width " + std::to_string(width);
          same(y, "y " + what);
          Both dy = uniform({rows.tokens, channels}, dtype), dx = output({rows.tokens, channels}, dtype);
          Both dweight = output({channels, width}, wide),
               dbias = with_bias ? output({channels}, wide) : Both{};
          run(&KernelTable::causal_conv_backward, [&](auto on) {
            return CausalConvBackwardArgs{of(on(x)), on(x),  on(weight),  on(bias),
                                          on(dy),    on(dx), on(dweight), on(dbias)};
          });
          same(dx, "dx " + what);
          const double tolerance = dtype == DType::F64 ? 1e-11 : 1e-4;  // inputs are the same, sums are wide
          same(dweight, tolerance, "dweight " + what);
          if (with_bias) same(dbias, tolerance, "dbias " + what);
        }
}

TEST_F(CudaRecurrent, GatedNorm) {
  struct Case {
    int64_t tokens, groups, size;
    bool shared;
    int64_t begin = 8;  // where rows lie so that vectors can be read, or not
  };
  const Case cases[] = {{50, 1, 512, false}, {301, 4, 96, false},    {301, 4, 96, false, 3},
                        {70, 3, 128, true},  {70, 3, 128, true, 4},  {600, 5, 640, false},
                        {9, 2, 4096, false}, {9, 2, 4096, false, 1}, {5, 1, 8192, false},
                        {71, 4, 128, false}, {5, 2, 12288, false},   {3, 1, 32768, false}};
  for (DType dtype : floats())
    for (const Case& c : cases)
      for (bool first : {true, false}) {
        if (c.size > 8192 && size_of(dtype) > 2) continue;  // too long for wide elements
        const int64_t channels = c.groups * c.size;
        const DType wide = accumulation_dtype(dtype);
        Both x = apart(c.tokens, channels, dtype, -1, 1, c.begin),
             gate = apart(c.tokens, channels, dtype, -3, 3, c.begin);
        Both weight = uniform({c.shared ? c.size : channels}, dtype),
             dy = uniform({c.tokens, channels}, dtype);
        Both squares = output({c.tokens, c.groups}, wide), along = output({c.tokens, c.groups}, wide);
        Both y = output({c.tokens, channels}, dtype);
        const std::string what =
            label(dtype) + " size " + std::to_string(c.size) + (first ? " first" : " last");
        const double tolerance = dtype == DType::F64 ? 1e-11 : 1e-5;
        run(&KernelTable::gated_norm_sums,
            [&](auto on) { return GatedNormSumsArgs{first, on(x), on(gate), {}, {}, on(squares)}; });
        same(squares, tolerance, "squares " + what);
        run(&KernelTable::gated_norm, [&](auto on) {
          return GatedNormArgs{first, 1e-5, c.size, on(x), on(gate), on(weight), on(squares), on(y)};
        });
        same(y, "y " + what);
        Both own = output({c.tokens, c.groups}, wide), again = output({c.tokens, channels}, dtype);
        run(&KernelTable::gated_norm, [&](auto on) {  // which makes the sums itself
          return GatedNormArgs{first, 1e-5, 0, on(x), on(gate), on(weight), on(own), on(again)};
        });
        same(own, tolerance, "own squares " + what);
        same(again, "y by own squares " + what);
        run(&KernelTable::gated_norm_sums, [&](auto on) {
          return GatedNormSumsArgs{first, on(x), on(gate), on(weight), on(dy), on(along)};
        });
        same(along, 10 * tolerance, "along " + what);
        for (bool given : {true, false}) {
          Both dx = output({c.tokens, channels}, dtype), dgate = output({c.tokens, channels}, dtype);
          Both dweight = output(weight.cpu.shape(), wide);
          run(&KernelTable::gated_norm_backward, [&](auto on) {
            return GatedNormBackwardArgs{first,       1e-5,      c.size,
                                         on(x),       on(gate),  on(weight),
                                         on(squares), on(dy),    given ? on(along) : Tensor{},
                                         on(dx),      on(dgate), on(dweight)};
          });
          same(dx, "dx " + what);
          same(dgate, "dgate " + what);
          same(dweight, 10 * tolerance, "dweight " + what);
        }
      }
}

TEST_F(CudaRecurrent, StateSpaceScan) {
  struct Case {
    int64_t heads, channels, groups, states, chunk;
    double step_max;
    int64_t first = 4;  // of eight the tensor cores are used, where sizes fit
  };
  for (DType dtype : floats())
    for (const Rows& rows : sanitized() ? std::vector{packed({0, 3, 3, 70})}
                                        : std::vector{equal(2, 150), packed({0, 3, 3, 67, 256, 391})})
      for (Case c : sanitized() ? std::vector<Case>{{1, 5, 1, 7, 16, 0.9},
                                                    {1, 70, 1, 70, 32, 1e9},
                                                    {2, 64, 1, 128, 64, 0.9, 8},
                                                    {1, 64, 1, 128, 128, 1e9, 8},
                                                    {1, 64, 1, 128, 256, 1e9, 8}}
                                : std::vector<Case>{{4, 64, 2, 128, 64, 1e9},
                                                    {3, 5, 1, 7, 16, 0.9},
                                                    {2, 80, 2, 70, 128, 1e9},
                                                    {4, 64, 2, 128, 64, 0.9, 8},
                                                    {6, 64, 2, 128, 128, 1e9, 8},
                                                    {3, 64, 1, 128, 256, 1e9, 8}}) {
        if (sanitized() && c.first == 8 && size_of(dtype) > 2) continue;  // no tensor cores
        const DType wide = accumulation_dtype(dtype);
        const int64_t width = c.heads * c.channels + 2 * c.groups * c.states;
        Both xbc = apart(rows.tokens, width, dtype, -1, 1, c.first),
             dt = apart(rows.tokens, c.heads, dtype, -2, 1);
        Both a_log = uniform({c.heads}, wide, -1, 1), d = uniform({c.heads}, wide);
        Both bias = uniform({c.heads}, wide), y = output({rows.tokens, c.heads * c.channels}, dtype);
        const int64_t slots = chunk_slots(rows.tokens, rows.cpu.count, c.chunk);
        Both before = cast(std::vector<double>(slots * c.heads * c.channels * c.states, 0.0),
                           {slots, c.heads, c.channels, c.states}, wide);
        auto args = [&](auto on, const Both& into) {
          SsdArgs a{.rows = on_cpu(on(xbc)) ? rows.cpu : rows.gpu,
                    .heads = c.heads,
                    .channels = c.channels,
                    .groups = c.groups,
                    .states = c.states,
                    .chunk = c.chunk,
                    .step_min = 1e-3,
                    .step_max = c.step_max};
          a.xbc = on(xbc), a.dt = on(dt), a.a_log = on(a_log), a.d = on(d), a.dt_bias = on(bias);
          a.before = on(before);
          if (into.cpu) a.y = on(into);
          return a;
        };
        run(&KernelTable::ssd, [&](auto on) { return args(on, y); });
        const std::string what = label(dtype) + " " + rows.name + " chunk " + std::to_string(c.chunk);
        const double exact = dtype == DType::F64 ? 1e-11 : 5e-5;
        alike(y, sums_within(dtype), "y " + what);
        alike(before, exact, "states " + what);
        Both again = output({rows.tokens, c.heads * c.channels}, dtype);  // without keeping states
        run(&KernelTable::ssd, [&](auto on) {
          SsdArgs a = args(on, again);
          a.before = {};
          return a;
        });
        alike(again, sums_within(dtype), "y alone " + what);

        Both dy = apart(rows.tokens, c.heads * c.channels, dtype, -1, 1, c.first),
             dxbc = output({rows.tokens, width}, dtype);
        Both ddt = output({rows.tokens, c.heads}, dtype);
        Both da_log = output({c.heads}, wide), dd = output({c.heads}, wide), dbias = output({c.heads}, wide);
        run(&KernelTable::ssd_backward, [&](auto on) {
          return SsdBackwardArgs{args(on, {}), on(dy), on(dxbc), on(ddt), on(da_log), on(dd), on(dbias)};
        });
        alike(dxbc, sums_within(dtype), "dxbc " + what);
        alike(ddt, sums_within(dtype), "ddt " + what);
        sums_alike(da_log, ddt, "da_log " + what);
        alike(dd, exact, "dd " + what);
        sums_alike(dbias, ddt, "ddt_bias " + what);
      }
}

TEST_F(CudaRecurrent, GatedDeltaRule) {
  struct Case {
    int64_t key_heads, value_heads, keys, values, chunk, first = 4;  // of eight tensor cores are used
  };
  for (DType dtype : floats())
    for (const Rows& rows : sanitized() ? std::vector{packed({0, 3, 3, 70})}
                                        : std::vector{equal(2, 75), packed({0, 3, 3, 67, 130})})
      for (Case c : sanitized()
                        ? std::vector<Case>{{1, 1, 5, 7, 4}, {1, 2, 72, 40, 10}, {1, 2, 128, 128, 64, 8}}
                        : std::vector<Case>{{2, 4, 128, 128, 64},
                                            {1, 1, 5, 7, 4},
                                            {2, 2, 72, 40, 10},
                                            {2, 4, 128, 128, 64, 8},
                                            {1, 3, 128, 128, 64, 8}}) {
        if (sanitized() && c.first == 8 && size_of(dtype) > 2) continue;  // no tensor cores
        const DType wide = accumulation_dtype(dtype);
        const int64_t width = 2 * c.key_heads * c.keys + c.value_heads * c.values;
        Both qkv = apart(rows.tokens, width, dtype, -1, 1, c.first),
             b = apart(rows.tokens, c.value_heads, dtype, -2, 2);
        Both a = apart(rows.tokens, c.value_heads, dtype, -2, 1), a_log = uniform({c.value_heads}, wide);
        Both bias = uniform({c.value_heads}, wide),
             o = output({rows.tokens, c.value_heads * c.values}, dtype);
        const int64_t slots = chunk_slots(rows.tokens, rows.cpu.count, c.chunk);
        Both before = cast(std::vector<double>(slots * c.value_heads * c.keys * c.values, 0.0),
                           {slots, c.value_heads, c.keys, c.values}, wide);
        auto args = [&](auto on, const Both& into) {
          DeltaRuleArgs r{.rows = on_cpu(on(qkv)) ? rows.cpu : rows.gpu,
                          .key_heads = c.key_heads,
                          .value_heads = c.value_heads,
                          .key_channels = c.keys,
                          .value_channels = c.values,
                          .chunk = c.chunk};
          r.qkv = on(qkv), r.b = on(b), r.a = on(a), r.a_log = on(a_log), r.dt_bias = on(bias);
          r.before = on(before);
          if (into.cpu) r.o = on(into);
          return r;
        };
        run(&KernelTable::delta_rule, [&](auto on) { return args(on, o); });
        const std::string what = label(dtype) + " " + rows.name + " keys " + std::to_string(c.keys);
        const double exact = dtype == DType::F64 ? 1e-11 : 5e-5;
        alike(o, sums_within(dtype), "o " + what);
        alike(before, exact, "states " + what);
        Both again = output({rows.tokens, c.value_heads * c.values}, dtype);  // without keeping states
        run(&KernelTable::delta_rule, [&](auto on) {
          DeltaRuleArgs r = args(on, again);
          r.before = {};
          return r;
        });
        alike(again, sums_within(dtype), "o alone " + what);

        Both d_o = apart(rows.tokens, c.value_heads * c.values, dtype, -1, 1, c.first),
             dqkv = output({rows.tokens, width}, dtype);
        Both db = output({rows.tokens, c.value_heads}, dtype),
             da = output({rows.tokens, c.value_heads}, dtype);
        Both da_log = output({c.value_heads}, wide), dbias = output({c.value_heads}, wide);
        run(&KernelTable::delta_rule_backward, [&](auto on) {
          return DeltaRuleBackwardArgs{args(on, {}), on(d_o),    on(dqkv), on(db),
                                       on(da),       on(da_log), on(dbias)};
        });
        alike(dqkv, sums_within(dtype), "dqkv " + what);
        alike(db, sums_within(dtype), "db " + what);
        alike(da, sums_within(dtype), "da " + what);
        alike(da_log, exact, "da_log " + what);
        alike(dbias, exact, "ddt_bias " + what);
      }
}

}  // namespace
}  // namespace megatron::testing
