// BERT's and T5's samples as micro-batches.
#include <gtest/gtest.h>

#include <fstream>

#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/datasets/masked/masked_source.h"
#include "megatron/datasets/masked/word_pieces.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::TempDir;

constexpr int64_t kLength = 24, kDecoder = 20;

// Documents of four sentences, and a vocabulary of 40 words behind the special tokens.
MaskedDatasetConfig write_sentences(const TempDir& dir, int64_t extra_ids) {
  IndexedWriter writer(dir / "text", TokenType::u16);
  for (int64_t d = 0; d < 30; ++d) {
    for (int64_t s = 0; s < 4; ++s) {
      std::vector<int64_t> tokens;
      for (int64_t i = 0; i < 3 + (d + s) % 5; ++i) tokens.push_back(5 + (d * 11 + s * 5 + i) % 40);
      writer.add_sequence(tokens);
    }
    writer.end_document();
  }
  writer.commit();
  std::ofstream vocabulary(dir / "vocab.txt");
  vocabulary << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 0; i < 40; ++i) vocabulary << (i % 7 == 3 ? "##w" : "w") << i << "\n";
  vocabulary.close();
  MaskedDatasetConfig config;
  config.identity = {.seed = 7, .seq_length = kLength};
  config.vocabulary = read_word_pieces(dir / "vocab.txt", extra_ids);
  config.cache = false;
  return config;
}

std::vector<int64_t> values(const Tensor& tensor) {
  return {tensor.data<int64_t>(), tensor.data<int64_t>() + tensor.numel()};
}

TEST(MaskedSource, BertsMicroBatches) {
  TempDir dir;
  const MaskedDatasetConfig config = write_sentences(dir, 0);
  auto dataset = std::make_shared<const BertDataset>(std::make_shared<const IndexedDataset>(dir / "text"),
                                                     config, true, Split::train, std::array{0.0, 1.0}, 20);
  auto blend = std::make_shared<const BlendedDataset<BertDataset>>(dataset);
  const auto source = bert_source(blend, SampleOrder::in_turn(blend->size()), kLength, true);
  const Shares shares = Shares::even(4, 2, 1);
  const std::vector<Batch> batches = source->step({1, 4, shares.of_replica[0]});
  ASSERT_EQ(batches.size(), 2u);
  int64_t number = 4, masked = 0;
  for (const Batch& batch : batches) {
    batch.check();
    const auto types = values(batch.extra.at("token_types")), mask = values(batch.extra.at("padding_mask"));
    ASSERT_EQ(batch.extra.at("is_random").shape(), (Shape{2}));
    for (int64_t row = 0; row < 2; ++row) {
      const BertSample sample = dataset->sample(number++);
      EXPECT_EQ(values(batch.extra.at("is_random"))[static_cast<size_t>(row)], sample.is_random);
      for (int64_t i = 0; i < kLength; ++i) {
        const auto at = static_cast<size_t>(row * kLength + i), own = static_cast<size_t>(i);
        EXPECT_EQ(batch.ids[at], sample.text[own]);
        EXPECT_EQ(types[at], sample.types[own]);
        EXPECT_EQ(mask[at], sample.padding_mask[own]);
        EXPECT_EQ(batch.labels[at], sample.loss_mask[own] ? sample.labels[own] : kIgnoredLabel);
        masked += sample.loss_mask[own];
      }
    }
  }
  EXPECT_GT(masked, 4);
}

TEST(MaskedSource, T5sMicroBatches) {
  TempDir dir;
  const MaskedDatasetConfig config = write_sentences(dir, 10);
  auto dataset = std::make_shared<const T5Dataset>(std::make_shared<const IndexedDataset>(dir / "text"),
                                                   config, kDecoder, Split::train, std::array{0.0, 1.0}, 20);
  auto blend = std::make_shared<const BlendedDataset<T5Dataset>>(dataset);
  const auto source = t5_source(blend, SampleOrder::in_turn(blend->size()), kDecoder);
  EXPECT_EQ(source->length(), kDecoder);
  const Shares shares = Shares::even(2, 2, 1);
  const Batch batch = source->step({0, 0, shares.of_replica[0]})[0];
  batch.check();
  EXPECT_EQ(batch.length(), kDecoder);
  const auto encoder = values(batch.extra.at("encoder_ids"));
  ASSERT_EQ(batch.extra.at("encoder_ids").shape(), (Shape{2, kLength}));
  const T5Sample second = dataset->sample(1);
  EXPECT_EQ(std::vector<int64_t>(encoder.begin() + kLength, encoder.end()), second.text_enc);
  EXPECT_EQ(std::vector<int64_t>(batch.ids.begin() + kDecoder, batch.ids.end()), second.text_dec);
  for (int64_t i = 0; i < kDecoder; ++i) {
    const auto own = static_cast<size_t>(i);
    EXPECT_EQ(batch.labels[static_cast<size_t>(kDecoder + i)],
              second.loss_mask[own] ? second.labels[own] : kIgnoredLabel);
  }
}

}  // namespace
}  // namespace megatron
