#include "megatron/inference/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/inference/select_likeliest.h"
#include "megatron/tensor/philox.h"

namespace megatron {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kChunk = 256;

// exp(x) of x <= 0, to two units of fp32's last place, in a form that compilers vectorise.
inline float exp_of(float x) {
  x = x < -87.0F ? -87.0F : x;
  const float n = std::nearbyintf(x * 1.44269504F);
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// exp((logit - max) * inverse), 0 of tokens below the floor.
inline float weight(float logit, float max, float inverse, float floor) {
  const float value = exp_of((logit - max) * inverse);
  return logit >= floor && logit > kNever ? value : 0.0F;
}

float sum_of_weights(std::span<const float> logits, float max, float inverse, float floor) {
  float lanes[16] = {};
  size_t i = 0;
  for (; i + 16 <= logits.size(); i += 16)
    for (size_t lane = 0; lane < 16; ++lane) lanes[lane] += weight(logits[i + lane], max, inverse, floor);
  for (; i < logits.size(); ++i) lanes[0] += weight(logits[i], max, inverse, floor);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// Sums of chunks are fp32, the sum of all is not, so that vocabularies of any size are exact.
double total_of_weights(std::span<const float> logits, float max, float inverse, float floor) {
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kChunk)
    total += static_cast<double>(
        sum_of_weights(logits.subspan(begin, std::min(kChunk, logits.size() - begin)), max, inverse, floor));
  return total;
}

float max_logit(std::span<const float> logits) {
  float lanes[16];
  std::fill(std::begin(lanes), std::end(lanes), kNever);
  size_t i = 0;
  for (; i + 16 <= logits.size(); i += 16)
    for (size_t lane = 0; lane < 16; ++lane)
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

// Draws from all tokens at or above the floor, in the order of their numbers.
int64_t draw(std::span<const float> logits, float max, float inverse, float floor, double uniform) {
  std::vector<double> cumulative;
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kChunk)
    cumulative.push_back(
        total += static_cast<double>(sum_of_weights(
            logits.subspan(begin, std::min(kChunk, logits.size() - begin)), max, inverse, floor)));
  const double target = uniform * total;
  size_t chunk = static_cast<size_t>(std::upper_bound(cumulative.begin(), cumulative.end(), target) -
                                     cumulative.begin());
  chunk = std::min(chunk, cumulative.size() - 1);
  double sum = chunk > 0 ? cumulative[chunk - 1] : 0;
  int64_t last = -1;
  for (size_t i = chunk * kChunk; i < std::min((chunk + 1) * kChunk, logits.size()); ++i) {
    const float own = weight(logits[i], max, inverse, floor);
    if (own <= 0) continue;
    last = static_cast<int64_t>(i);
    if (target < (sum += static_cast<double>(own))) break;
  }
  // Rounding may lead past the last token of a chunk that has none left; the likeliest is one in any case.
  return last >= 0 ? last : std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// The logit of the token with which the likeliest reach the share `top_p` of all weights at or above the
// floor. A few tokens are usually enough; else weights are summed by buckets of like logits, and only the
// tokens of one bucket are sorted.
float top_p_floor(std::span<const float> logits, float max, float inverse, float floor, double top_p) {
  constexpr float kRange = 24;  // beyond it exp is below fp32's precision of the sum
  constexpr int kBuckets = 2048;
  const auto bucket_of = [&](float logit) {
    return static_cast<int>(std::min((max - logit) * inverse, kRange) *
                            (static_cast<float>(kBuckets - 1) / kRange));
  };
  const double needed = top_p * total_of_weights(logits, max, inverse, floor);
  double sum = 0;
  for (const TokenLogit& one : select_likeliest(logits, 64, floor))
    if ((sum += static_cast<double>(weight(one.logit, max, inverse, floor))) >= needed) return one.logit;

  std::vector<double> mass(kBuckets);
  for (float logit : logits)
    if (const float own = weight(logit, max, inverse, floor); own > 0)
      mass[static_cast<size_t>(bucket_of(logit))] += static_cast<double>(own);
  sum = 0;
  int bucket = 0;
  while (bucket < kBuckets - 1 && sum + mass[static_cast<size_t>(bucket)] < needed)
    sum += mass[static_cast<size_t>(bucket++)];
  std::vector<float> within;
  for (float logit : logits)
    if (logit >= floor && logit > kNever && bucket_of(logit) == bucket) within.push_back(logit);
  std::sort(within.begin(), within.end(), std::greater<>());
  for (float logit : within)
    if ((sum += static_cast<double>(weight(logit, max, inverse, floor))) >= needed) return logit;
  return within.empty() ? floor : within.back();  // rounding kept the sum below
}

}  // namespace

namespace {

// Whether the likeliest token has all of the probability.
bool is_greedy(const Sampling& sampling) {
  constexpr double coldest = 1e-5;
  return sampling.temperature < coldest || sampling.top_k == 1;
}

// The logit that tokens have to reach to be drawn; those as likely as the last one stay.
float sampling_floor(std::span<const float> logits, const Sampling& sampling, float max) {
  const auto inverse = static_cast<float>(1 / sampling.temperature);
  float floor =
      sampling.min_p > 0 ? max + static_cast<float>(sampling.temperature * std::log(sampling.min_p)) : kNever;
  if (sampling.top_k > 0 && sampling.top_k < std::ssize(logits))
    if (const auto kept = select_likeliest(logits, sampling.top_k, floor); !kept.empty())
      floor = kept.back().logit;
  if (sampling.top_p > 0 && sampling.top_p < 1)
    floor = top_p_floor(logits, max, inverse, floor, sampling.top_p);
  return floor;
}

}  // namespace

int64_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform) {
  require(!logits.empty(), "sampling: there are no logits to choose from");
  const float max = max_logit(logits);
  require(std::isfinite(max), "sampling: no token can be chosen (largest logit {}); {}", max,
          max == kNever ? "the constraint or the biases leave none" : "the model's output is not finite");
  if (is_greedy(sampling)) return std::find(logits.begin(), logits.end(), max) - logits.begin();
  return draw(logits, max, static_cast<float>(1 / sampling.temperature),
              sampling_floor(logits, sampling, max), uniform);
}

double log_sum_exp(std::span<const float> logits) {
  const float max = max_logit(logits);
  if (!std::isfinite(max)) return static_cast<double>(max);
  return static_cast<double>(max) + std::log(total_of_weights(logits, max, 1, kNever));
}

TokenChoice log_probabilities(std::span<const float> logits, int64_t token, int top) {
  TokenChoice choice{.id = token, .logprob = 0, .top = {}};
  if (top < 0) return choice;
  const double norm = log_sum_exp(logits);
  auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - norm); };
  choice.logprob = logprob(logits[static_cast<size_t>(token)]);
  if (top == 0) return choice;
  std::vector<TokenLogit> likeliest = select_likeliest(logits, top, kNever);
  likeliest.resize(std::min(likeliest.size(), static_cast<size_t>(top)));
  for (const TokenLogit& one : likeliest) choice.top.emplace_back(one.token, logprob(one.logit));
  return choice;
}

