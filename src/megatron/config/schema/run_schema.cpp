#include "megatron/config/schema/run_config.h"

namespace megatron {
namespace {

Schema run_config_schema() {
  using C = RunConfig;
  Schema s("run", "Where ranks live");
  s.field<&C::ranks>("ranks", "ranks that live as threads of this process").min(1).max(1 << 24);
  s.field<&C::world_size>("world_size", "ranks of the whole job")
      .min(1)
      .max(1 << 24)
      .when_unset("as started: processes x ranks");
  s.field<&C::device>("device", "cpu, or cuda with rank i on GPU i mod n");
  s.field<&C::comm>("comm", "how ranks talk");
  s.field<&C::mixed_precision>("mixed_precision",
                               "precision preset, such as bf16_mixed, that sets the number formats")
      .flag("--precision")
      .alias("mixed_precision");
  s.field<&C::env_vars>("env_vars", "environment variables set before anything starts")
      .no_flag()
      .alias("env_vars");
  return s;
}

Schema rng_config_schema() {
  using C = RngConfig;
  Schema s("rng", "Random numbers");
  s.field<&C::seed>("seed", "seed of weights, dropout and data order").min(1);
  s.field<&C::data_parallel_random_init>("data_parallel_random_init",
                                         "replicas begin with different weights");
  return s;
}

}  // namespace

template <>
const Schema& schema<RunConfig>() {
  static const Schema rows = run_config_schema();
  return rows;
}

template <>
const Schema& schema<RngConfig>() {
  static const Schema rows = rng_config_schema();
  return rows;
}

}  // namespace megatron
