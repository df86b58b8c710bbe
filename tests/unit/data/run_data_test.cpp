// What a configuration's data options make of a small dataset.
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/parity.h"
#include "megatron/training/run/run_data.h"
#include "megatron/training/run/training_run.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::TempDir;

constexpr int64_t kVocab = 32, kEod = 31, kLength = 16;

// Documents of 3 to 11 tokens, each ending with the end-of-document token.
std::string write_documents(const TempDir& dir, const std::string& name = "text") {
  IndexedWriter writer(dir / name, TokenType::u16);
  for (int64_t d = 0; d < 80; ++d) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 2 + d % 9; ++i) tokens.push_back(1 + (d * 7 + i * i) % 30);
    tokens.push_back(kEod);
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
  return dir / name;
}

Config small_run(const std::vector<std::string>& data_path) {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = kVocab, .length = kLength});
  config.model.make_vocab_size_divisible_by = 1;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  config.train.train_iters = 4;
  config.tokenizer.tokenizer_type = TokenizerKind::null_;
  config.tokenizer.vocab_size = kVocab;
  config.dataset.data_path = data_path;
  config.dataset.split = "8,1,1";
  return config;
}

std::vector<Batch> first_step(const Config& config, int replicas = 1) {
  const Shares shares = Shares::even(config.train.global_batch_size, config.train.micro_batch_size, replicas);
  return run_data(config).train->step({0, 0, shares.of_replica[0]});
}

TEST(RunData, PlainSamplesNeedNeitherPositionsNorWeights) {
  TempDir dir;
  for (const Batch& batch : first_step(small_run({write_documents(dir)}))) {
    EXPECT_TRUE(batch.positions.empty() && batch.lengths.empty() && batch.weights.empty());
    EXPECT_EQ(batch.ids.size(), static_cast<size_t>(2 * kLength));
  }
}

TEST(RunData, OptionsOfDocuments) {
  TempDir dir;
  Config config = small_run({write_documents(dir)});
  config.dataset.eod_mask_loss = true;
  int ends = 0;
  for (const Batch& batch : first_step(config))
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      EXPECT_EQ(batch.weights.at(i), batch.ids[i] == kEod ? 0 : 1);
      ends += batch.ids[i] == kEod;
    }
  EXPECT_GT(ends, 4);
  config.dataset.eod_mask_loss = false;

  config.dataset.reset_position_ids = true;
  for (const Batch& batch : first_step(config)) {
    EXPECT_TRUE(batch.lengths.empty());
    int64_t position = 0;
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      if (i % kLength == 0) position = 0;
      EXPECT_EQ(batch.positions.at(i), position);
      position = batch.ids[i] == kEod ? 0 : position + 1;
    }
  }

  config.dataset.reset_attention_mask = true;  // both: packed sequences, which need no positions
  const std::vector<Batch> both = first_step(config);
  for (const Batch& batch : both) {
    EXPECT_TRUE(batch.positions.empty());
    int64_t end = 0;
    for (int64_t length : batch.lengths) {
      end += length;
      EXPECT_TRUE(batch.ids[static_cast<size_t>(end) - 1] == kEod || end % kLength == 0);
    }
    EXPECT_EQ(end, static_cast<int64_t>(batch.ids.size()));
  }
  config.dataset.reset_position_ids = false;
  for (const Batch& batch : first_step(config)) {
    EXPECT_FALSE(batch.lengths.empty());
    for (size_t i = 0; i < batch.ids.size(); ++i)
      EXPECT_EQ(batch.positions.at(i), static_cast<int64_t>(i) % kLength);
  }

  // Documents end with that token here, so that their borders say the same.
  config.dataset.reset_attention_mask = false;
  config.dataset.inter_document_masking = true;
  const std::vector<Batch> documents = first_step(config);
  for (size_t b = 0; b < both.size(); ++b) {
    EXPECT_EQ(documents[b].lengths, both[b].lengths);
    EXPECT_TRUE(documents[b].positions.empty());
  }
}

TEST(RunData, ATokenizerWithoutAnEndOfDocumentIsRefused) {
  TempDir dir;
  Config config = small_run({write_documents(dir)});
  config.dataset.eod_mask_loss = true;
  config.tokenizer.tokenizer_type = TokenizerKind::none;
  EXPECT_NO_THROW(first_step(config));  // rules refuse it before; nothing is masked
  config.tokenizer.tokenizer_type = TokenizerKind::huggingface;
  config.tokenizer.tokenizer_model = dir / "nowhere";
  EXPECT_THROW(first_step(config), ConfigError);
}

