#pragma once

#include <span>

#include "megatron/config/checkpoint_config.h"
#include "megatron/config/data_config.h"
#include "megatron/config/ddp_config.h"
#include "megatron/config/distill_config.h"
#include "megatron/config/execution_config.h"
#include "megatron/config/inference_config.h"
#include "megatron/config/logger_config.h"
#include "megatron/config/model_config.h"
#include "megatron/config/optimizer_config.h"
#include "megatron/config/parallel_config.h"
#include "megatron/config/peft_config.h"
#include "megatron/config/precision_config.h"
#include "megatron/config/resilience_config.h"
#include "megatron/config/rl_config.h"
#include "megatron/config/run_config.h"
#include "megatron/config/tokenizer_config.h"
#include "megatron/config/train_config.h"

namespace megatron {

// Every setting of a run as plain values. What the user writes as `model.KEY` is four structs here: model,
// parallel, precision and execution.
struct Config {
  ModelConfig model;
  ParallelConfig parallel;
  PrecisionConfig precision;
  ExecutionConfig execution;
  TrainConfig train;
  ValidationConfig validation;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  DdpConfig ddp;
  DistConfig dist;
  DatasetConfig dataset;
  TokenizerConfig tokenizer;
  CheckpointConfig checkpoint;
  LoggerConfig logger;
  ProfilingConfig profiling;
  RngConfig rng;
  RerunConfig rerun_state_machine;
  FaultToleranceConfig ft;
  StragglerConfig straggler;
  NvrxStragglerConfig nvrx_straggler;
  InProcessRestartConfig inprocess_restart;
  PeftConfig peft;
  InferenceConfig inference;
  RlConfig rl;
  DistillConfig distill;
  RunConfig run;

  Json to_json() const;  // {"model": {"num_layers": 2, ...}, "train": {...}, ...}
};

// A struct of Config and the rows that describe it.
struct Section {
  const Schema* schema;
  void* (*object)(Config&);
};

// In the order in which they are shown.
std::span<const Section> sections();

}  // namespace megatron
