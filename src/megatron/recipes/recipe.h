#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// A configuration of the catalogue: a model, a task, and the GPUs that it was laid out for.
struct Recipe {
  std::string name;  // "llama3_8b_pretrain_2gpu_h100_bf16"; benchmarks begin with "perf/", small ones "tiny/"
  std::string family;  // the file that it stands in: "llama"
  std::string model;   // "llama3_8b"
  std::string task;    // pretrain, sft or peft
  int64_t gpus = 1;
  std::string gpu = "cpu";         // h100, gb200, gb300
  std::string precision = "fp32";  // bf16, fp8cs, fp8ds, fp8mx, fp8sc, nvfp4
  std::string variant;             // "16k"; mostly empty
  std::string hf;                  // the model on Hugging Face; empty where there is none
  std::string needs;               // what this build lacks for it; empty: nothing
  std::vector<std::string> notes;  // what Bridge's recipe has beyond the settings
  Json config;                     // config.json of the model
  Json settings;                   // {"optimizer.lr": 3e-4, ...}: all that the model does not say

  bool is_tiny() const { return name.starts_with("tiny/"); }
  bool is_benchmark() const { return name.starts_with("perf/"); }
};

// Fills model, task, GPUs, precision and variant from {model}_{task}_{N}gpu_{gpu}_{precision}[_{variant}],
// the form of Bridge's names. A ConfigError where it has another one.
void read_recipe_name(std::string_view name, Recipe& recipe);

// Every setting by section, those of the model as the bridge reads its config.json.
Json recipe_settings(const Recipe& recipe);

// The settings as a --config file, headed by what the recipe is for and its notes.
std::string recipe_yaml(const Recipe& recipe);

}  // namespace megatron
