#pragma once

#include <span>

#include "megatron/config/schema/checkpoint_config.h"
#include "megatron/config/schema/data_config.h"
#include "megatron/config/schema/ddp_config.h"
#include "megatron/config/schema/distill_config.h"
#include "megatron/config/schema/elastic_config.h"
#include "megatron/config/schema/execution_config.h"
#include "megatron/config/schema/inference_config.h"
#include "megatron/config/schema/logger_config.h"
#include "megatron/config/schema/model_config.h"
#include "megatron/config/schema/optimizer_config.h"
#include "megatron/config/schema/parallel_config.h"
#include "megatron/config/schema/precision_config.h"
#include "megatron/config/schema/rl_config.h"
#include "megatron/config/schema/run_config.h"
#include "megatron/config/schema/tokenizer_config.h"
#include "megatron/config/schema/train_config.h"

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
  FtConfig ft;
  InProcessRestartConfig inprocess_restart;
  InferenceConfig inference;
  DistillConfig distill;
  RlConfig rl;
  ElasticConfig elastic;
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