// Positions that restart inside of a sequence, on ranks of every kind.
TEST(RunData, GivenPositionsUnderLayouts) {
  TempDir dir;
  Config config = small_run({write_documents(dir)});
  config.dataset.reset_position_ids = true;
  for (auto kind : {PositionEmbedding::rope, PositionEmbedding::learned_absolute}) {
    config.model.position_embedding_type = kind;
    const auto trained = [&](ParallelSizes sizes, bool reset = true) {
      Config own = config;
      own.dataset.reset_position_ids = reset;
      own.parallel.tensor_model_parallel_size = sizes.tp;
      own.parallel.pipeline_model_parallel_size = sizes.pp;
      own.parallel.context_parallel_size = sizes.cp;
      own.run.world_size = sizes.world;
      return train_layout(own, {.sizes = sizes, .source = run_data(own).train}, {{}, {}});
    };
    const TrainedLayout one = trained({}), plain = trained({}, false),
                        many = trained({.world = 8, .tp = 2, .pp = 2, .cp = 2});
    EXPECT_NEAR(one.losses[1], many.losses[1], 1e-12 * one.losses[1]);
    EXPECT_LT(largest_difference(one.gradients, many.gradients).worst, 1e-9);
    EXPECT_GT(std::abs(one.losses[1] - plain.losses[1]), 1e-6) << "positions must make a difference";
  }
}

TEST(RunData, MockSequencesCount) {
  Config config = small_run({});
  config.dataset.mock_data = true;
  for (const Batch& batch : first_step(config))
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      const int64_t token = batch.ids[i], label = batch.labels[i];
      EXPECT_TRUE(label == (token + 1) % kVocab || label == kEod || (token == kEod && label == 1));
    }
}

TEST(RunData, EveryReplicaReadsItsPartInCyclicOrder) {
  TempDir dir;
  Config config = small_run({write_documents(dir)});
  config.dataset.dataloader_type = DataloaderType::cyclic;
  config.run.world_size = 2;
  const RunData data = run_data(config);
  EXPECT_EQ(data.train->samples(), -1);
  const Shares shares = Shares::even(4, 2, 2);
  EXPECT_NE(data.train->step({0, 0, shares.of_replica[0]})[0].ids,
            data.train->step({0, 0, shares.of_replica[1]})[0].ids);
  EXPECT_NE(data.train->step({0, 0, shares.of_replica[0]})[0].ids,
            first_step(small_run({dir / "text"}))[0].ids);
}

TEST(RunData, SplitsThatTheRunReads) {
  TempDir dir;
  Config config = small_run({write_documents(dir)});
  EXPECT_FALSE(run_data(config).test);  // nothing is evaluated
  config.validation.eval_interval = 2;
  config.validation.eval_iters = 1;
  const RunData data = run_data(config);
  ASSERT_TRUE(data.test && data.validation.size() == 1);
  EXPECT_GE(data.test->samples(), 4);
  config.dataset.do_test = config.dataset.do_validation = false;
  EXPECT_FALSE(run_data(config).test);
  EXPECT_TRUE(run_data(config).validation.empty());
  config.dataset.do_test = config.dataset.do_validation = true;
  config.dataset.split = "998,1,1";  // less than a document: nothing to evaluate on, and no fault
  EXPECT_FALSE(run_data(config).test);
  EXPECT_TRUE(run_data(config).validation.empty());
  config.dataset.data_path = {"0.3", dir / "text", "0.7", dir / "text"};  // nor of a blend
  EXPECT_TRUE(run_data(config).train);
  EXPECT_FALSE(run_data(config).test);
}

// Batches that grow are more than the samples over the last one, and each evaluation has its samples.
TEST(RunData, EvaluationsOfAGrowingBatch) {
  TempDir dir;
  Config config = small_run({});
  config.dataset.train_data_path = config.dataset.valid_data_path = {write_documents(dir)};
  config.dataset.dataloader_type = DataloaderType::single;
  config.train.train_iters = 0;
  config.train.train_samples = 400;
  config.train.global_batch_size = 40;
  config.train.rampup_batch_size = {2, 2, 380};
  config.validation.eval_interval = 1;
  config.validation.eval_iters = 1;
  const TrainingRun run = training_run(config, 1, {});  // refused where evaluations lack samples
  EXPECT_GT(run.iterations, 20);
  EXPECT_GE(run.data.validation.at(0).source->samples(), run.iterations * 40);
}

