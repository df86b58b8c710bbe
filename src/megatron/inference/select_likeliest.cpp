#include "megatron/inference/select_likeliest.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace megatron {
namespace {

constexpr size_t kBlock = 64;

float max_of(std::span<const float> values) {
  float max = -std::numeric_limits<float>::infinity();
  for (float value : values) max = value > max ? value : max;
  return max;
}

// A value that at least `count` logits reach: the count-th largest maximum of a block of them.
float lower_bound_of(std::span<const float> logits, size_t count) {
  const size_t blocks = (logits.size() + kBlock - 1) / kBlock;
  if (count > blocks) return -std::numeric_limits<float>::infinity();
  std::vector<float> maxima(blocks);
  for (size_t i = 0; i < blocks; ++i)
    maxima[i] = max_of(logits.subspan(i * kBlock, std::min(kBlock, logits.size() - i * kBlock)));
  const auto last = maxima.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(maxima.begin(), last, maxima.end(), std::greater<>());
  return *last;
}

}  // namespace

std::vector<TokenLogit> select_likeliest(std::span<const float> logits, int64_t count, float floor) {
  const size_t wanted = std::min<size_t>(static_cast<size_t>(count), logits.size());
  const float bound = std::max(floor, wanted > 0 ? lower_bound_of(logits, wanted) : floor);
  std::vector<TokenLogit> found;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, logits.size());
    if (max_of(logits.subspan(begin, end - begin)) < bound) continue;
    for (size_t i = begin; i < end; ++i)
      if (logits[i] >= bound && logits[i] > -std::numeric_limits<float>::infinity())
        found.push_back({logits[i], static_cast<int64_t>(i)});
  }
  const auto likelier = [](const TokenLogit& a, const TokenLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (found.size() > wanted) {
    const auto last = found.begin() + static_cast<std::ptrdiff_t>(wanted) - 1;
    std::nth_element(found.begin(), last, found.end(), likelier);
    const float threshold = last->logit;
    std::erase_if(found, [&](const TokenLogit& candidate) { return candidate.logit < threshold; });
  }
  std::sort(found.begin(), found.end(), likelier);
  return found;
}

}  // namespace megatron
