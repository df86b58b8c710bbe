#include "megatron/datasets/masked/masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "megatron/base/error.h"
#include "megatron/datasets/random/numpy_math.h"

namespace megatron {
namespace {

using Words = std::vector<std::vector<int64_t>>;  // positions of each word's pieces

Words find_words(const std::vector<int64_t>& tokens, const WordPieces& vocabulary, bool full_word) {
  Words words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t token = tokens[i];
    if (token == vocabulary.cls || token == vocabulary.sep) continue;
    require(token >= 0 && token < static_cast<int64_t>(vocabulary.continuation.size()),
            "masking: token {} is not of the vocabulary of {}", token, vocabulary.continuation.size());
    const bool joins = full_word && !words.empty() && vocabulary.continuation[static_cast<size_t>(token)];
    if (!joins) words.emplace_back();
    words.back().push_back(static_cast<int64_t>(i));
  }
  return words;
}

// choice(1..max, p) of probabilities 1/n, as cumulative sums.
std::vector<double> ngram_cdf(const MaskingOptions& options) {
  std::vector<double> p;
  for (int64_t n = 1; n <= options.max_ngram; ++n) p.push_back(1.0 / static_cast<double>(n));
  p = normalize_weights(p);
  if (options.longer_ngrams) std::reverse(p.begin(), p.end());
  p = normalize_weights(p);
  std::partial_sum(p.begin(), p.end(), p.begin());
  const double last = p.back();
  for (double& value : p) value /= last;
  return p;
}

int64_t draw_ngram(const std::vector<double>& cdf, RandomState& random) {
  const double u = random.uniform();
  return 1 + (std::upper_bound(cdf.begin(), cdf.end(), u) - cdf.begin());
}

// Takes n-grams that begin at the words of `order` until `limit` tokens are taken; none holds a token of
// `covered`, which grows by those taken.
template <class Size, class Take>
void choose_ngrams(const Words& words, const std::vector<size_t>& order, double limit,
                   std::set<int64_t>& covered, Size size, Take take) {
  size_t taken = 0;
  for (size_t word : order) {
    if (static_cast<double>(taken) >= limit) break;
    int64_t n = size();
    std::vector<int64_t> positions;
    for (; n > 0; --n) {
      positions.clear();
      for (size_t w = word; w < std::min(word + static_cast<size_t>(n), words.size()); ++w)
        positions.insert(positions.end(), words[w].begin(), words[w].end());
      if (static_cast<double>(taken + positions.size()) <= limit) break;
    }
    if (n == 0) continue;
    const bool free = std::ranges::none_of(positions, [&](int64_t at) { return covered.contains(at); });
    if (!free) continue;
    covered.insert(positions.begin(), positions.end());
    taken += positions.size();
    take(std::move(positions));
  }
}

}  // namespace

MaskedText mask_words(std::vector<int64_t> tokens, int64_t target, const WordPieces& vocabulary,
                      const MaskingOptions& options, RandomState& random,
                      const std::function<int64_t(int64_t token, RandomState&)>& replace,
                      RandomState* permutation_random) {
  require(options.max_ngram >= 1, "masking: n-grams of {} words, expected at least 1", options.max_ngram);
  const Words words = find_words(tokens, vocabulary, options.full_word);
  const double wanted =
      std::max(1.0, std::nearbyint(static_cast<double>(tokens.size()) * options.probability));
  const double limit = std::min(options.probability * static_cast<double>(target), wanted);
  const std::vector<double> cdf = ngram_cdf(options);
  std::vector<size_t> order(words.size());
  std::iota(order.begin(), order.end(), size_t{0});
  random.shuffle(order);

  MaskedText result;
  std::set<int64_t> covered;
  auto ngram_size = [&]() -> int64_t {
    if (!options.geometric) return draw_ngram(cdf, random);
    const double n = std::ceil(std::log1p(-random.uniform()) / std::log(0.8));
    return std::min(static_cast<int64_t>(n), options.max_ngram);
  };
  choose_ngrams(words, order, limit, covered, ngram_size, [&](std::vector<int64_t> positions) {
    MaskedSpan span{std::move(positions), {}};
    for (int64_t at : span.positions) {
      int64_t& token = tokens[static_cast<size_t>(at)];
      span.labels.push_back(token);
      token = replace(token, random);
    }
    result.spans.push_back(std::move(span));
  });
  std::ranges::sort(result.spans, {}, [](const MaskedSpan& span) { return span.positions[0]; });

  if (options.permutation) {
    require(permutation_random != nullptr, "masking: permutation needs a generator of its own");
    random.shuffle(order);
    std::vector<int64_t> chosen;
    choose_ngrams(
        words, order, limit, covered, [&] { return draw_ngram(cdf, *permutation_random); },
        [&](const std::vector<int64_t>& positions) {
          chosen.insert(chosen.end(), positions.begin(), positions.end());
        });
    std::ranges::sort(chosen);
    std::vector<int64_t> sources = chosen;
    random.shuffle(sources);
    const std::vector<int64_t> before = tokens;
    for (size_t i = 0; i < chosen.size(); ++i) {
      tokens[static_cast<size_t>(chosen[i])] = before[static_cast<size_t>(sources[i])];
      result.permutation.emplace_back(chosen[i], before[static_cast<size_t>(chosen[i])]);
    }
  }
  result.tokens = std::move(tokens);
  return result;
}

}  // namespace megatron
