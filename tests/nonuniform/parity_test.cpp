#include <gtest/gtest.h>

#include <cstdlib>

#include "nonuniform/layouts.h"

// Replicas with tensor-parallel groups of different sizes train like one rank, to 1e-10 after ten steps, and
// all copies of a weight stay equal to the bit.
namespace megatron::testing {
namespace {

constexpr int kTenSteps = 10;

Trained check(const Nonuniform& layout, const Config& config, const NonuniformOptions& options,
              const Trained& one) {
  SCOPED_TRACE(name_of(layout, options));
  const Trained many =
      train(apply(config, layout, options), sizes_of(layout), batches_for(config, kTenSteps));
  expect_equal(one, many, 1e-10);
  EXPECT_EQ(many.ranks_apart, 0) << "losses and norms that ranks report";
  for (const auto& [name, tensor] : many.parameters)
    EXPECT_EQ(tensor.copies_apart, 0) << "copies of " << name << " differ";
  return many;
}

void check(const Nonuniform& layout, const Config& config, const NonuniformOptions& options = {}) {
  check(layout, config, options, train(config, {}, batches_for(config, kTenSteps)));
}

TEST(Nonuniform, FourTwo) { check(kFourTwo, tied_gpt()); }
TEST(Nonuniform, FourThreeDistributed) { check(kFourThree, tied_gpt(), {.distributed = true}); }
TEST(Nonuniform, EightSixSequenceParallel) { check(kEightSix, tied_gpt(), {.sp = true}); }
TEST(Nonuniform, EightSevenSixFewGroups) {
  check(kEightSevenSix, few_groups(), {.sp = true, .distributed = true});
}
TEST(Nonuniform, FourOneExperts) { check(kFourOne, experts(), {.sp = true}); }
TEST(Nonuniform, FourTwoStagesAndBiases) {
  Nonuniform stages = kFourThree;
  stages.pp = 2;
  check(stages, biases(), {.sp = true, .distributed = true});
}
TEST(Nonuniform, FourThreeContextSlices) {
  Nonuniform slices = kFourThree;
  slices.cp = 2;
  check(slices, tied_gpt(), {.sp = true});
}
TEST(Nonuniform, EightSixLatentAttention) { check(kEightSix, latent(), {.sp = true}); }

// Every layout with every model, sequence parallelism, either optimizer and two stages.
TEST(NonuniformMatrix, All) {
  if (!std::getenv("MEGATRON_NONUNIFORM"))
    GTEST_SKIP() << "set MEGATRON_NONUNIFORM; ./megatron test --full does";
  for (const auto& [what, config] : {std::pair{"tied", tied_gpt()},
                                     {"few groups", few_groups()},
                                     {"biases", biases()},
                                     {"experts", experts()},
                                     {"latent", latent()}}) {
    SCOPED_TRACE(what);
    const Trained one = train(config, {}, batches_for(config, kTenSteps));
    for (const Nonuniform& size : {kFourTwo, kFourThree, kEightSix, kEightSevenSix, kFourOne})
      for (const int pp : {1, 2})
        for (const bool sp : {false, true}) {
          Nonuniform layout = size;
          layout.pp = pp;
          const Trained local = check(layout, config, {sp, false}, one);
          const Trained distributed = check(layout, config, {sp, true}, one);
          std::string where;
          EXPECT_LE(difference(local.parameters, distributed.parameters, &where), 1e-10)
              << name_of(layout, {sp, false}) << ", both optimizers: " << where;
        }
  }
}

}  // namespace
}  // namespace megatron::testing
