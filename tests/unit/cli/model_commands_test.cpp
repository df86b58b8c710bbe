#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <set>

#include "megatron/base/interruption.h"
#include "megatron/checkpoint/safetensors_directory.h"
#include "support/error_of.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

// logits, generate, compare and convert as a user calls them, on Hugging Face's own small models.
namespace megatron {
namespace {

using testing::golden_path;
using testing::TempDir;
using testing::to_doubles;

class ModelCommands : public ::testing::Test {
 protected:
  std::string model_ = golden_path("hf_models", "llama/model");
  std::string io_ = golden_path("hf_models", "llama/io.safetensors");
  TempDir folder_;

  std::string imported() {
    EXPECT_EQ(run_command({"convert", "import", "--hf", model_, "--out", folder_ / "ckpt"}).code, 0);
    return folder_ / "ckpt";
  }
};

TEST_F(ModelCommands, LogitsOfAnyLayoutFromEitherSource) {
  const std::string out = folder_ / "out.safetensors", checkpoint = imported();
  const std::vector<double> expected = to_doubles(SafetensorsFile(io_).tensor("out.logits"));
  const std::vector<std::vector<std::string>> calls = {
      {"--hf", model_},
      {"--ckpt", checkpoint, "--micro-batch-size", "2"},
      {"--hf", model_, "--ranks", "4", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
       "2"},
      {"--ckpt", checkpoint, "--ranks", "4", "--context-parallel-size", "2"}};
  for (std::vector<std::string> args : calls) {
    args.insert(args.begin(), {"-q", "logits", "--tokens", io_ + ":in.input_ids", "--out", out});
    const Outcome outcome = run_command(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const SafetensorsFile file(out);
    EXPECT_EQ(file.tensor("logits").shape(), SafetensorsFile(io_).tensor("out.logits").shape());
    const std::vector<double> logits = to_doubles(file.tensor("logits"));
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 2e-5);
  }
}

// Decoders with a vision tower, which the first stage runs.
TEST_F(ModelCommands, ImagesInTheText) {
  for (const std::string name : {"qwen2_vl", "qwen2_5_vl", "gemma3_mm"}) {
    SCOPED_TRACE(name);
    const std::string model = golden_path("hf_models", name + "/model"), checkpoint = folder_ / name,
                      file = golden_path("hf_models", name + "/io.safetensors"),
                      out = folder_ / "logits.safetensors";
    const SafetensorsFile io(file);
    const std::vector<double> expected = to_doubles(io.tensor("out.logits"));
    ASSERT_EQ(run_command({"convert", "import", "--hf", model, "--out", checkpoint}).code, 0);
    const std::vector<std::string> tp = {"--ranks", "2", "--tensor-model-parallel-size", "2"};
    std::vector<std::string> pp = {"--ranks", "2", "--pipeline-model-parallel-size", "2"};
    if (name == "gemma3_mm") pp.insert(pp.end(), {"--pipeline-model-parallel-layout", "Et*2|tL"});
    std::vector<std::string> both = pp;
    both[1] = "4";
    both.insert(both.end(), {"--tensor-model-parallel-size", "2"});
    for (const std::vector<std::string>& layout : {std::vector<std::string>{}, tp, pp, both}) {
      for (const std::vector<std::string>& source :
           {std::vector<std::string>{"--hf", model}, {"--ckpt", checkpoint, "--micro-batch-size", "2"}}) {
        std::vector<std::string> args = {"-q",       "logits",      "--tokens", file + ":in.input_ids",
                                         "--images", file + ":in.", "--out",    out};
        args.insert(args.end(), source.begin(), source.end());
        args.insert(args.end(), layout.begin(), layout.end());
        const Outcome outcome = run_command(args);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const std::vector<double> logits = to_doubles(SafetensorsFile(out).tensor("logits"));
        ASSERT_EQ(logits.size(), expected.size());
        for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 5e-5);
      }
    }
    const std::vector<double> text = to_doubles(io.tensor("gen.0.ids"));
    const auto prompt = static_cast<size_t>(to_doubles(io.tensor("gen.0.prompt_len"))[0]);
    std::string ids;
    for (size_t i = 0; i < prompt; ++i)
      ids += fmt::format("{}{}", i ? "," : "", static_cast<int64_t>(text[i]));
    std::vector<std::string> args = {
        "-q",           "generate", "--hf",   model,          "--images",         file + ":in.",
        "--prompt-ids", ids,        "--json", "--ignore-eos", "--max-new-tokens", "6"};
    args.insert(args.end(), tp.begin(), tp.end());
    const Outcome outcome = run_command(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json written = Json::parse(outcome.out).at("ids");
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(written[i].as_int(), static_cast<int64_t>(text[prompt + i]));
    EXPECT_EQ(run_command({"logits", "--hf", model, "--tokens", file + ":in.input_ids", "--out", out}).code,
              1)
        << "a text that speaks of images without them";
  }
}

// BERT and T5: tokens that see those after them, padding, and a decoder behind an encoder.
TEST_F(ModelCommands, EncodersAndTheirDecoders) {
  const auto file = [](const std::string& name) {
    return golden_path("hf_models", name + "/io.safetensors");
  };
  const auto run = [&](const std::string& name, std::vector<std::string> args) {
    args.insert(args.begin(), {"-q", "logits", "--tokens", file(name) + ":in.input_ids", "--attention-mask",
                               file(name) + ":in.attention_mask", "--out", folder_ / "out.safetensors"});
    const Outcome outcome = run_command(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<double> expected = to_doubles(SafetensorsFile(file(name)).tensor("out.logits")),
                              logits =
                                  to_doubles(SafetensorsFile(folder_ / "out.safetensors").tensor("logits"));
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 2e-5);
  };
  const std::string bert = golden_path("hf_models", "bert/model"),
                    t5 = golden_path("hf_models", "t5_gated/model");
  const std::vector<std::string> types = {"--token-types", file("bert") + ":in.token_type_ids"},
                                 decoder = {"--decoder-tokens", file("t5_gated") + ":in.decoder_input_ids"},
                                 tp = {"--ranks", "2", "--tensor-model-parallel-size", "2"};
  const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b,
                       const std::vector<std::string>& c = {}) {
    a.insert(a.end(), b.begin(), b.end());
    a.insert(a.end(), c.begin(), c.end());
    return a;
  };
  for (const auto& [name, model, own] : {std::tuple{"bert", bert, types}, {"t5_gated", t5, decoder}}) {
    SCOPED_TRACE(name);
    const std::string checkpoint = folder_ / name;
    ASSERT_EQ(run_command({"convert", "import", "--hf", model, "--out", checkpoint}).code, 0);
    run(name, with({"--hf", model}, own));
    run(name, with({"--ckpt", checkpoint, "--micro-batch-size", "2"}, own));
    run(name, with({"--hf", model}, own, tp));
    EXPECT_EQ(run_command({"compare", model, checkpoint}).code, 0);
  }
  run("bert", with({"--hf", bert, "--ranks", "4", "--pipeline-model-parallel-size", "2",
                    "--tensor-model-parallel-size", "2"},
                   types));

