#include "megatron/datasets/sft/sft_tokens.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

// Spans are in order and apart; tokens come in order, too.
bool is_learned(const std::vector<chat::TextSpan>& spans, size_t begin, size_t end) {
  const auto next = std::upper_bound(spans.begin(), spans.end(), begin,
                                     [](size_t at, const chat::TextSpan& span) { return at < span.end; });
  return next != spans.end() && next->begin < end && begin < next->end;
}

void erase_range(SftTokens& tokens, int64_t begin, int64_t end) {
  tokens.ids.erase(tokens.ids.begin() + begin, tokens.ids.begin() + end);
  tokens.learned.erase(tokens.learned.begin() + begin, tokens.learned.begin() + end);
}

// Cuts `excess` tokens of [first, prompt_end), then the end.
void truncate(SftTokens& tokens, int64_t prompt_end, const SftTokenOptions& options) {
  auto excess = [&] { return static_cast<int64_t>(tokens.ids.size()) - options.max_length; };
  if (options.max_length <= 0 || excess() <= 0) return;
  const int64_t first = options.bos ? 1 : 0;
  if (options.cut_prompt_first && prompt_end > first) {
    const int64_t count = std::min(excess(), prompt_end - first);
    const int64_t begin = options.cut_prompt_at_start ? first : prompt_end - count;
    erase_range(tokens, begin, begin + count);
  }
  if (excess() > 0) erase_range(tokens, options.max_length, static_cast<int64_t>(tokens.ids.size()));
}

}  // namespace

SftTokens encode_learned(const LearnedText& text, const EncodeWithOffsets& encode,
                         const SftTokenOptions& options) {
  SftTokens result;
  auto add = [&](int64_t id, bool learned) {
    result.ids.push_back(id);
    result.learned.push_back(learned);
  };
  if (options.bos) add(*options.bos, false);
  std::vector<size_t> ends = text.cuts;
  ends.push_back(text.text.size());
  int64_t prompt_end = 0;
  size_t begin = 0;
  for (size_t end : ends) {
    require(begin <= end && end <= text.text.size(), "SFT: a cut at byte {} of a text of {} bytes", end,
            text.text.size());
    const TokensWithOffsets part = encode(std::string_view(text.text).substr(begin, end - begin));
    require(part.ids.size() == part.offsets.size(), "SFT: the tokenizer gave {} tokens and {} offsets",
            part.ids.size(), part.offsets.size());
    for (size_t i = 0; i < part.ids.size(); ++i)
      add(part.ids[i], is_learned(text.learned, begin + part.offsets[i].begin, begin + part.offsets[i].end));
    if (end != ends.back()) prompt_end = static_cast<int64_t>(result.ids.size());
    begin = end;
  }
  if (options.eos) add(*options.eos, !text.learned.empty() && text.learned.back().end == text.text.size());
  truncate(result, prompt_end, options);
  return result;
}

SftSample make_sft_sample(const SftTokens& tokens, int64_t length, int64_t pad) {
  const auto size = static_cast<size_t>(length);
  SftSample sample{.tokens = std::vector<int64_t>(size, pad),
                   .labels = std::vector<int64_t>(size, pad),
                   .positions = std::vector<int64_t>(size),
                   .loss_mask = std::vector<float>(size)};
  for (size_t i = 0; i < size; ++i) sample.positions[i] = static_cast<int64_t>(i);
  for (size_t i = 0; i + 1 < tokens.ids.size() && i < size; ++i) {
    sample.tokens[i] = tokens.ids[i];
    sample.labels[i] = tokens.ids[i + 1];
    sample.loss_mask[i] = tokens.learned[i + 1];
  }
  return sample;
}

int64_t padded_length(const std::vector<SftTokens>& batch, int64_t max_length, int64_t multiple) {
  int64_t longest = 1;
  for (const SftTokens& tokens : batch)
    longest = std::max(longest, static_cast<int64_t>(tokens.ids.size()) - 1);
  return std::min((longest + multiple - 1) / multiple * multiple, max_length);
}

}  // namespace megatron
