#include <chrono>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/seconds_since.h"
#include "megatron/cli/doctor/doctor.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/parity.h"

namespace megatron {
namespace {

constexpr int kSteps = 3;
// Losses of the training below in fp64. They hold for every device, layout and processor: initial weights and
// tokens come from counters.
constexpr double kKnown[kSteps] = {4.8739722627803, 4.87590399183872, 4.83638431172696};

Config small_model() {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 64, .heads = 4, .groups = 2, .ffn = 96, .vocab = 128, .length = 32});
  config.model.make_vocab_size_divisible_by = 16;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  return config;
}

struct Trial {
  std::string subject;
  Device device;
  DType dtype;
  double tolerance;  // of a loss, relative
  int tp = 1, pp = 1;
};

Finding attempt(const Trial& trial) {
  Config config = small_model();
  config.parallel.tensor_model_parallel_size = trial.tp;
  config.parallel.pipeline_model_parallel_size = trial.pp;
  config.parallel.sequence_parallel = trial.tp > 1;
  ParityRun run;
  run.sizes = {.world = trial.tp * trial.pp, .tp = trial.tp, .pp = trial.pp};
  run.dtype = trial.dtype;
  run.device = trial.device;
  run.lr = 1e-3;
  Finding finding{.subject = trial.subject};
  const auto begin = std::chrono::steady_clock::now();
  try {
    const TrainedLayout result = train_layout(config, run, random_batches(config, kSteps));
    double worst = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double error = std::abs(result.losses[static_cast<size_t>(step)] / kKnown[step] - 1);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    const double seconds = seconds_since(begin);
    finding.text = fmt::format("{} steps in {:.2f} s; losses as known to {:.1e}", kSteps, seconds, worst);
    if (worst <= trial.tolerance) return finding;
    finding.text += fmt::format(" (at most {:.0e} is right): {:.15g}", trial.tolerance, result.losses[0]);
    for (int step = 1; step < kSteps; ++step)
      finding.text += fmt::format(" {:.15g}", result.losses[static_cast<size_t>(step)]);
    finding.advice = "do not train on this device: it, its memory or the build computes wrongly";
  } catch (const std::exception& error) {
    finding.text = error.what();
    finding.advice = "the test ended with a fault; run megatron test";
  }
  finding.grade = Grade::Wrong;
  return finding;
}

}  // namespace

CheckList numeric_section(const GpuReport& report) {
  CheckList section{"self-test: a small GPT, trained", {}};
  std::vector<Trial> trials = {{"cpu fp64", kCpu, DType::F64, 1e-9},
                               {"cpu fp32", kCpu, DType::F32, 1e-5},
                               {"cpu bf16", kCpu, DType::BF16, 2e-2},
                               {"4 thread ranks", kCpu, DType::F64, 1e-9, 2, 2}};
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    if (!report.gpus[i].fault.empty()) continue;
    const Device gpu{DeviceType::Cuda, static_cast<int8_t>(i)};
    trials.push_back({fmt::format("cuda:{} fp64", i), gpu, DType::F64, 1e-9});
    trials.push_back({fmt::format("cuda:{} fp32", i), gpu, DType::F32, 1e-5});
    trials.push_back({fmt::format("cuda:{} bf16", i), gpu, DType::BF16, 2e-2});
    trials.push_back({fmt::format("4 ranks, cuda:{}", i), gpu, DType::F64, 1e-9, 2, 2});
  }
  for (const Trial& trial : trials) section.findings.push_back(attempt(trial));
  return section;
}

}  // namespace megatron
