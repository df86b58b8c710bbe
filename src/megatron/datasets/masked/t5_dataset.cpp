#include "megatron/datasets/masked/t5_dataset.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

Json decoder_json(int64_t length) {
  Json json = Json::object();
  json["sequence_length_decoder"] = length;
  return json;
}

// Pads ids to `length`, tells which are real, and turns every pad id into 0.
std::vector<int64_t> pad_ids(std::vector<int64_t>& ids, size_t length, int64_t pad) {
  ids.resize(length, pad);
  std::vector<int64_t> mask;
  for (int64_t& id : ids) {
    mask.push_back(id != pad ? 1 : 0);
    if (id == pad) id = 0;
  }
  return mask;
}

}  // namespace

T5Dataset::T5Dataset(std::shared_ptr<const SentenceStore> dataset, const MaskedDatasetConfig& config,
                     int64_t decoder_length, Split split, std::array<double, 2> ends,
                     std::optional<int64_t> num_samples)
    : seq_length_(config.identity.seq_length),
      decoder_length_(decoder_length),
      masking_(config.masking),
      vocabulary_(config.vocabulary),
      samples_(std::move(dataset), config, split, ends, num_samples, "T5MaskedWordPieceDataset",
               decoder_json(decoder_length), 2, 1) {}

T5Sample T5Dataset::sample(int64_t i, RandomState* permutation_random) const {
  SentenceSamples::Sample source = samples_.sample(i);
  T5Sample sample;
  std::vector<int64_t> tokens;
  for (const std::vector<int64_t>& sentence : source.sentences)
    tokens.insert(tokens.end(), sentence.begin(), sentence.end());
  const auto target = static_cast<size_t>(source.target);
  sample.truncated = tokens.size() > target;
  if (sample.truncated) tokens.resize(target);
  const MaskedText masked = mask_words(
      std::move(tokens), source.target, vocabulary_, masking_, source.random,
      [&](int64_t, RandomState&) { return vocabulary_.mask; }, permutation_random);

  require(masked.spans.size() <= vocabulary_.sentinels.size(),
          "T5: sample {} has {} masked spans and the vocabulary {} sentinels; raise --vocab-extra-ids", i,
          masked.spans.size(), vocabulary_.sentinels.size());
  sample.text_dec.push_back(vocabulary_.bos);
  size_t at = 0;
  for (size_t s = 0; s < masked.spans.size(); ++s) {
    const MaskedSpan& span = masked.spans[s];
    const auto begin = static_cast<size_t>(span.positions.front());
    for (; at < begin; ++at) sample.text_enc.push_back(masked.tokens[at]);
    sample.text_enc.push_back(vocabulary_.sentinels[s]);
    sample.text_dec.push_back(vocabulary_.sentinels[s]);
    sample.text_dec.insert(sample.text_dec.end(), span.labels.begin(), span.labels.end());
    at = static_cast<size_t>(span.positions.back()) + 1;
  }
  for (; at < masked.tokens.size(); ++at) sample.text_enc.push_back(masked.tokens[at]);
  sample.labels.assign(sample.text_dec.begin() + 1, sample.text_dec.end());
  sample.labels.push_back(vocabulary_.eos);

  const auto encoder = static_cast<size_t>(seq_length_), decoder = static_cast<size_t>(decoder_length_);
  require(sample.text_enc.size() <= encoder, "T5: sample {} has {} encoder tokens, at most {}", i,
          sample.text_enc.size(), encoder);
  require(sample.text_dec.size() <= decoder,
          "T5: sample {} has {} decoder tokens, at most {}; raise --decoder-seq-length", i,
          sample.text_dec.size(), decoder);
  sample.loss_mask.assign(sample.text_dec.size(), 1);
  sample.loss_mask.resize(decoder, 0);
  sample.labels.resize(decoder, -1);
  for (int64_t& label : sample.labels)
    if (label == vocabulary_.pad) label = 0;
  sample.enc_mask = pad_ids(sample.text_enc, encoder, vocabulary_.pad);
  sample.dec_mask = pad_ids(sample.text_dec, decoder, vocabulary_.pad);
  return sample;
}

}  // namespace megatron
