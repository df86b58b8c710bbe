// Every layout of tensor, sequence, pipeline and data parallelism up to sixteen ranks, not a choice of them.
#include <gtest/gtest.h>

#include "parity/cases.h"

namespace megatron::testing {
namespace {

void check_all(const Config& config) {
  auto batches = batches_for(config, 2);
  Trained one = train(config, {}, batches);
  int layouts = 0;
  for (int tp : {1, 2})
    for (bool sp : {false, true})
      for (int pp : {1, 2, 4})
        for (int vpp : {1, 2, 4})
          for (int dp : {1, 2, 4, 8}) {
            if (tp * pp * dp > 16 || (sp && tp == 1) || (vpp > 1 && (pp == 1 || pp * vpp > 4))) continue;
            // An interleaved schedule needs micro-batches in multiples of the stages.
            int64_t micro_batches = 16 / dp;
            if (vpp > 1 && micro_batches % pp != 0) continue;
            std::string name = fmt::format("tp{} sp{} pp{} vpp{} dp{}", tp, sp, pp, vpp, dp);
            SCOPED_TRACE(name);
            Layout layout{
                .name = name.c_str(), .tp = tp, .pp = pp, .dp = dp, .vpp = vpp, .sp = sp, .micro_batch = 1};
            expect_equal(one, train(apply(config, layout), sizes_of(layout), batches), kTolerance);
            ++layouts;
          }
  EXPECT_EQ(layouts, 39);
}

TEST(Sweep, GroupedQueryTiedRope) { check_all(small_gpt()); }
TEST(Sweep, LayerNormBiasLearnedPositionsUntied) { check_all(with_biases_and_layernorm()); }
TEST(Sweep, Dropout) { check_all(with_dropout()); }

}  // namespace
}  // namespace megatron::testing
