#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/resolve/resolve.h"
#include "megatron/datasets/batch_source.h"
#include "megatron/models/decoder_shape.h"

namespace megatron {

// A named training run. bench/peers holds the PyTorch counterpart of each that has no experts.
struct TrainCase {
  std::string_view name, summary;
  DecoderShape shape;
  int64_t batch, micro_batches;
  bool tied, qkv_bias = false;
  std::string_view recompute = "";  // modules, where memory should be saved
  ModelConfig (*style)(const DecoderShape&) = llama_style;
};

// How a case is run: its layout, precision and length.
struct BenchRun {
  int64_t steps = 10, warmup = 3, tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1;
  int64_t micro_batches = 0;           // 0: the case's
  std::vector<std::string> overrides;  // section.key=value, the strongest
  std::string device = "auto", precision, gradients = "bf16", moments = "fp32", recompute, memory_gib;
  bool deterministic = false, graphs = false, nvtx = false;

  int64_t ranks() const { return tensor_parallel * pipeline_parallel * data_parallel; }
  // Whether it computes on GPUs; the precision that was not given becomes the device's usual one.
  bool choose_device();
};

// The case that the words name; a UsageError of the bench where they name none. Words of the form
// section.key=value become overrides of the run.
const TrainCase& find_case(std::string_view bench, std::vector<std::string> words, BenchRun* run = nullptr);
std::string case_list();  // for --help, a line each
ModelConfig model_of(const TrainCase& c);

// The settings of a case, as a command line would give them.
Sources sources_of(const TrainCase& c, const BenchRun& run);
std::optional<Fp8Recipe> fp8_recipe(const std::string& precision);

// The same random rows in every step.
std::shared_ptr<const BatchSource> random_rows(const Config& config);

}  // namespace megatron