TEST(RunData, SeveralValidationSets) {
  TempDir dir;
  Config config = small_run({});
  config.dataset.train_data_path = {write_documents(dir)};
  config.dataset.valid_data_path = {write_documents(dir, "a"), write_documents(dir, "b")};
  config.validation.eval_interval = 2;
  config.validation.eval_iters = 1;
  EXPECT_EQ(run_data(config).validation.size(), 1u);
  config.validation.multiple_validation_sets = true;
  const RunData data = run_data(config);
  ASSERT_EQ(data.validation.size(), 2u);
  EXPECT_EQ(data.validation[0].name, "a");
  EXPECT_EQ(data.validation[1].name, "b");
  config.validation.validation_set_names = {"one", "two"};
  config.validation.full_validation = true;
  const RunData full = run_data(config);
  EXPECT_EQ(full.validation[1].name, "two");
  // 80 documents of 3 to 11 tokens, each token once.
  EXPECT_EQ(full.validation[1].source->samples(), 34);
  config.validation.validation_set_names = {"one"};
  EXPECT_THROW(run_data(config), ConfigError);
  config.dataset.valid_data_path = {"1", dir / "a", "2", dir / "b"};
  EXPECT_THROW(run_data(config), ConfigError);
}

// Labels that are the padding token are not learned, unless documents end with it.
TEST(RunData, PaddingTokenMayBeTheUnknownOne) {
  TempDir dir;
  Json pieces = Json::object();
  for (int64_t i = 0; i < kVocab; ++i) pieces["t" + std::to_string(i)] = i;
  Json tokenizer = Json::object();
  tokenizer["model"] = Json::object();
  tokenizer["model"]["type"] = "WordLevel";
  tokenizer["model"]["vocab"] = pieces;
  tokenizer["model"]["unk_token"] = "t5";
  testing::write_text(dir / "tokenizer.json", tokenizer.dump());
  Config config = small_run({write_documents(dir)});
  config.tokenizer = {};
  config.tokenizer.tokenizer_type = TokenizerKind::huggingface;
  config.tokenizer.tokenizer_model = dir.path();
  const auto with_pad = [&](const std::string& pad) {
    testing::write_text(dir / "tokenizer_config.json", R"({"eos_token": "t31", "unk_token": ")" + pad +
                                                           R"(", "pad_token": ")" + pad + "\"}");
    return first_step(config);
  };
  int64_t padded = 0;
  for (const char* pad : {"t9", "t15", "t18", "t24"})
    for (const Batch& batch : with_pad(pad))
      for (size_t i = 0; i < batch.ids.size(); ++i) {
        // Documents have no 0, and weights that are all 1 are left out.
        EXPECT_EQ(batch.weights.empty() ? 1 : batch.weights[i], batch.labels[i] == 0 ? 0 : 1);
        padded += batch.labels[i] == 0;
      }
  EXPECT_GT(padded, 0);
  for (const Batch& batch : with_pad("t31")) EXPECT_TRUE(batch.weights.empty());
}

// A sample depends on its number alone, and holds the marks of what was moved.
TEST(RunData, FillsInTheMiddle) {
  TempDir dir;
  Json vocabulary = Json::object();
  for (const char* mark : {"<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<|endoftext|>"})
    vocabulary[mark] = static_cast<int64_t>(vocabulary.size());
  for (char c = 'a'; c <= 'z'; ++c) vocabulary[std::string(1, c)] = static_cast<int64_t>(vocabulary.size());
  vocabulary["x"] = 31;  // the data's end of documents is no mark here
  testing::write_text(dir / "vocab.json", vocabulary.dump());
  testing::write_text(dir / "merges.txt", "");
  Config config = small_run({write_documents(dir)});
  config.tokenizer = {};
  config.tokenizer.tokenizer_type = TokenizerKind::gpt2_bpe;
  config.tokenizer.vocab_file = dir / "vocab.json";
  config.tokenizer.merge_file = dir / "merges.txt";
  config.dataset.fim_data = true;
  config.dataset.fim_rate = 1;
  const std::vector<Batch> first = first_step(config), again = first_step(config);
  EXPECT_EQ(first[1].ids, again[1].ids);
  int64_t marks = 0;
  for (int64_t id : first[0].ids) marks += id == 0;
  EXPECT_EQ(marks, 2);  // one a sample, which is one document to it
  config.dataset.fim_rate = 0;
  EXPECT_NE(first_step(config)[0].ids, first[0].ids);
  // GPT-2's token for unknown ones stands for a mark that is missing.
  config.dataset.fim_rate = 1;
  config.dataset.fim_prefix_token = "<none>";
  marks = 0;
  const std::vector<Batch> unknown = first_step(config);
  for (int64_t id : unknown[0].ids) marks += id == vocabulary["<|endoftext|>"].as_int();
  EXPECT_EQ(marks, 2);
}

}  // namespace
}  // namespace megatron
