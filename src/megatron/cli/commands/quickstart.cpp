#include "megatron/cli/commands/quickstart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/writable_folder.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/convert.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/text/preprocess.h"
#include "megatron/device/cpu_pool.h"
#include "megatron/device/runtime.h"
#include "megatron/inference/generate.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "megatron/tokenizers/training/bpe_trainer.h"
#include "megatron/training/run/run.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLength = 256, kBatch = 16;

// All text under a folder, file by file in the order of their names; hidden folders and build trees are left
// out.
std::vector<std::string> collect_text(const std::string& folder) {
  constexpr std::array kinds = {".md", ".h", ".cpp", ".cu", ".cuh", ".txt", ".yaml", ".cmake", ".sh", ".py"};
  if (!fs::is_directory(folder))
    throw ConfigError(
        fmt::format("quickstart: {} is not a folder; name one with text files by --text", folder));
  std::vector<fs::path> files;
  auto walk = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
  for (auto entry = fs::begin(walk); entry != fs::end(walk); ++entry) {
    const std::string name = entry->path().filename();
    if (entry->is_directory() && (name.starts_with(".") || name.starts_with("build")))
      entry.disable_recursion_pending();
    const std::string kind = entry->path().extension();
    if (entry->is_regular_file() && std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
      files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return texts;
}

// Computes the unigram entropy of the validation split, the last twentieth of the documents.
double unigram_entropy(const IndexedDataset& data, int64_t vocab_size) {
  std::vector<double> counts(static_cast<size_t>(vocab_size));
  std::vector<int64_t> tokens;
  double all = 0;
  for (int64_t i = data.sequences() * 19 / 20; i < data.sequences(); ++i) {
    tokens.resize(static_cast<size_t>(data.lengths()[i]));
    data.read(i, 0, tokens);
    for (int64_t token : tokens) ++counts[static_cast<size_t>(token)];
    all += static_cast<double>(tokens.size());
  }
  double entropy = 0;
  for (double count : counts)
    if (count > 0) entropy -= count / all * std::log(count / all);
  return entropy;
}

void train_tokenizer(const std::vector<std::string>& texts, int64_t vocab_size, const std::string& folder) {
  BpeTrainerOptions options;
  options.vocab_size = vocab_size;
  options.special_tokens = {"<|endoftext|>"};
  BpeTrainer trainer(options);
  for (const std::string& text : texts) trainer.add(text);
  const TrainedBpe trained = trainer.train();
  fs::create_directories(folder);
  write_file_atomically(folder + "/tokenizer.json", trained.to_json().dump(2));
}

std::string make_data(const std::vector<std::string>& texts, const Tokenizer& tokenizer,
                      const std::string& folder, const Log& log) {
  std::string lines;
  for (const std::string& text : texts) {
    Json row = Json::object();
    row["text"] = text;
    lines += row.dump() + "\n";
  }
  fs::create_directories(folder);
  write_file_atomically(folder + "/text.jsonl", lines);
  PreprocessOptions options;
  options.inputs = {folder + "/text.jsonl"};
  options.output_prefix = folder + "/text";
  options.append_eod = tokenizer.special_ids().eod;
  options.type = token_type_for(tokenizer.vocab_size());
  options.workers = available_cores();
  options.log = log;
  return preprocess(options,
                    [&]() -> EncodeText {
                      auto encoder = std::make_shared<Encoder>(tokenizer);
                      return [encoder](std::string_view text, std::vector<int32_t>& tokens) {
                        encoder->encode(text, tokens);
                      };
                    })
      .prefixes.at(0);
}

// What Hugging Face's libraries need to know of the model.
Json hf_config(int64_t vocab_size) {
  return Json::parse(fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
           "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6,
           "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": {}, "vocab_size": {},
           "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "attention_bias": false, "mlp_bias": false,
           "tie_word_embeddings": true, "eos_token_id": 0, "torch_dtype": "float32"}})",
      kLength, vocab_size));
}

struct KeepLosses final : Callback {
  explicit KeepLosses(QuickstartReport& report) : report(report) {}
  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::step_end) {
      if (view.report->iteration == 1) report.first_loss = view.report->loss;
      report.last_loss = view.report->loss;
      report.tokens_per_second = view.report->tokens_per_second;
    }
    if (event == RunEvent::eval_end) report.validation_loss = view.evaluation->loss;
  }
  QuickstartReport& report;
};

