#include "megatron/cli/commands/quickstart.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "megatron/base/progress.h"
#include "megatron/base/writable_folder.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/load.h"
#include "megatron/cli/common/check_layout.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/inference/generate.h"
#include "megatron/inference/model_source.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// The bytes of all text under a folder, in the order of the file names; hidden folders and build trees are
// left out.
std::string collect_text(const std::string& folder) {
  constexpr std::array kinds = {".md", ".h", ".cpp", ".cu", ".cuh", ".txt", ".yaml", ".cmake", ".sh", ".py"};
  std::vector<fs::path> files;
  if (!fs::is_directory(folder))
    throw ConfigError(
        fmt::format("quickstart: {} is not a folder; name one with text files by --text", folder));
  auto walk = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
  for (auto entry = fs::begin(walk); entry != fs::end(walk); ++entry) {
    std::string name = entry->path().filename();
    if (entry->is_directory() && (name.starts_with(".") || name.starts_with("build")))
      entry.disable_recursion_pending();
    std::string kind = entry->path().extension();
    if (entry->is_regular_file() && std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
      files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  return text;
}

double unigram_entropy(std::string_view text) {
  std::array<int64_t, 256> counts{};
  for (unsigned char c : text) ++counts[c];
  double entropy = 0, n = static_cast<double>(text.size());
  for (int64_t count : counts)
    if (count) entropy -= count / n * std::log(count / n);
  return entropy;
}

// Sequences of length + 1 bytes from places that depend on the step alone, so that every rank draws the same.
std::vector<int64_t> draw(std::string_view text, int64_t sequences, int64_t length, uint64_t stream,
                          int64_t step) {
  std::vector<int64_t> tokens;
  tokens.reserve(static_cast<size_t>(sequences * (length + 1)));
  for (int64_t i = 0; i < sequences; ++i) {
    auto random = Philox::at({1234, stream}, static_cast<uint64_t>(step * sequences + i));
    auto begin = static_cast<size_t>(((static_cast<uint64_t>(random.word[0]) << 32) | random.word[1]) %
                                     (text.size() - static_cast<size_t>(length)));
    for (int64_t t = 0; t <= length; ++t)
      tokens.push_back(static_cast<unsigned char>(text[begin + static_cast<size_t>(t)]));
  }
  return tokens;
}

double learning_rate(int64_t step, int64_t steps, double peak) {
  int64_t warmup = std::max<int64_t>(1, steps / 20);
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  double done =
      static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, steps - warmup));
  return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(3.141592653589793 * done)));
}

}  // namespace

Config quickstart_config(const QuickstartOptions& options) {
  Config config;
  config.model = llama_style(
      {.layers = 4, .hidden = 192, .heads = 6, .groups = 2, .ffn = 512, .vocab = 256, .length = 256});
  config.parallel.tensor_model_parallel_size = options.tensor_parallel;
  config.parallel.pipeline_model_parallel_size = options.pipeline_parallel;
  config.parallel.sequence_parallel = options.tensor_parallel > 1;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 16;
  config.optimizer.lr = 3e-3;
  config.optimizer.adam_beta2 = 0.95;
  config.optimizer.weight_decay = 0.1;
  return config;
}

QuickstartReport quickstart(const QuickstartOptions& options, const Log& log) {
  Config config = quickstart_config(options);
  check_layout(config);
  int64_t length = config.model.seq_length, batch = config.train.global_batch_size;
  std::string text = collect_text(options.folder);
  if (static_cast<int64_t>(text.size()) < 64 * length)
    throw ConfigError(
        fmt::format("quickstart: {} holds only {} bytes of text; name a folder with more by --text",
                    options.folder, text.size()));
  require_folder("quickstart --save", options.save);
  // The last twentieth is not learned from.
  std::string_view all = text, train = all.substr(0, all.size() / 20 * 19),
                   held_out = all.substr(train.size());
  QuickstartReport report;
  report.unigram_entropy = unigram_entropy(held_out);

  int ranks = options.tensor_parallel * options.pipeline_parallel;
  int threads = options.threads > 0 ? options.threads : available_cores();
  ParallelSizes sizes{.world = ranks, .tp = options.tensor_parallel, .pp = options.pipeline_parallel};
  log.info("learning {:.1f} MB of text byte by byte on {} rank{} (tp {} x pp {})",
           static_cast<double>(text.size()) / 1e6, ranks, ranks == 1 ? "" : "s", sizes.tp, sizes.pp);

  run_ranks(ranks, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, std::max(1, threads / ranks), world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, config, parallel, DType::F32);
    std::unique_ptr<Progress> progress;
    if (world.rank() == 0) progress = std::make_unique<Progress>(log, "training", options.steps);
    auto start = std::chrono::steady_clock::now();
    for (int64_t step = 0; step < options.steps; ++step) {
      auto tokens = draw(train, batch, length, 1, step);
      StepReport done = trainer.step(ctx, tokens, learning_rate(step, options.steps, *config.optimizer.lr));
      if (world.rank() != 0) continue;
      if (step == 0) report.first_loss = done.loss;
      report.last_loss = done.loss;
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      report.tokens_per_second = static_cast<double>((step + 1) * batch * length) / seconds;
      progress->update(step + 1,
                       fmt::format("loss {:.3f}  {:.0f} tokens/s", done.loss, report.tokens_per_second));
    }
    progress.reset();
    double loss = 0;
    constexpr int rounds = 4;
    for (int i = 0; i < rounds; ++i)
      loss += trainer.evaluate(ctx, draw(held_out, batch, length, 2, i)) / rounds;
    if (world.rank() == 0) report.validation_loss = loss;
    SaveRequest request{.root = options.save, .tensors = checkpoint_tensors(ctx, trainer)};
    request.state = {.iteration = options.steps,
                     .consumed_samples = options.steps * batch,
                     .seed = static_cast<uint64_t>(config.rng.seed),
                     .config = config.to_json()};
    std::string path = save_checkpoint(ctx, world, request);
    if (world.rank() == 0) report.checkpoint = path;
  });
  log.info(
      "loss {:.3f} -> {:.3f}; on text it has not seen {:.3f} nats per byte\n"
      "(letter frequencies alone reach {:.3f})",
      report.first_loss, report.last_loss, report.validation_loss, report.unigram_entropy);

  RankContext ctx(kCpu, threads);
  Config one = config;
  one.parallel = {};
  const ParallelContext alone;
  RankModel model(one, alone, DType::F32);
  ModelSource::checkpoint(report.checkpoint).load(ctx, model.parameters(), DType::F32);
  std::vector<int64_t> prompt;
  for (unsigned char c : options.prompt) prompt.push_back(c);
  auto bytes = generate(ctx, alone.world(), model, prompt,
                        {.max_new_tokens = options.sample_tokens, .sampling = {.temperature = 0.7}});
  for (int64_t byte : bytes) report.sample.push_back(static_cast<char>(byte));
  return report;
}

}  // namespace megatron