TokenChoice log_probabilities(std::span<const float> logits, const Sampling& sampling, int64_t token,
                              int top) {
  if (top < 0 || sampling.logprobs == LogprobsMode::raw_logprobs)
    return log_probabilities(logits, token, top);
  const float max = max_logit(logits);
  std::vector<float> drawn_from(logits.size(), kNever);
  if (is_greedy(sampling)) {
    drawn_from[static_cast<size_t>(std::find(logits.begin(), logits.end(), max) - logits.begin())] = 0;
  } else {
    const float floor = sampling_floor(logits, sampling, max);
    const auto inverse = static_cast<float>(1 / sampling.temperature);
    for (size_t i = 0; i < logits.size(); ++i)
      if (logits[i] >= floor) drawn_from[i] = (logits[i] - max) * inverse;
  }
  return log_probabilities(drawn_from, token, top);
}

Sampler::Sampler(Sampling sampling, std::span<const int64_t> prompt) : sampling_(std::move(sampling)) {
  if (sampling_.repetition_penalty != 1)
    for (int64_t token : prompt) uses_[token].in_prompt = true;
}

void Sampler::push(int64_t token) {
  ++number_;
  if (sampling_.repetition_penalty != 1 || sampling_.presence_penalty != 0 ||
      sampling_.frequency_penalty != 0)
    ++uses_[token].answers;
}

std::optional<DeviceDraw> Sampler::device_draw() const {
  if (!sampling_.logit_bias.empty() || sampling_.repetition_penalty != 1 || sampling_.presence_penalty != 0 ||
      sampling_.frequency_penalty != 0)
    return {};
  if (is_greedy(sampling_)) return DeviceDraw{};
  DeviceDraw draw;
  draw[kSampleTemperature] = sampling_.temperature;
  draw[kSampleTopK] = static_cast<double>(sampling_.top_k);
  draw[kSampleTopP] = sampling_.top_p;
  draw[kSampleMinP] = sampling_.min_p;
  draw[kSampleUniform] = uniform();
  return draw;
}

double Sampler::uniform() const {
  const Philox words = Philox::at({sampling_.seed, 0}, number_);
  // 53 bits: 24 would leave tokens out of a large vocabulary.
  return static_cast<double>((uint64_t{words.word[0]} << 21) ^ (words.word[1] >> 11)) * 0x1p-53;
}

void Sampler::modify(std::span<float> logits, const ChoiceLimits& limits) const {
  if (!limits.allowed.empty()) {
    for (size_t i = 0; i < logits.size(); ++i)
      if (i / 32 >= limits.allowed.size() || !((limits.allowed[i / 32] >> (i % 32)) & 1U)) logits[i] = kNever;
  }
  auto at = [&](int64_t token) -> float* {
    return token >= 0 && token < std::ssize(logits) ? &logits[static_cast<size_t>(token)] : nullptr;
  };
  for (const auto& [token, bias] : sampling_.logit_bias)
    if (float* logit = at(token)) *logit += bias;
  for (int64_t token : limits.forbidden)
    if (float* logit = at(token)) *logit = kNever;
  for (const auto& [token, uses] : uses_) {
    float* logit = at(token);
    if (!logit) continue;
    const auto repetition = static_cast<float>(sampling_.repetition_penalty);
    *logit = *logit > 0 ? *logit / repetition : *logit * repetition;
    if (uses.answers > 0)
      *logit -= static_cast<float>(sampling_.presence_penalty +
                                   sampling_.frequency_penalty * static_cast<double>(uses.answers));
  }
}

TokenChoice Sampler::choose(std::span<float> logits, const ChoiceLimits& limits, int top_logprobs) const {
  if (top_logprobs < 0) {
    modify(logits, limits);
    return {.id = sample_token(logits, sampling_, uniform()), .logprob = 0, .top = {}};
  }
  std::vector<float> modified(logits.begin(), logits.end());
  modify(modified, limits);
  const int64_t token = sample_token(modified, sampling_, uniform());
  const bool raw = sampling_.logprobs == LogprobsMode::raw_logprobs;
  return log_probabilities(raw ? logits : std::span<float>(modified), sampling_, token, top_logprobs);
}

}  // namespace megatron
