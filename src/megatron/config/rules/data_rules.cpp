#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void tokenizer_options(ConfigBuilder& builder) {
  const TokenizerConfig& t = builder.config.tokenizer;
  const bool bert = t.tokenizer_type == TokenizerKind::bert || t.tokenizer_type == TokenizerKind::bert_lower;
  const bool sentencepiece = t.tokenizer_type == TokenizerKind::sentencepiece ||
                             t.tokenizer_type == TokenizerKind::gpt_sentencepiece ||
                             t.tokenizer_type == TokenizerKind::llama2;
  if (!t.special_tokens.empty() && sentencepiece && !t.tokenizer_sentencepiece_legacy)
    builder.reject("tokenizer.special_tokens", "SentencePiece takes them in its legacy form alone",
                   "add --tokenizer-sentencepiece-legacy");
  if (!t.special_tokens.empty() && !sentencepiece && t.tokenizer_type != TokenizerKind::tiktoken &&
      t.tokenizer_type != TokenizerKind::huggingface)
    builder.reject("tokenizer.special_tokens",
                   "only TikTokenizer, SentencePiece and Hugging Face's tokenizers are given special tokens",
                   "leave it out");
  for (const auto& [name, given] :
       {std::pair{"tokenizer.tokenizer_sentencepiece_legacy", t.tokenizer_sentencepiece_legacy},
        {"tokenizer.tokenizer_sentencepiece_ignore_extra_whitespaces",
         !t.tokenizer_sentencepiece_ignore_extra_whitespaces}})
    if (given && !sentencepiece) builder.reject(name, "the tokenizer is not SentencePiece's", "leave it out");
  if (!t.metadata_path.empty() && t.tokenizer_type == TokenizerKind::none)
    builder.reject("tokenizer.metadata_path", "there is no tokenizer (--tokenizer-type)", "leave it out");
  if (t.vocab_extra_ids > 0 && !bert && t.tokenizer_type != TokenizerKind::none)
    builder.reject("tokenizer.vocab_extra_ids", "only BertWordPieceCase and BertWordPieceLowerCase have them",
                   "leave it out");
}

// Documents are told apart by the token that ends them.
void document_ends(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  if (builder.config.tokenizer.tokenizer_type != TokenizerKind::none) return;
  for (const auto& [name, on] : {std::pair{"dataset.reset_position_ids", d.reset_position_ids},
                                 {"dataset.reset_attention_mask", d.reset_attention_mask},
                                 {"dataset.eod_mask_loss", d.eod_mask_loss},
                                 {"dataset.fim_data", d.fim_data},
                                 {"dataset.sft", d.sft}})
    if (on && builder.purpose == Purpose::training)
      builder.reject(name, "needs a tokenizer (--tokenizer-type)", "leave it out");
}

void documents_and_context(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  if (builder.config.parallel.context_parallel_size == 1) return;
  for (const auto& [name, on] : {std::pair{"dataset.reset_attention_mask", d.reset_attention_mask},
                                 {"dataset.inter_document_masking", d.inter_document_masking}})
    if (on)
      builder.reject(name, "documents of any length are not split over context-parallel ranks",
                     "leave it out, or use --context-parallel-size 1");
}

void conversations(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  if (!d.sft) return;
  for (const auto& [name, on] : {std::pair{"dataset.reset_position_ids", d.reset_position_ids},
                                 {"dataset.reset_attention_mask", d.reset_attention_mask},
                                 {"dataset.eod_mask_loss", d.eod_mask_loss},
                                 {"dataset.inter_document_masking", d.inter_document_masking},
                                 {"dataset.fim_data", d.fim_data},
                                 {"dataset.mock_data", d.mock_data}})
    if (on) builder.reject(name, "does not go with --sft", "leave it out");
  if (!d.sft_tokenizer_prompt_format.empty() && d.packing != Packing::none)
    builder.reject("dataset.packing", "sft_tokenizer_prompt_format packs the conversations of a row itself",
                   "leave it out");
  // These formats read conversations, and say themselves what of them is learned.
  if (!d.sft_tokenizer_prompt_format.empty() && d.sft_format == SftDataFormat::prompt_completion)
    builder.reject("dataset.sft_format", "sft_tokenizer_prompt_format reads conversations", "leave it out");
  if (!d.sft_tokenizer_prompt_format.empty() && builder.given("dataset.answer_only_loss"))
    builder.reject("dataset.answer_only_loss", "sft_tokenizer_prompt_format says what is learned",
                   "leave it out");
}

constexpr Rule kDataRules[] = {
    {"tokenizer_options",
     "tokenizer.tokenizer_type tokenizer.special_tokens tokenizer.vocab_extra_ids "
     "tokenizer.tokenizer_sentencepiece_legacy tokenizer.tokenizer_sentencepiece_ignore_extra_whitespaces "
     "tokenizer.metadata_path",
     "options of a tokenizer suit its kind", tokenizer_options},
    {"document_ends",
     "tokenizer.tokenizer_type dataset.reset_position_ids dataset.reset_attention_mask dataset.eod_mask_loss "
     "dataset.fim_data dataset.sft",
     "what looks for ends of documents, or reads text, has a tokenizer", document_ends},
    {"documents_and_context",
     "model.context_parallel_size dataset.reset_attention_mask dataset.inter_document_masking",
     "attention within documents is not split over context-parallel ranks", documents_and_context},
    {"conversations",
     "dataset.sft dataset.sft_format dataset.packing dataset.sft_tokenizer_prompt_format "
     "dataset.answer_only_loss dataset.reset_position_ids "
     "dataset.reset_attention_mask dataset.eod_mask_loss dataset.inter_document_masking dataset.fim_data "
     "dataset.mock_data",
     "options of documents are not those of conversations", conversations},
};

}  // namespace

std::span<const Rule> data_rules() { return kDataRules; }

}  // namespace megatron
