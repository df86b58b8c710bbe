#include "megatron/datasets/gpt/gpt_sample.h"

#include <algorithm>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron {
namespace {

// One part per document, of tokens that are trained on; padding belongs to the last.
void mask_between_documents(GptSample& sample, std::vector<int64_t> parts, bool padded, bool extra_token) {
  const auto length = static_cast<int64_t>(sample.tokens.size());
  if (extra_token && !parts.empty() && --parts.back() == 0) parts.pop_back();
  if (padded) {
    if (parts.empty()) parts.push_back(0);
    parts.back() += length - std::accumulate(parts.begin(), parts.end(), int64_t{0});
  }
  sample.cu_seqlens.assign(1, 0);
  for (int64_t part : parts) {
    const int64_t begin = sample.cu_seqlens.back();
    std::iota(sample.position_ids.begin() + begin, sample.position_ids.begin() + begin + part, int64_t{0});
    sample.cu_seqlens.push_back(static_cast<int32_t>(begin + part));
    sample.max_seqlen = std::max(sample.max_seqlen, static_cast<int32_t>(part));
  }
  sample.cu_seqlens.resize(static_cast<size_t>(length) + 1, static_cast<int32_t>(length));
}

void mask_attention(GptSample& sample, const GptSampleOptions& options) {
  const size_t length = sample.tokens.size();
  sample.attention_mask.assign(length * length, 0);
  size_t document = 0;  // the first token that this row's document may see
  for (size_t row = 0; row < length; ++row) {
    uint8_t* seen = sample.attention_mask.data() + row * length;
    std::fill(seen, seen + document, uint8_t{1});
    std::fill(seen + row + 1, seen + length, uint8_t{1});
    if (options.reset_attention_mask && sample.tokens[row] == options.eod) document = row + 1;
  }
}

}  // namespace

int64_t resolve_pad_id(std::optional<int64_t> pad, std::span<const int64_t> ends, bool allow_ambiguous) {
  if (!pad) return -1;
  const bool ambiguous = std::ranges::find(ends, *pad) != ends.end();
  return ambiguous && !allow_ambiguous ? -1 : *pad;
}

GptSample make_gpt_sample(SampleText text, int64_t seq_length, const GptSampleOptions& options) {
  const auto length = static_cast<size_t>(seq_length);
  const size_t wanted = length + (options.extra_token ? 1 : 0);
  require(text.tokens.size() <= wanted, "sample: {} tokens, at most {}", text.tokens.size(), wanted);
  const bool padded = text.tokens.size() < wanted;
  text.tokens.resize(wanted, options.pad);
  GptSample sample;
  sample.tokens.assign(text.tokens.begin(), text.tokens.begin() + seq_length);
  sample.labels.assign(text.tokens.begin() + 1, text.tokens.end());
  if (!options.extra_token) sample.labels.push_back(options.pad);
  sample.loss_mask.assign(length, 1.0f);
  sample.position_ids.resize(length);
  std::iota(sample.position_ids.begin(), sample.position_ids.end(), int64_t{0});
  if (options.eod_mask_loss) {
    for (size_t i = 0; i < length; ++i)
      if (sample.tokens[i] == options.eod) sample.loss_mask[i] = 0;
  }
  if (options.inter_document_masking) {
    mask_between_documents(sample, std::move(text.parts), padded, options.extra_token);
  } else {
    if (options.reset_position_ids) {
      int64_t begin = 0;
      for (size_t i = 0; i < length; ++i) {
        sample.position_ids[i] -= begin;
        if (sample.tokens[i] == options.eod) begin = static_cast<int64_t>(i) + 1;
      }
    }
    if (options.reset_attention_mask) {
      size_t begin = 0;
      for (size_t i = 0; i < length; ++i)
        if (sample.tokens[i] == options.eod || i + 1 == length) {
          sample.documents.push_back(static_cast<int64_t>(i + 1 - begin));
          begin = i + 1;
        }
    }
    if (options.create_attention_mask) mask_attention(sample, options);
  }
  for (size_t i = 0; i < length; ++i) {
    if (sample.labels[i] == options.pad) {
      sample.loss_mask[i] = 0;
      sample.labels[i] = 0;
    }
    if (sample.tokens[i] == options.pad) sample.tokens[i] = 0;
  }
  return sample;
}

}  // namespace megatron