  const SafetensorsFile io(file("t5_gated"));
  const std::vector<double> text = to_doubles(io.tensor("gen.0.ids")),
                            ids = to_doubles(io.tensor("in.input_ids")),
                            mask = to_doubles(io.tensor("in.attention_mask"));
  std::string prompt, answer;
  for (size_t i = 0; i < ids.size() / 2 && mask[i] == 1; ++i)
    prompt += (prompt.empty() ? "" : ",") + std::to_string(static_cast<int64_t>(ids[i]));
  for (size_t i = 1; i < text.size(); ++i)
    answer += (answer.empty() ? "" : ",") + std::to_string(static_cast<int64_t>(text[i]));
  const Outcome generated = run_command({"-q", "generate", "--hf", t5, "--prompt-ids", prompt,
                                         "--max-new-tokens", std::to_string(text.size() - 1)});
  ASSERT_EQ(generated.code, 0) << generated.err;
  EXPECT_EQ(generated.out, answer + "\n");

  for (const auto& [args, advice] : std::initializer_list<std::pair<std::vector<std::string>, const char*>>{
           {{"generate", "--hf", bert, "--prompt-ids", "1"}, "does not go on from a prompt"},
           {{"logits", "--hf", t5, "--tokens", file("bert") + ":in.input_ids", "--out", folder_ / "x"},
            "--decoder-tokens"},
           {with({"logits", "--hf", model_, "--tokens", file("bert") + ":in.input_ids", "--out",
                  folder_ / "x"},
                 types),
            "--token-types: this model has no use for it"},
           {with({"logits", "--hf", t5, "--tokens", file("t5_gated") + ":in.input_ids", "--out",
                  folder_ / "x", "--ranks", "2", "--pipeline-model-parallel-size", "2"},
                 decoder),
            "relative positions belong to the layers of all stages; use 1"}}) {
    const Outcome outcome = run_command(args);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find(advice), std::string::npos) << outcome.err;
  }
}

