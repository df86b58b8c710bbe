#include "megatron/config/resolve/model_type.h"

namespace megatron {
namespace {

struct Guess {
  ModelType type = ModelType::gpt;
  const char* why = "neither BERT nor T5 is asked for";
};

bool is_word_piece(TokenizerKind kind) {
  return kind == TokenizerKind::bert || kind == TokenizerKind::bert_lower;
}

Guess guess_type(const ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.masked_lm_head) return {ModelType::bert, "masked_lm_head"};
  if (model.encoder_num_layers > 0) return {ModelType::t5, "encoder_num_layers"};
  if (model.decoder_num_layers > 0) return {ModelType::t5, "decoder_num_layers"};
  if (model.decoder_seq_length > 0) return {ModelType::t5, "decoder_seq_length"};
  if (builder.given("model.bert_binary_head")) return {ModelType::bert, "bert_binary_head"};
  // A model that has its own description needs no guess from the tokenizer.
  const Source layers = builder.origin("model.num_layers").source;
  const bool described = layers == Source::hf || layers == Source::checkpoint;
  if (described || !is_word_piece(builder.config.tokenizer.tokenizer_type)) return {};
  if (builder.config.tokenizer.vocab_extra_ids > 0) return {ModelType::t5, "vocab_extra_ids"};
  return {ModelType::bert, "tokenizer_type"};
}

// Scripts that train a decoder behind a vision tower call the tower an encoder.
void derive_tower_layers(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  builder.derive("model.model_type", "gpt", "a vision tower");
  const int64_t tower = model.encoder_num_layers, decoder = model.decoder_num_layers;
  const char* why = "encoder_num_layers";
  if (tower > 0 && model.vision_num_layers == 0) builder.derive("model.vision_num_layers", tower, why);
  if (tower > 0 && model.num_layers == 0) builder.derive("model.num_layers", tower, why);
  if (decoder > 0) builder.derive("model.num_layers", decoder, "decoder_num_layers");
  for (const char* name : {"model.encoder_num_layers", "model.decoder_num_layers"})
    builder.derive(name, 0, "a vision tower");
  if (model.language_model_type.empty()) builder.derive("model.decoder_seq_length", 0, "a vision tower");
}

// Whether tokenizers of a kind have no [CLS], [SEP], [MASK] and [PAD].
bool lacks_berts_tokens(TokenizerKind kind) {
  return kind == TokenizerKind::gpt2_bpe || kind == TokenizerKind::tiktoken ||
         kind == TokenizerKind::gpt_sentencepiece || kind == TokenizerKind::sentencepiece ||
         kind == TokenizerKind::llama2;
}

void derive_bert(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (lacks_berts_tokens(builder.config.tokenizer.tokenizer_type) && model.vocab_size > 0 &&
      builder.origin("model.vocab_size").source == Source::derived) {
    builder.derive("model.vocab_size", model.vocab_size + kBertTokens,
                   "the tokenizer's size, and BERT's tokens");
    builder.note("the tokenizer has no [CLS], [SEP], [MASK] and [PAD]: they stand behind its vocabulary");
  }
  for (const char* name : {"model.masked_lm_head", "model.bidirectional_attention"})
    if (!builder.given(name)) builder.derive(name, true, "model_type bert");
  if (!builder.given("model.num_tokentypes") && model.bert_binary_head)
    builder.derive("model.num_tokentypes", 2, "bert_binary_head");
}

void derive_t5(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const auto fill = [&](const char* name, int64_t now, int64_t value, const char* why) {
    if (now == 0 && value > 0) builder.derive(name, value, why);
  };
  fill("model.encoder_num_layers", model.encoder_num_layers, model.num_layers, "num_layers");
  fill("model.encoder_num_layers", model.encoder_num_layers, model.decoder_num_layers, "decoder_num_layers");
  fill("model.decoder_num_layers", model.decoder_num_layers, model.encoder_num_layers, "encoder_num_layers");
  fill("model.num_layers", model.num_layers, model.decoder_num_layers, "decoder_num_layers");
  // A model's own lengths give way to those that a run asks for.
  const auto own = [&](const char* name) { return builder.origin(name).source == Source::hf; };
  if (own("model.encoder_seq_length") && !own("model.seq_length") && model.seq_length > 0)
    for (const char* name : {"model.encoder_seq_length", "model.decoder_seq_length"})
      if (own(name)) builder.derive(name, model.seq_length, "seq_length");
  if (own("model.seq_length") && !own("model.encoder_seq_length") && model.encoder_seq_length > 0)
    builder.derive("model.seq_length", model.encoder_seq_length, "encoder_seq_length");
  fill("model.seq_length", model.seq_length, model.encoder_seq_length, "encoder_seq_length");
  fill("model.encoder_seq_length", model.encoder_seq_length, model.seq_length, "seq_length");
  fill("model.decoder_seq_length", model.decoder_seq_length, model.encoder_seq_length, "encoder_seq_length");
  if (!builder.given("model.output_layer_bias") && model.share_embeddings_and_output_weights &&
      builder.origin("model.num_layers").source != Source::hf)
    builder.derive("model.output_layer_bias", true, "model_type t5, tied embeddings");
}

}  // namespace

void derive_model_type(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const bool sees = model.has_tower() || builder.given("model.vision_image_size");
  if (model.model_type == ModelType::none && sees) derive_tower_layers(builder);
  if (model.model_type == ModelType::none) {
    const Guess guess = guess_type(builder);
    builder.derive("model.model_type", name_of(guess.type), guess.why);
    if (std::string_view(guess.why) == "tokenizer_type" && builder.purpose == Purpose::training)
      builder.note(
          "model_type is bert, by its tokenizer; --model-type gpt trains a decoder on word pieces instead");
  }
  // Scripts that train decoders may say --encoder-seq-length for --seq-length.
  if (model.model_type != ModelType::t5 && model.seq_length == 0 && model.encoder_seq_length > 0)
    builder.derive("model.seq_length", model.encoder_seq_length, "encoder_seq_length");
  if (model.model_type == ModelType::bert) derive_bert(builder);
  if (model.model_type == ModelType::t5) derive_t5(builder);
}

}  // namespace megatron
