#include "megatron/datasets/gpt/fim.h"

#include <algorithm>

#include "megatron/base/refuse.h"

namespace megatron {
namespace {

using Tokens = std::vector<int64_t>;

void append(Tokens& target, const Tokens& tokens) {
  target.insert(target.end(), tokens.begin(), tokens.end());
}

// Byte offsets of the code points of a text, and its end.
std::vector<size_t> code_points(const std::string& text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

Tokens permute_segment(const Tokens& tokens, double rate, const FimOptions& options, const TextCodec& codec,
                       RandomState& random) {
  if (!random.bernoulli(rate)) return tokens;
  const std::string text = codec.decode(tokens);
  if (!options.no_prefix.empty() && text.starts_with(options.no_prefix)) return tokens;
  const std::vector<size_t> offsets = code_points(text);
  const auto length = static_cast<int64_t>(offsets.size()) - 1;
  int64_t first = random.randint(0, length + 1), second = random.randint(0, length + 1);
  if (first > second) std::swap(first, second);
  const size_t a = offsets[static_cast<size_t>(first)], b = offsets[static_cast<size_t>(second)];
  const Tokens prefix = codec.encode(text.substr(0, a)), middle = codec.encode(text.substr(a, b - a)),
               suffix = codec.encode(text.substr(b));
  Tokens result{options.prefix};
  if (random.bernoulli(options.spm_rate)) {
    result.push_back(options.suffix);
    append(result, suffix);
    result.push_back(options.middle);
    append(result, prefix);
  } else {
    append(result, prefix);
    result.push_back(options.suffix);
    append(result, suffix);
    result.push_back(options.middle);
  }
  append(result, middle);
  return result;
}

// Applies `permute` to what stands between marks. Empty pieces go with their mark, but for the last.
template <class Permute>
Tokens between(const Tokens& tokens, int64_t mark, Permute permute) {
  Tokens result;
  auto begin = tokens.begin();
  for (auto at = std::find(begin, tokens.end(), mark); at != tokens.end();
       at = std::find(begin, tokens.end(), mark)) {
    if (at != begin) {
      append(result, permute(Tokens(begin, at)));
      result.push_back(mark);
    }
    begin = at + 1;
  }
  append(result, permute(Tokens(begin, tokens.end())));
  return result;
}

}  // namespace

TextCodec text_codec(Tokenizer tokenizer, bool special) {
  TextCodec codec;
  codec.encode = [tokenizer, special](const std::string& text) {
    const std::vector<TokenId> ids = tokenizer.encode(text, special);
    return Tokens(ids.begin(), ids.end());
  };
  codec.decode = [tokenizer](const Tokens& tokens) {
    return tokenizer.decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  };
  return codec;
}

void find_fim_tokens(const Tokenizer& tokenizer, const FimPieces& pieces, FimOptions& options) {
  // GPT-2's vocabulary has one token for its ends and for what it does not know.
  const SpecialIds specials = tokenizer.special_ids();
  const bool gpt2 = specials.eod >= 0 && tokenizer.piece_of(specials.eod) == "<|endoftext|>";
  const int64_t unknown = specials.unk >= 0 ? specials.unk : gpt2 ? specials.eod : -1;
  const auto id = [&](const char* flag, const std::string& piece) -> int64_t {
    if (const auto found = tokenizer.id_of(piece)) return *found;
    require_input(unknown >= 0, "{} '{}': the tokenizer has no such token, and none for unknown ones", flag,
                  piece);
    return unknown;
  };
  options.prefix = id("--fim-prefix-token", pieces.prefix);
  options.middle = id("--fim-middle-token", pieces.middle);
  options.suffix = id("--fim-suffix-token", pieces.suffix);
  options.pad = id("--fim-pad-token", pieces.pad);
  options.eod = id("--fim-eod-token", pieces.eod);
  if (!pieces.split.empty()) options.split_token = id("--fim-split-sample", pieces.split);
}

std::vector<int64_t> permute_fim(const Tokens& tokens, const FimOptions& options, const TextCodec& codec,
                                 RandomState& random) {
  Tokens result = between(tokens, options.eod, [&](const Tokens& segment) {
    const bool split =
        options.split_token && std::ranges::find(segment, *options.split_token) != segment.end();
    if (!split) return permute_segment(segment, options.rate, options, codec, random);
    if (!random.bernoulli(options.rate)) return segment;
    return between(segment, *options.split_token, [&](const Tokens& fragment) {
      return permute_segment(fragment, options.fragment_rate, options, codec, random);
    });
  });
  result.resize(tokens.size(), options.pad);
  return result;
}

GptSample FimDataset::sample(int64_t i) const {
  RandomState stream(options_.seed + static_cast<uint32_t>(i));
  return sample(i, stream);
}

GptSample FimDataset::sample(int64_t i, RandomState& stream) const {
  SampleText text = dataset_.text(i);
  text.tokens = permute_fim(text.tokens, options_, codec_, stream);
  return make_gpt_sample(std::move(text), dataset_.seq_length(), dataset_.options());
}

}  // namespace megatron
