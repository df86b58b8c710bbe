#include "megatron/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "megatron/base/error.h"

namespace megatron {

void penalise_repetition(std::span<double> logits, std::span<const int64_t> text, double penalty) {
  if (penalty == 1) return;
  std::vector<bool> seen(logits.size());
  for (int64_t token : text) {
    const auto at = static_cast<size_t>(token);
    if (at >= logits.size() || seen[at]) continue;
    seen[at] = true;
    logits[at] = logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty;
  }
}

int64_t sample_token(std::span<const double> logits, const Sampling& sampling, double uniform) {
  require(!logits.empty(), "sampling: there are no logits to choose from");
  if (sampling.temperature <= 0) return std::max_element(logits.begin(), logits.end()) - logits.begin();

  std::vector<int64_t> order(logits.size());  // likeliest first, the lower number among equals
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(order.size()))
    order.resize(static_cast<size_t>(sampling.top_k));

  const double best = logits[static_cast<size_t>(order[0])];
  std::vector<double> cumulative;
  double sum = 0;
  for (int64_t token : order)
    cumulative.push_back(sum += std::exp((logits[static_cast<size_t>(token)] - best) / sampling.temperature));
  // The token that reaches top_p is still among them.
  auto last = std::lower_bound(cumulative.begin(), cumulative.end(), sampling.top_p * sum);
  const auto kept = std::min<size_t>(static_cast<size_t>(last - cumulative.begin()) + 1, cumulative.size());
  cumulative.resize(kept);
  auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  return order[std::min<size_t>(static_cast<size_t>(chosen - cumulative.begin()), kept - 1)];
}

}  // namespace megatron