RunSpec training_spec(const QuickstartOptions& options, const QuickstartReport& report, int64_t vocab_size) {
  RunSpec spec = run_spec(fmt::format(
      "--num-layers 4 --hidden-size 192 --num-attention-heads 6 --group-query-attention --num-query-groups 2 "
      "--ffn-hidden-size 512 --swiglu --normalization RMSNorm --position-embedding-type rope "
      "--disable-bias-linear --attention-dropout 0 --hidden-dropout 0 --seq-length {0} "
      "--max-position-embeddings {0} --vocab-size {1} --make-vocab-size-divisible-by 1 "
      "--micro-batch-size 4 --global-batch-size {2} --train-iters {3} --lr 3e-3 --min-lr 3e-4 "
      "--lr-decay-style cosine --lr-warmup-fraction 0.05 --adam-beta2 0.95 --weight-decay 0.1 --split 19,1,0 "
      "--eval-interval {3} --eval-iters 4 --log-interval {4} --ranks {5} --tensor-model-parallel-size {6} "
      "--pipeline-model-parallel-size {7}{8}{9}",
      kLength, vocab_size, kBatch, options.steps, std::max<int64_t>(1, options.steps / 10),
      options.tensor_parallel * options.pipeline_parallel, options.tensor_parallel, options.pipeline_parallel,
      options.tensor_parallel > 1 ? " --sequence-parallel" : "", cuda_device_count() > 0 ? " --bf16" : ""));
  // Paths may hold blanks.
  spec.sources.flags.push_back({"--data-path", {"1", report.data}});
  spec.sources.flags.push_back({"--save", {options.out + "/checkpoints"}});
  return spec;
}

}  // namespace

QuickstartReport quickstart(const QuickstartOptions& options, const Log& log) {
  {
    // Refuses a layout that does not fit before anything is made.
    QuickstartReport nothing;
    nothing.data = "text";
    RunSpec spec = training_spec(options, nothing, options.vocab_size);
    spec.log = Log(LogLevel::error);
    resolve_run(spec, {});
  }
  const std::vector<std::string> texts = collect_text(options.folder);
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  if (bytes < 256 << 10 || texts.size() < 20)
    throw ConfigError(fmt::format(
        "quickstart: {} holds only {} bytes of text in {} files; name a folder with more by --text",
        options.folder, bytes, texts.size()));
  require_folder("quickstart --out", options.out);
  QuickstartReport report;
  report.tokenizer = options.out + "/tokenizer";
  log.info("training a tokenizer of {} tokens on {:.1f} MB of text", options.vocab_size,
           static_cast<double>(bytes) / 1e6);
  train_tokenizer(texts, options.vocab_size, report.tokenizer);
  const Tokenizer tokenizer = make_tokenizer("HuggingFaceTokenizer", report.tokenizer);
  report.data = make_data(texts, tokenizer, options.out + "/data", log);
  const IndexedDataset data(report.data);
  report.unigram_entropy = unigram_entropy(data, tokenizer.vocab_size());
  log.info("{}: {} documents, {:.2f}M tokens", report.data, data.documents(),
           static_cast<double>(data.bin_bytes()) / static_cast<double>(size_of(data.type())) / 1e6);

  RunSpec spec = training_spec(options, report, tokenizer.vocab_size());
  fs::remove_all(options.out + "/checkpoints");  // of an earlier quickstart
  spec.log = log;
  spec.out = stderr;
  spec.callbacks = {std::make_shared<KeepLosses>(report)};
  const RunEnd end = run(spec);
  if (end.reason != RunEnd::Reason::finished) throw Error("quickstart: " + end.text());
  report.checkpoint = options.out + "/checkpoints";
  log.info(
      "loss {:.3f} -> {:.3f}; on text it has not seen {:.3f} nats a token\n"
      "(frequencies of tokens alone reach {:.3f})",
      report.first_loss, report.last_loss, report.validation_loss, report.unigram_entropy);

  const std::string hf_source = options.out + "/hf-config";
  report.hf = options.out + "/hf";
  fs::remove_all(report.hf);
  fs::create_directories(hf_source);
  write_file_atomically(hf_source + "/config.json", hf_config(tokenizer.vocab_size()).dump(2));
  fs::copy_file(report.tokenizer + "/tokenizer.json", hf_source + "/tokenizer.json",
                fs::copy_options::overwrite_existing);
  export_model(report.checkpoint, report.hf, {.dtype = {}, .hf_config = hf_source, .progress = {}});

  RankContext ctx(kCpu, available_cores());
  const AutoBridge bridge(report.hf);
  Config one;
  one.model = bridge.model_config();
  const ParallelContext alone;
  Model model(one, alone, DType::F32);
  for (Parameter* parameter : model.parameters()) parameter->allocate(ctx, DType::F32);
  bridge.load(ctx, model.parameters());
  const std::vector<TokenId> ids = tokenizer.encode(options.prompt);
  const std::vector<int64_t> prompt(ids.begin(), ids.end());
  const std::vector<int64_t> written =
      generate(ctx, alone.world(), model, prompt,
               {.max_new_tokens = options.sample_tokens, .sampling = {.temperature = 0.7}});
  report.sample = tokenizer.decode(std::vector<TokenId>(written.begin(), written.end()));
  return report;
}

}  // namespace megatron
