#include "megatron/datasets/masked/bert_dataset.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

Json head_json(bool classification_head) {
  Json json = Json::object();
  json["classification_head"] = classification_head;
  return json;
}

void append(std::vector<int64_t>& target, const std::vector<int64_t>& tokens) {
  target.insert(target.end(), tokens.begin(), tokens.end());
}

}  // namespace

BertDataset::BertDataset(std::shared_ptr<const SentenceStore> dataset, const MaskedDatasetConfig& config,
                         bool classification_head, Split split, std::array<double, 2> ends,
                         std::optional<int64_t> num_samples)
    : seq_length_(config.identity.seq_length),
      classification_head_(classification_head),
      masking_(config.masking),
      vocabulary_(config.vocabulary),
      samples_(std::move(dataset), config, split, ends, num_samples, "BERTMaskedWordPieceDataset",
               head_json(classification_head), 3, classification_head ? 2 : 1) {}

BertSample BertDataset::sample(int64_t i, RandomState* permutation_random) const {
  SentenceSamples::Sample source = samples_.sample(i);
  RandomState& random = source.random;
  BertSample sample;
  std::vector<int64_t> a, b;
  const size_t count = source.sentences.size();
  size_t pivot = count;
  if (classification_head_) {
    require(count > 1, "BERT: sample {} has one sentence; the classification head needs two", i);
    pivot = count >= 3 ? static_cast<size_t>(random.randint(1, static_cast<int64_t>(count))) : 1;
  }
  for (size_t s = 0; s < count; ++s) append(s < pivot ? a : b, source.sentences[s]);
  if (classification_head_ && random.uniform() < 0.5) {
    std::swap(a, b);
    sample.is_random = true;
  }
  const auto target = static_cast<size_t>(source.target);
  while (a.size() + b.size() > target) {
    sample.truncated = true;
    std::vector<int64_t>& side = a.size() > b.size() ? a : b;
    if (random.uniform() < 0.5) {
      side.erase(side.begin());
    } else {
      side.pop_back();
    }
  }
  std::vector<int64_t> tokens{vocabulary_.cls};
  append(tokens, a);
  tokens.push_back(vocabulary_.sep);
  sample.types.assign(tokens.size(), 0);
  if (!b.empty()) {
    append(tokens, b);
    tokens.push_back(vocabulary_.sep);
    sample.types.resize(tokens.size(), 1);
  }
  const MaskedText masked = mask_words(
      std::move(tokens), source.target, vocabulary_, masking_, random,
      [&](int64_t token, RandomState& draw) {
        if (draw.uniform() < 0.8) return vocabulary_.mask;
        if (draw.uniform() < 0.5) return token;
        return vocabulary_
            .ids[static_cast<size_t>(draw.randint(0, static_cast<int64_t>(vocabulary_.ids.size())))];
      },
      permutation_random);

  const auto length = static_cast<size_t>(seq_length_);
  const int64_t pad = vocabulary_.pad;
  require(masked.tokens.size() <= length, "BERT: sample {} has {} tokens, at most {}", i,
          masked.tokens.size(), length);
  sample.text = masked.tokens;
  sample.text.resize(length, pad);
  sample.types.resize(length, pad);
  sample.labels.assign(length, -1);
  sample.loss_mask.assign(length, 0);
  auto predict = [&](int64_t at, int64_t label) {
    sample.labels[static_cast<size_t>(at)] = label;
    sample.loss_mask[static_cast<size_t>(at)] = 1;
  };
  for (const MaskedSpan& span : masked.spans)
    for (size_t k = 0; k < span.positions.size(); ++k) predict(span.positions[k], span.labels[k]);
  for (const auto& [at, label] : masked.permutation) predict(at, label);
  sample.padding_mask.assign(length, 1);
  for (size_t k = 0; k < length; ++k) {
    if (sample.text[k] == pad) {
      sample.padding_mask[k] = pad;  // upstream's, also where the pad id is not 0
      sample.text[k] = 0;
    }
    if (sample.labels[k] == pad) sample.labels[k] = 0;
  }
  return sample;
}

}  // namespace megatron
