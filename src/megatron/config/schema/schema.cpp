// The rows of every struct, from the same .def files that declare its members.
#include "megatron/base/kernel_limits.h"
#include "megatron/config/config.h"
#include "megatron/config/schema/conditions.h"

namespace megatron {

using namespace conditions;

#define SETTING(type, name, value, help, ...) s.field<&C::name>(#name, help) __VA_ARGS__;

template <>
const Schema& schema<RunConfig>() {
  using C = RunConfig;
  static const Schema rows = [] {
    Schema s("run", "Where ranks live");
#include "megatron/config/settings/run.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<ModelConfig>() {
  using C = ModelConfig;
  static const Schema rows = [] {
    Schema s("model", "Model");
#include "megatron/config/settings/model.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<MoeConfig>() {
  using C = MoeConfig;
  static const Schema rows = [] {
    Schema s("model", "Mixture of experts");
#include "megatron/config/settings/moe.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<ParallelConfig>() {
  using C = ParallelConfig;
  static const Schema rows = [] {
    Schema s("model", "Parallelism");
#include "megatron/config/settings/parallel.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<PrecisionConfig>() {
  using C = PrecisionConfig;
  static const Schema rows = [] {
    Schema s("model", "Precision");
#include "megatron/config/settings/precision.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<ExecutionConfig>() {
  using C = ExecutionConfig;
  static const Schema rows = [] {
    Schema s("model", "Recompute, graphs and offload");
#include "megatron/config/settings/execution.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<TrainConfig>() {
  using C = TrainConfig;
  static const Schema rows = [] {
    Schema s("train", "Training");
#include "megatron/config/settings/train.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<ValidationConfig>() {
  using C = ValidationConfig;
  static const Schema rows = [] {
    Schema s("validation", "Evaluation");
#include "megatron/config/settings/validation.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<OptimizerConfig>() {
  using C = OptimizerConfig;
  static const Schema rows = [] {
    Schema s("optimizer", "Optimizer");
#include "megatron/config/settings/optimizer.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<SchedulerConfig>() {
  using C = SchedulerConfig;
  static const Schema rows = [] {
    Schema s("scheduler", "Schedule");
#include "megatron/config/settings/scheduler.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<DdpConfig>() {
  using C = DdpConfig;
  static const Schema rows = [] {
    Schema s("ddp", "Data parallelism");
#include "megatron/config/settings/ddp.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<DistConfig>() {
  using C = DistConfig;
  static const Schema rows = [] {
    Schema s("dist", "Processes and groups");
#include "megatron/config/settings/dist.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<DatasetConfig>() {
  using C = DatasetConfig;
  static const Schema rows = [] {
    Schema s("dataset", "Data");
#include "megatron/config/settings/dataset.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<TokenizerConfig>() {
  using C = TokenizerConfig;
  static const Schema rows = [] {
    Schema s("tokenizer", "Tokenizer");
#include "megatron/config/settings/tokenizer.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<CheckpointConfig>() {
  using C = CheckpointConfig;
  static const Schema rows = [] {
    Schema s("checkpoint", "Checkpoints");
#include "megatron/config/settings/checkpoint.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<LoggerConfig>() {
  using C = LoggerConfig;
  static const Schema rows = [] {
    Schema s("logger", "Logging");
#include "megatron/config/settings/logger.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<ProfilingConfig>() {
  using C = ProfilingConfig;
  static const Schema rows = [] {
    Schema s("profiling", "Profiling");
#include "megatron/config/settings/profiling.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<RngConfig>() {
  using C = RngConfig;
  static const Schema rows = [] {
    Schema s("rng", "Random numbers");
#include "megatron/config/settings/rng.def"
    return s;
  }();
  return rows;
}

template <>
const Schema& schema<RerunConfig>() {
  using C = RerunConfig;
  static const Schema rows = [] {
    Schema s("rerun_state_machine", "Result checks");
#include "megatron/config/settings/rerun.def"
    return s;
  }();
  return rows;
}

}  // namespace megatron
