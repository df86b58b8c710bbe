// Thousands of spoiled inputs for each parser: an Error or a value, never a crash, a hang or another
// exception.
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "fuzz/feed.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/config/resolve/hybrid_pattern.h"
#include "megatron/config/resolve/pipeline_layout.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/sources/command_line.h"
#include "megatron/config/sources/value_parser.h"
#include "megatron/config/sources/yaml.h"
#include "megatron/parallel/pipeline/microbatches.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

TEST(Fuzz, Yaml) {
  std::vector<std::string> texts = {
      "model:\n  num_layers: 4\n  hidden_size: 32 # width\n  moe_layer_freq: [0, 1, 1]\noptimizer: {lr: "
      "3e-4}\n",
      "base: &base\n  seq_length: 128\nmodel:\n  <<: *base\n  activation_func: \"silu\"\n  tags: [a, 'b', "
      "~]\n",
      "train:\n  data: |\n    several\n    lines\n  ratio: .inf\n  flag: true\nlist:\n- 1\n- {a: [2, 3]}\n"};
  Mutator mutator(1, texts,
                  {"&a ",
                   "*a",
                   "<<: ",
                   "{",
                   "}",
                   "[",
                   "]",
                   ": ",
                   "- ",
                   "\n",
                   "\t",
                   "!!int ",
                   "? ",
                   "|",
                   ">",
                   "%YAML",
                   "---\n",
                   "\"",
                   "'",
                   "\\x",
                   "&a [*a]",
                   "1e999",
                   "0x7fffffffffffffffff",
                   std::string(1, '\0')});
  fuzz(mutator, 20000, [](const std::string& text) { read_yaml(text, "file"); });
}

TEST(Fuzz, Overrides) {
  std::vector<std::string> texts = {"[1, 2.5, true, null]",
                                    "{a: 1, b: {c: [x, 'y']}}",
                                    "'it''s'",
                                    "\"a\\nb\"",
                                    "${model.hidden_size}",
                                    "-1e-4",
                                    "([0]*3+[1]*5)*2",
                                    "[[1,2],[3]]"};
  std::vector<std::string> words = {
      "[",     "]",  "{",          "}", ",", ":", "'",        "\"",
      "\\u12", "${", "*999999999", "+", "(", ")", "[[[[[[[[", "9999999999999999999",
      "inf",   "-"};
  fuzz(Mutator(2, texts, words), 50000,
       [&](const std::string& text) { require(!parse_override_value(text).error, "refused"); });
  fuzz(Mutator(3, texts, words), 50000,
       [&](const std::string& text) { require(!parse_pattern(text).error, "refused"); });
}

// From words to a resolved configuration: every flag, override and rule may meet any value.
TEST(Fuzz, CommandLines) {
  std::vector<std::string> texts = {
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
      "--micro-batch-size 2 --global-batch-size 16 --train-iters 10 --lr 1e-4 --swiglu --vocab-size 100",
      "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --num-query-groups 2 --group-query-attention "
      "--seq-length 32 --max-position-embeddings 32 --tensor-model-parallel-size 2 --sequence-parallel "
      "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --ranks 8 "
      "--micro-batch-size 1 --global-batch-size 8 --use-distributed-optimizer model.bf16=true",
      "--num-layers 6 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
      "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 2 --moe-layer-freq ([0]*1+[1]*5) "
      "--pipeline-model-parallel-layout Et*3|t*3L --pipeline-model-parallel-size 2 --ranks 4 "
      "--micro-batch-size 1 --global-batch-size 4 --recompute-granularity selective --recompute-modules "
      "core_attn"};
  std::vector<std::string> words = {" --fp16 ",
                                    " --bf16 ",
                                    " --context-parallel-size 2 ",
                                    " -1 ",
                                    " 0 ",
                                    "999999999",
                                    "1e999",
                                    "nan",
                                    " model.num_layers=",
                                    " ++a.b=1 ",
                                    " ~model.lr ",
                                    "=",
                                    "|",
                                    "*",
                                    " --hybrid-layer-pattern M-M*|E/MM ",
                                    " --step-batch-size-schedule 0:4,1B:8 ",
                                    " --num-virtual-stages-per-pipeline-rank 3 ",
                                    " -- ",
                                    " --recompute-granularity full --recompute-method block "};
  auto resolve_line = [](const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> args{std::istream_iterator<std::string>(stream), {}};
    resolve(parse_command_line(args).sources, {.purpose = Purpose::inspect, .allow_unavailable = true});
  };
  for (const std::string& text : texts) EXPECT_NO_THROW(resolve_line(text)) << text;
  fuzz(Mutator(6, texts, words), 500, resolve_line);
}

// The small languages inside values.
TEST(Fuzz, LayoutsPatternsAndSchedules) {
  fuzz(Mutator(7, {"Et*3|(tt|)*29,m|L", "Ettt|tttL", "E(t|)*4L"}, {"(", ")*", "*9999999999", "|", "E", "L"}),
       30000, [](const std::string& text) { parse_pipeline_layout(text); });
  fuzz(Mutator(8, {"M-M-*-|M-ME", "MM*/M/M", "GG+D-|E"}, {"|", "/", "*", "M", " "}), 30000,
       [](const std::string& text) { parse_hybrid_pattern(text); });
  fuzz(Mutator(9, {"0:512 10B:1024", "0:4 1K:8 2M:16"}, {":", "T", "99999999999999999999", "-", ",", " "}),
       30000, [](const std::string& text) { parse_batch_schedule(text, 2048); });
}

TEST(Fuzz, SafetensorsHeaders) {
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";
  uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header + std::string(32, 'x');
  TempDir dir;
  std::string path = dir / "x.safetensors";
  std::vector<std::string> words = {"[",
                                    "]",
                                    "{",
                                    "}",
                                    "\"",
                                    ",",
                                    ":",
                                    "-1",
                                    "1e300",
                                    "18446744073709551615",
                                    "9223372036854775807",
                                    "\"F32\"",
                                    "\"U64\"",
                                    "\\ud800",
                                    "\"a\":",
                                    std::string(8, '\xff'),
                                    std::string(8, '\0')};
  // Both the whole file, and the header alone with its true length before it, so that its JSON is reached.
  auto parse = [&](const std::string& text) {
    // A file that is cut and written again is flushed to the disk when it is closed; a new one is not.
    std::filesystem::remove(path);
    write_text(path, text);
    SafetensorsFile opened(path);
    for (const SafetensorsEntry& entry : opened.entries()) opened.tensor(entry.name);
  };
  fuzz(Mutator(4, {file}, words), 5000, parse);
  fuzz(Mutator(5, {header}, words), 10000, [&](const std::string& text) {
    uint64_t size = text.size();
    parse(std::string(reinterpret_cast<const char*>(&size), 8) + text + std::string(32, 'x'));
  });
}

}  // namespace
}  // namespace megatron::testing