TEST_F(ModelCommands, GenerateWritesWhatHuggingFaceWrites) {
  const SafetensorsFile io(io_);
  const std::vector<double> ids = to_doubles(io.tensor("gen.0.ids"));
  const auto prompt = static_cast<size_t>(to_doubles(io.tensor("gen.0.prompt_len"))[0]);
  std::string list;
  for (size_t i = 0; i < prompt; ++i) list += (i ? "," : "") + std::to_string(static_cast<int64_t>(ids[i]));
  const Outcome outcome =
      run_command({"-q", "generate", "--hf", model_, "--prompt-ids", list, "--max-new-tokens", "6",
                   "--ignore-eos", "--json", "--ranks", "2", "--tensor-model-parallel-size", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json added = Json::parse(outcome.out).at("ids");
  ASSERT_EQ(added.size(), 6);
  for (size_t i = 0; i < added.size(); ++i)
    EXPECT_EQ(added[i].as_int(), static_cast<int64_t>(ids[prompt + i]));
}

TEST_F(ModelCommands, CompareNamesTheFirstLayerThatDiffers) {
  const Outcome same = run_command({"-q", "compare", model_, imported(), "--json"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(Json::parse(same.out).at("logits_max_abs_difference").as_double(), 0);
  const Outcome other = run_command({"-q", "compare", model_, golden_path("hf_models", "llama_tied/model")});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.out.find("layer 0 is the first"), std::string::npos) << other.out;
  const Outcome unlike =
      run_command({"-q", "compare", model_, golden_path("hf_models", "gemma3_text/model")});
  EXPECT_EQ(unlike.code, 1);
  EXPECT_NE(unlike.err.find("different models"), std::string::npos) << unlike.err;
}

// Both have the same value that is no number: nothing can be said to agree there.
TEST_F(ModelCommands, CompareTellsOfValuesThatAreNotFinite) {
  const std::string broken = folder_ / "broken";
  std::filesystem::create_directories(broken);
  std::filesystem::copy_file(model_ + "/config.json", broken + "/config.json");
  const SafetensorsDirectory source(model_);
  std::vector<float> norm;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : source.names()) tensors.emplace_back(name, source.tensor(name));
  for (auto& [name, tensor] : tensors)
    if (name == "model.norm.weight") {
      norm.assign(static_cast<size_t>(tensor.numel()), 1.0F);
      norm[0] = std::numeric_limits<float>::infinity();
      tensor = Tensor::wrap(norm.data(), tensor.shape(), DType::F32);
    }
  ASSERT_FALSE(norm.empty());
  write_safetensors(broken + "/model.safetensors", tensors);
  const Outcome outcome = run_command({"-q", "compare", broken, broken});
  EXPECT_EQ(outcome.code, 3) << outcome.out;
  EXPECT_NE(outcome.out.find("logits are not all finite"), std::string::npos) << outcome.out;
  const Json document = Json::parse(run_command({"-q", "compare", broken, broken, "--json"}).out);
  EXPECT_FALSE(document.at("equal").as_bool());
  EXPECT_TRUE(document.at("logits_max_abs_difference").is_null());
}

// --hf is a source of settings like any other.
TEST_F(ModelCommands, OtherCommandsTakeAModelToo) {
  const auto contains = [](const Outcome& outcome, const char* text) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find(text), std::string::npos) << outcome.out;
  };
  contains(run_command({"config", "show", "--changed", "--hf", model_}), "ffn_hidden_size");
  contains(run_command({"config", "show", "--changed", "--hf", golden_path("hf_models", "bert/model")}),
           "masked_lm_head");
  contains(run_command({"plan", "--hf", model_, "--json"}), "\"parameters\"");
  contains(run_command({"parity", "one", "tp2", "--hf", model_, "train.micro_batch_size=1",
                        "train.global_batch_size=2", "model.seq_length=16"}),
           "tp2");
  const Outcome outcome =
      run_command({"pretrain", "--mock-data", "--hf", golden_path("hf_models", "qwen2_vl/model"), "--lr",
                   "1e-3", "--micro-batch-size", "1", "--global-batch-size", "1", "--train-iters", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(ModelCommands, ASignalStopsBetweenTensors) {
  const Interruption interruption;
  interruption.check();
  std::raise(SIGTERM);
  EXPECT_NE(testing::error_of([&] { interruption.check(); }).find("interrupted"), std::string::npos);
}

std::string tokens_of(int count) {
  std::string list = "1";
  for (int i = 1; i < count; ++i) list += ",1";
  return list;
}

// A tokenizer that stands beside the model, or is named, reads the prompt and writes the text.
TEST_F(ModelCommands, GenerateTakesAndWritesText) {
  const std::vector<std::string> common = {"-q", "generate",     "--hf",  model_, "--max-new-tokens",
                                           "5",  "--ignore-eos", "--json"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    const Outcome outcome = run_command(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json::object();
  };
  const Json text = with({"--prompt", "3 1 4", "--tokenizer-type", "NullTokenizer", "--vocab-size", "192"});
  const Json ids = with({"--prompt-ids", "3,1,4"});
  EXPECT_EQ(text.at("ids").dump(), ids.at("ids").dump());
  EXPECT_FALSE(text.at("text").as_string().empty());
  std::set<int64_t> seen = {3, 1, 4};
  const Json penalised = with({"--prompt-ids", "3,1,4", "--repetition-penalty", "1e6"});
  for (const Json& id : penalised.at("ids").as_array())
    EXPECT_TRUE(seen.insert(id.as_int()).second) << "nothing is repeated: " << id.as_int();
}

// Guesses change no token; int8 and int4 weights are close.
TEST_F(ModelCommands, GenerateGuessesAndQuantises) {
  const auto ids = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"-q", "generate", "--hf", model_, "--max-new-tokens", "24", "--ignore-eos",
                               "--json", "--prompt-ids", "3,1,4,1,5", "--device", "cpu"});
    const Outcome outcome = run_command(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out).at("ids") : Json::array();
  };
  const Json plain = ids({});
  EXPECT_EQ(ids({"--no-cuda-graphs"}).dump(), plain.dump());
  EXPECT_EQ(ids({"--num-speculative-tokens", "3"}).dump(), plain.dump());
  EXPECT_EQ(ids({"--num-speculative-tokens", "3", "--return-log-probs"}).dump(), plain.dump());
  EXPECT_EQ(ids({"--temperature", "0"}).dump(), plain.dump());
  EXPECT_EQ(ids({"--temperature", "0.5"}).dump(),
            ids({"--temperature", "0.5", "--num-speculative-tokens", "2"}).dump());
  for (const char* narrow : {"int8", "int4"}) {
    const Json close = ids({"--quantization", narrow});
    EXPECT_EQ(close.size(), plain.size()) << narrow;
    EXPECT_EQ(close[0].as_int(), plain[0].as_int()) << narrow;
  }
}

TEST_F(ModelCommands, BadUseIsRefusedWithAdvice) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* says;
  };
  const Case cases[] = {
      {{"logits", "--hf", model_, "--out", "x"}, 2, "--tokens FILE is missing"},
      {{"logits", "--hf", model_, "--tokens", io_ + ":in.input_ids", "--images", io_, "--out", "x"},
       1,
       "no vision tower"},
      {{"logits", "--tokens", io_, "--out", "x"}, 2, "--hf DIR or --ckpt DIR"},
      {{"logits", "--hf", model_, "--tokens", io_, "--out", "x"}, 1, "FILE.safetensors:KEY"},
      {{"logits", "--hf", model_, "--tokens", io_ + ":out.logits", "--out", "x"}, 1, "not whole numbers"},
      {{"generate", "--hf", model_, "--prompt-ids", "1,999"}, 1, "not in the vocabulary"},
      {{"generate", "--hf", model_, "--prompt-ids", "1,x"}, 2, "--prompt-ids"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--quantization", "fp8"}, 1, "--quantization int8"},
      {{"generate", "--hf", golden_path("hf_models", "mamba2/model"), "--prompt-ids", "1",
        "--num-speculative-tokens", "2"},
       0,
       "cannot go back to before a draft token; none is made"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--top-p", "2"}, 2, "--top-p"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--greedy", "--temperature", "1"}, 2, "contradict"},
      {{"generate", "--hf", model_, "--prompt", "hello"}, 1, "give --tokenizer-type"},
      {{"generate", "--hf", model_}, 2, "--prompt TEXT or --prompt-ids"},
      {{"generate", "--hf", model_, "--prompt-ids", tokens_of(100000)}, 1, "the model sees"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--num-layers", "7"}, 1, "the weights of"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--max-new-tokens", "0"}, 2, "--max-new-tokens"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--out-seq-length", "0"},
       2,
       "--out-seq-length needs"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--kv-cache-dtype", "int3"},
       1,
       "--kv-cache-dtype int3"},
      {{"generate", "--hf", model_, "--prompt-ids", "1", "--kv-cache-dtype", "fp8", "--images", io_},
       1,
       "with --images texts are read whole"},
      {{"logits", "--hf", model_, "--tokens", folder_ / "no.safetensors:x", "--out", "x"}, 1, "no such file"},
      {{"compare", model_}, 2, "name two models"},
      {{"compare", model_, folder_ / "nothing"}, 1, "neither a Hugging Face model"},
  };
  for (const Case& one : cases) {
    const Outcome outcome = run_command(one.args);
    EXPECT_EQ(outcome.code, one.code) << one.says << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(one.says), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace megatron
