#include "megatron/inference/next_token.h"

#include <algorithm>

namespace megatron {
namespace {

bool any_but(std::vector<uint32_t> bits, std::span<const int64_t> tokens) {
  for (int64_t token : tokens) bits[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
  return std::ranges::any_of(bits, [](uint32_t word) { return word != 0; });
}

}  // namespace

std::optional<TokenChoice> choose_token(const ActiveRequest& active, std::span<float> logits) {
  const Request& request = active.request;
  std::vector<uint32_t> allowed;
  bool complete = false;  // the constraint allows nothing but the end
  if (active.constraint) {
    allowed.resize((logits.size() + 31) / 32, 0);
    active.constraint->allowed(allowed);
    if (!any_but(allowed, {})) return {};
    complete = !any_but(allowed, request.end_tokens);
  }
  ChoiceLimits limits{.allowed = allowed};
  if (active.generated() < request.min_tokens && !complete) limits.forbidden = request.end_tokens;
  return active.sampler.choose(logits, limits, request.top_logprobs);
}

bool draws_freely(const ActiveRequest& active) {
  const Request& request = active.request;
  return !active.constraint && request.top_logprobs < 0 &&
         (request.end_tokens.empty() || active.generated() >= request.min_tokens);
}

int64_t stop_length(const ActiveRequest& active) {
  for (const std::vector<int64_t>& stop : active.request.stop_sequences) {
    const int64_t count = std::ssize(stop);
    if (count > 0 && count <= active.generated() &&
        std::equal(stop.begin(), stop.end(), active.text.end() - count))
      return count;
  }
  return 0;
}

}  // namespace megatron
