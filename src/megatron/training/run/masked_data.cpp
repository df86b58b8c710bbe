#include "megatron/training/run/masked_data.h"

#include "megatron/config/resolve/model_type.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/masked/masked_source.h"
#include "megatron/datasets/masked/mock_sentences.h"
#include "megatron/datasets/masked/word_pieces.h"
#include "megatron/training/run/data_splits.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

// The words of any tokenizer. Pieces that begin with "##" go on with the word before, or, where pieces mark
// the begin of a word by SentencePiece's sign, those without it.
WordPieces pieces_of(const Tokenizer& tokenizer) {
  constexpr std::string_view kWordBegin = "\u2581";
  WordPieces pieces;
  std::vector<std::string> texts;
  bool marks_begin = false;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    texts.push_back(tokenizer.piece_of(static_cast<TokenId>(id)));
    marks_begin |= texts.back().starts_with(kWordBegin);
    pieces.ids.push_back(id);
  }
  for (size_t id = 0; id < texts.size(); ++id) {
    const bool special = tokenizer.is_special(static_cast<TokenId>(id));
    pieces.continuation.push_back(
        !special && (marks_begin ? !texts[id].starts_with(kWordBegin) : texts[id].starts_with("##")));
  }
  const SpecialIds ids = tokenizer.special_ids();
  pieces.cls = ids.cls;
  pieces.sep = ids.sep;
  pieces.mask = ids.mask;
  pieces.pad = ids.pad;
  pieces.eos = ids.eos;
  pieces.bos = ids.bos >= 0 ? ids.bos : ids.pad;  // what T5's decoder begins with
  while (const auto id = tokenizer.id_of(fmt::format("<extra_id_{}>", pieces.sentinels.size())))
    pieces.sentinels.push_back(*id);
  return pieces;
}

// BERT's own tokens behind a vocabulary that has none of them.
void add_bert_tokens(WordPieces& pieces, int64_t tokens) {
  for (int64_t* own : {&pieces.cls, &pieces.sep, &pieces.mask, &pieces.pad}) {
    *own = tokens++;
    pieces.ids.push_back(*own);
    pieces.continuation.push_back(false);
  }
}

WordPieces vocabulary_of(const Config& config, bool t5) {
  const TokenizerConfig& tokenizer = config.tokenizer;
  const bool has_pieces =
      tokenizer.tokenizer_type != TokenizerKind::none && tokenizer.tokenizer_type != TokenizerKind::null_;
  constexpr int64_t kSentinels = 100;  // of made-up data
  if (!has_pieces && config.dataset.mock_data)
    return mock_word_pieces(config.model.vocab_size,
                            t5 ? std::min(kSentinels, config.model.vocab_size / 4) : 0);
  if (!has_pieces)
    throw ConfigError(
        "--tokenizer-type: BERT's and T5's samples are masked word by word, so the pieces of words must be "
        "known; give --tokenizer-type BertWordPieceCase and --vocab-file vocab.txt");
  WordPieces pieces = tokenizer.vocab_file.ends_with(".txt")
                          ? read_word_pieces(tokenizer.vocab_file, tokenizer.vocab_extra_ids)
                          : pieces_of(open_tokenizer(tokenizer));
  const auto tokens = static_cast<int64_t>(pieces.ids.size());
  if (!t5 && pieces.cls < 0 && pieces.sep < 0 && pieces.mask < 0 &&
      config.model.vocab_size >= tokens + kBertTokens)
    add_bert_tokens(pieces, tokens);
  if (t5 && (pieces.sentinels.empty() || pieces.eos < 0))
    throw ConfigError(
        "--vocab-extra-ids: T5 marks masked spans by tokens of their own, which the tokenizer lacks; give "
        "--vocab-extra-ids 100");
  if (!t5 && (pieces.cls < 0 || pieces.sep < 0 || pieces.mask < 0))
    throw ConfigError(fmt::format("--tokenizer-type {}: it has no [CLS], [SEP] or [MASK], which BERT needs",
                                  name_of(tokenizer.tokenizer_type)));
  return pieces;
}

MaskedDatasetConfig dataset_of(const Config& config, const DataSource& source, bool t5) {
  const DatasetConfig& data = config.dataset;
  MaskedDatasetConfig options;
  options.identity = data_identity(config, source);
  options.vocabulary = vocabulary_of(config, t5);
  WordPieces& pieces = options.vocabulary;
  if (pieces.pad >= 0)
    pieces.pad = resolve_pad_id(pieces.pad, std::array{pieces.eos}, data.allow_ambiguous_pad_tokens);
  options.masking = {.probability = data.mask_prob, .max_ngram = t5 ? 10 : 3, .geometric = t5};
  options.short_sequence_probability = data.short_seq_prob;
  options.cache = !data.mock_data;
  options.cache_path = data.path_to_cache;
  return options;
}

// The datasets of a kind, of which open(store, split, ends, samples) makes one.
template <class Dataset, class Open, class ToSource>
RunData sentences(const Config& config, const DataSource& source, const WordPieces& vocabulary, Open open,
                  ToSource to_source) {
  const DatasetConfig& data = config.dataset;
  std::shared_ptr<const SentenceStore> mock;
  if (data.mock_data) mock = std::make_shared<const MockSentences>(vocabulary);
  const auto make = [&](const std::string& prefix, Split split, std::array<double, 2> ends,
                        std::optional<int64_t> samples) -> std::shared_ptr<const Dataset> {
    auto store = mock;
    if (!store)
      store =
          std::make_shared<const IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = data.mmap_bin_files});
    // Nothing is evaluated on a share of the data that is less than a document.
    if (split != Split::train && split_range(ends, store->document_index().size() - 1).size() == 0)
      return nullptr;
    return open(std::move(store), split, ends, samples);
  };
  return run_data_of<Dataset>(config, source, make, to_source);
}

}  // namespace

RunData masked_data(const Config& config) {
  const ModelConfig& model = config.model;
  const bool t5 = model.model_type == ModelType::t5;
  const DataSource source = data_source(config);
  const MaskedDatasetConfig options = dataset_of(config, source, t5);
  if (t5)
    return sentences<T5Dataset>(
        config, source, options.vocabulary,
        [&](auto store, Split split, auto ends, auto samples) {
          return std::make_shared<const T5Dataset>(std::move(store), options, model.decoder_seq_length, split,
                                                   ends, samples);
        },
        [&](Split split, std::shared_ptr<const BlendedDataset<T5Dataset>> data) {
          SampleOrder order = sample_order(config, split, data->size());
          return t5_source(std::move(data), std::move(order), model.decoder_seq_length);
        });
  return sentences<BertDataset>(
      config, source, options.vocabulary,
      [&](auto store, Split split, auto ends, auto samples) {
        return std::make_shared<const BertDataset>(std::move(store), options, model.bert_binary_head, split,
                                                   ends, samples);
      },
      [&](Split split, std::shared_ptr<const BlendedDataset<BertDataset>> data) {
        SampleOrder order = sample_order(config, split, data->size());
        return bert_source(std::move(data), std::move(order), model.seq_length, model.bert_binary_head);
      });
}

}  // namespace megatron
