#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/datasets/gpt/gpt_dataset.h"
#include "megatron/datasets/random/numpy_random.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The two directions of a tokenizer that fill-in-the-middle needs: text is cut at characters, not at tokens.
struct TextCodec {
  std::function<std::vector<int64_t>(const std::string& text)> encode;
  std::function<std::string(const std::vector<int64_t>& tokens)> decode;  // without special tokens
};

// `special`: what it encodes has the special tokens of the tokenizer's template.
TextCodec text_codec(Tokenizer tokenizer, bool special);

struct FimOptions {
  double rate = 0.5, spm_rate = 0.5;
  std::optional<int64_t> split_token;  // fragments between such tokens are permuted on their own
  double fragment_rate = 0.5;
  std::string no_prefix;  // texts that begin with it stay as they are; "" for none
  int64_t prefix = 0, middle = 0, suffix = 0, pad = 0, eod = 0;
  uint32_t seed = 1234;  // of streams that belong to one sample
};

// The marks as pieces of a vocabulary; `split` may be "".
struct FimPieces {
  std::string prefix = "<fim_prefix>", middle = "<fim_middle>", suffix = "<fim_suffix>", pad = "<fim_pad>",
              eod = "<|endoftext|>", split;
};
// Fills in the ids of the marks. One that the tokenizer lacks becomes its token for unknown ones, as in
// Megatron-LM; a ConfigError names its flag where there is none either.
void find_fim_tokens(const Tokenizer& tokenizer, const FimPieces& pieces, FimOptions& options);

// Moves the middle of documents to their end: as (prefix, suffix, middle) or (suffix, prefix, middle) with
// marks between. The result has the length of `tokens`.
std::vector<int64_t> permute_fim(const std::vector<int64_t>& tokens, const FimOptions& options,
                                 const TextCodec& codec, RandomState& random);

// A GPT dataset whose documents are permuted: Megatron-LM's GPTFIMDataset. Upstream's samples depend on those
// that were read before, through one stream a split; the caller owns it and reads in order to follow
// upstream.
class FimDataset {
 public:
  FimDataset(GptDataset dataset, FimOptions options, TextCodec codec)
      : dataset_(std::move(dataset)), options_(std::move(options)), codec_(std::move(codec)) {}

  int64_t size() const { return dataset_.size(); }
  const GptDataset& dataset() const { return dataset_; }
  const Json& description() const { return dataset_.description(); }
  GptSample sample(int64_t i, RandomState& stream) const;
  // With a stream of the sample's own, so that it depends on no read before: what training uses.
  GptSample sample(int64_t i) const;

 private:
  GptDataset dataset_;
  FimOptions options_;
  TextCodec codec_;
};

}  // namespace megatron
