#include <gtest/gtest.h>

#include "megatron/ops/rope.h"
#include "support/golden.h"

// Rotary embeddings as transformers makes them: every scaling, both pairings, partial rotation.
namespace megatron {
namespace {

using testing::golden_json;
using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::to_device;
using testing::Tolerance;

ops::RopeScaling scaling_of(const Json& variant) {
  const Json& p = variant.at("rope_parameters");
  const std::string& type = p.at("rope_type").as_string();
  const auto number = [&](const char* key, double otherwise) {
    return p.contains(key) ? p.at(key).as_double() : otherwise;
  };
  ops::RopeScaling scaling;
  if (type == "linear") scaling.kind = ops::RopeScalingKind::Linear;
  if (type == "dynamic") scaling.kind = ops::RopeScalingKind::Dynamic;
  if (type == "llama3") scaling.kind = ops::RopeScalingKind::Llama3;
  if (type == "yarn") scaling.kind = ops::RopeScalingKind::Yarn;
  if (type == "longrope") scaling.kind = ops::RopeScalingKind::LongRope;
  scaling.factor = number("factor", 1);
  scaling.max_position = variant.at("max_position_embeddings").as_int();
  scaling.original_max_position = static_cast<int64_t>(number("original_max_position_embeddings", 0));
  scaling.low_freq_factor = number("low_freq_factor", 1);
  scaling.high_freq_factor = number("high_freq_factor", 4);
  scaling.beta_fast = number("beta_fast", 32);
  scaling.beta_slow = number("beta_slow", 1);
  scaling.truncate = !p.contains("truncate") || p.at("truncate").as_bool();
  scaling.mscale = number("mscale", 0);
  scaling.mscale_all_dim = number("mscale_all_dim", 0);
  for (const char* key : {"short_factor", "long_factor"})
    if (p.contains(key))
      for (const Json& value : p.at(key).as_array())
        (std::string_view(key) == "short_factor" ? scaling.short_factor : scaling.long_factor)
            .push_back(value.as_double());
  return scaling;
}

// [batch, heads, length, d] of the reference as [batch · length, heads, d], and back.
Tensor tokens_first(RankContext& ctx, const Tensor& x) {
  Tensor result = ctx.empty({x.size(0) * x.size(2), x.size(1), x.size(3)}, x.dtype());
  ctx.kernels->copy(ctx.kernel_context(),
                    {x.transpose(1, 2), result.view({x.size(0), x.size(2), x.size(1), x.size(3)})});
  return result;
}
Tensor heads_first(RankContext& ctx, const Tensor& x, int64_t batch) {
  const Tensor view = x.view({batch, x.size(0) / batch, x.size(1), x.size(2)}).transpose(1, 2);
  Tensor result = ctx.empty(view.shape(), x.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {view, result});
  return result;
}

class GoldenRope : public ::testing::TestWithParam<DType> {
 protected:
  Tensor load(const std::string& name) { return to_device(ctx_, golden_.tensor(name), GetParam()); }
  Tensor positions() { return to_device(ctx_, golden_.tensor("position_ids").view({80})); }
  void expect_rotated(const std::string& source, const std::string& expected,
                      const ops::RopeFrequencies& frequencies, bool interleaved = false) {
    const ops::Rotation rotation = ops::rope_tables(ctx_, positions(), frequencies, GetParam(), interleaved);
    const Tensor x = load(source);
    const Tensor y = ops::rope(ctx_, tokens_first(ctx_, x), rotation);
    EXPECT_TRUE(is_close(ctx_, expected, heads_first(ctx_, y, 2), golden_.tensor(expected), tolerance()));
  }

  // The reference's angles of up to 56 are rounded to fp32, by up to 1.9e-6; against fp64 that shows in full.
  static Tolerance tolerance() {
    return GetParam() == DType::F64 ? Tolerance{2e-6, 1e-5, 1.9e-6} : kElementwise;
  }

  RankContext ctx_{testing::test_device()};
  SafetensorsFile golden_ = golden_tensors("numerics", "rope");
};

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenRope, ::testing::Values(DType::F32, DType::F64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(GoldenRope, Variants) {
  const Json settings = golden_json("numerics", "rope");
  for (const auto& [name, variant] : settings.at("variants").as_object()) {
    const double theta = variant.at("rope_parameters").at("rope_theta").as_double();
    const ops::RopeScaling scaling = scaling_of(variant);
    // The longest position of the call is 56.
    const ops::RopeFrequencies frequencies = ops::rope_frequencies(16, theta, scaling, 57);
    EXPECT_NEAR(frequencies.amplitude, variant.at("attention_scaling").as_double(), 1e-12) << name;
    EXPECT_TRUE(is_close(name + ".inv_freq", {8}, frequencies.inverse,
                         testing::to_doubles(golden_.tensor(name + ".inv_freq")), Tolerance{0, 1e-6, 0}));

    const ops::Rotation rotation = ops::rope_tables(ctx_, positions(), frequencies, GetParam());
    for (const auto& [what, tensor] : {std::pair("cos", rotation.cos), std::pair("sin", rotation.sin)}) {
      const std::string key = fmt::format("{}.{}", name, what);
      const Tensor half = to_device(ctx_, golden_.tensor(key)).view({80, 16}).slice(1, 0, 8);  // of two alike
      EXPECT_TRUE(is_close(key, half.shape(), testing::to_doubles(ctx_, tensor),
                           testing::to_doubles(ctx_, half), kElementwise));
    }
    // With the reference's own frequencies: in fp32 one unit in their last place, at position 56, is worth
    // more than the tolerance.
    const ops::RopeFrequencies reference{testing::to_doubles(golden_.tensor(name + ".inv_freq")),
                                         frequencies.amplitude};
    expect_rotated("q", name + ".q_rot", reference);
    expect_rotated("k", name + ".k_rot", reference);
  }
}

TEST_P(GoldenRope, LengthsOfTheCall) {
  const Json settings = golden_json("numerics", "rope");
  for (const char* name : {"dynamic", "longrope"}) {
    const Json& variant = settings.at("variants").at(name);
    for (const int64_t length : {16, 57, 120}) {
      const ops::RopeFrequencies frequencies = ops::rope_frequencies(
          16, variant.at("rope_parameters").at("rope_theta").as_double(), scaling_of(variant), length);
      const std::string key = fmt::format("{}.inv_freq_seq{}", name, length);
      EXPECT_TRUE(is_close(key, {8}, frequencies.inverse, testing::to_doubles(golden_.tensor(key)),
                           Tolerance{0, 1e-6, 0}));
      EXPECT_NEAR(frequencies.amplitude,
                  variant.at(fmt::format("attention_factor_seq{}", length)).as_double(), 1e-12);
    }
  }
}

TEST_P(GoldenRope, InterleavedAndPartial) {
  expect_rotated("q", "interleaved.q_rot", ops::rope_frequencies(16, 10000), true);
  expect_rotated("q", "partial0.5.q_rot", ops::rope_frequencies(8, 10000));
}

}  // namespace
}  // namespace megatron
