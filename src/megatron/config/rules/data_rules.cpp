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

// NAME,ID with an id that is a number.
void assigned_tokens(ConfigBuilder& builder) {
  const TokenizerConfig& t = builder.config.tokenizer;
  const char* key = "tokenizer.hf_assign_unused_tokens";
  if (t.hf_assign_unused_tokens.empty()) return;
  if (t.tokenizer_type != TokenizerKind::huggingface && t.tokenizer_type != TokenizerKind::none)
    return builder.reject(key, "the tokenizer is not Hugging Face's", "leave it out");
  for (const std::string& each : t.hf_assign_unused_tokens) {
    const size_t comma = each.rfind(',');
    const std::string_view id = comma == std::string::npos ? "" : std::string_view(each).substr(comma + 1);
    if (comma == 0 || id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != id.npos)
      return builder.reject(key, fmt::format("'{}' is no name and id", each),
                            "leave it out, or write NAME,ID such as <audio>,32002");
  }
}

// Files are read from and written to the file system.
void file_systems(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  const CheckpointConfig& c = builder.config.checkpoint;
  const auto check = [&](const char* name, std::span<const std::string> paths) {
    for (const std::string& path : paths)
      if (const size_t scheme = path.find("://"); scheme != std::string::npos && scheme > 0 && scheme < 8)
        return builder.reject(name, fmt::format("{} is in object storage, which is not read", path),
                              "give the path of a folder where the bucket is mounted");
  };
  check("dataset.data_path", d.data_path);
  check("dataset.train_data_path", d.train_data_path);
  check("dataset.valid_data_path", d.valid_data_path);
  check("dataset.test_data_path", d.test_data_path);
  check("dataset.path_to_cache", std::span(&d.path_to_cache, 1));
  check("checkpoint.load", std::span(&c.load, 1));
  check("checkpoint.pretrained_checkpoint", std::span(&c.pretrained_checkpoint, 1));
  check("checkpoint.save", std::span(&c.save, 1));
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
    {"assigned_tokens", "tokenizer.tokenizer_type tokenizer.hf_assign_unused_tokens",
     "names are assigned to ids of a Hugging Face tokenizer", assigned_tokens},
    {"file_systems",
     "dataset.data_path dataset.train_data_path dataset.valid_data_path dataset.test_data_path "
     "dataset.path_to_cache checkpoint.load checkpoint.pretrained_checkpoint checkpoint.save",
     "data and checkpoints are in the file system", file_systems},
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
