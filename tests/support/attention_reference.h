#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "megatron/kernels/attention.h"

namespace megatron::testing {

// Attention and its gradients by the plain formula, one query of one head at a time, in fp64.
struct AttentionReference {
  std::vector<double> q, k, v, grad_o, bias, sinks;
  int64_t heads = 1, kv_heads = 1, d = 1, dv = 1, bias_batch = 0, bias_heads = 0;
  double scale = 1, softcap = 0, dropout = 0;
  bool causal = true;
  int64_t window_left = -1, window_right = -1;
  RngKey dropout_key;

  std::vector<double> o, lse, dq, dk, dv_grad, dbias, dsinks;

  void run(const std::vector<int32_t>& cu_queries, const std::vector<int32_t>& cu_keys) {
    int64_t tokens = cu_queries.back();
    o.assign(static_cast<size_t>(tokens * heads * dv), 0);
    lse.assign(static_cast<size_t>(tokens * heads), 0);
    dq.assign(q.size(), 0), dk.assign(k.size(), 0), dv_grad.assign(v.size(), 0);
    dbias.assign(bias.size(), 0), dsinks.assign(sinks.size(), 0);
    for (size_t b = 0; b + 1 < cu_queries.size(); ++b)
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t query = 0; query < cu_queries[b + 1] - cu_queries[b]; ++query)
          row(static_cast<int64_t>(b), head, query, cu_queries[b], cu_queries[b + 1] - cu_queries[b],
              cu_keys[b], cu_keys[b + 1] - cu_keys[b], tokens);
  }

 private:
  void row(int64_t b, int64_t head, int64_t query, int64_t first_query, int64_t queries, int64_t first_key,
           int64_t keys, int64_t tokens) {
    const double none = -std::numeric_limits<double>::infinity();
    int64_t kv_head = head / (heads / kv_heads), token = first_query + query;
    const double* x = &q[static_cast<size_t>((token * heads + head) * d)];
    auto key_at = [&](int64_t key) {
      return static_cast<size_t>(((first_key + key) * kv_heads + kv_head) * d);
    };
    auto value_at = [&](int64_t key) {
      return static_cast<size_t>(((first_key + key) * kv_heads + kv_head) * dv);
    };
    auto bias_at = [&](int64_t key) {
      int64_t bb = bias_batch == 1 ? 0 : b, bh = bias_heads == 1 ? 0 : head;
      return static_cast<size_t>(((bb * bias_heads + bh) * queries + query) * keys + key);
    };
    std::vector<double> score(static_cast<size_t>(keys), none), slope(score.size(), 1), keep(score.size(), 1);
    double largest = sinks.empty() ? none : sinks[static_cast<size_t>(head)];
    for (int64_t key = 0; key < keys; ++key) {
      int64_t own = query + keys - queries;
      bool visible = (!causal || key <= own) && (window_left < 0 || key >= own - window_left) &&
                     (causal || window_right < 0 || key <= own + window_right);
      if (!visible) continue;
      double s = 0;
      for (int64_t c = 0; c < d; ++c) s += scale * x[c] * k[key_at(key) + static_cast<size_t>(c)];
      auto at = static_cast<size_t>(key);
      if (softcap > 0) {
        double t = std::tanh(s / softcap);
        s = softcap * t, slope[at] = 1 - t * t;
      }
      if (!bias.empty()) s += bias[bias_at(key)];
      if (dropout > 0)
        keep[at] = attention_keeps(dropout_key, heads, dropout, b, head, query, key) ? 1 / (1 - dropout) : 0;
      score[at] = s;
      largest = std::max(largest, s);
    }
    double sum = sinks.empty() ? 0 : std::exp(sinks[static_cast<size_t>(head)] - largest);
    for (double s : score)
      if (s != none) sum += std::exp(s - largest);
    double log_sum = sum > 0 ? largest + std::log(sum) : none;
    lse[static_cast<size_t>(head * tokens + token)] = log_sum;
    auto out = static_cast<size_t>((token * heads + head) * dv);
    double delta = 0;
    for (int64_t key = 0; key < keys; ++key) {
      auto at = static_cast<size_t>(key);
      double p = score[at] == none ? 0 : std::exp(score[at] - log_sum);
      for (int64_t c = 0; c < dv; ++c)
        o[out + static_cast<size_t>(c)] += p * keep[at] * v[value_at(key) + static_cast<size_t>(c)];
    }
    for (int64_t c = 0; c < dv; ++c)
      delta += o[out + static_cast<size_t>(c)] * grad_o[out + static_cast<size_t>(c)];
    for (int64_t key = 0; key < keys; ++key) {
      auto at = static_cast<size_t>(key);
      if (score[at] == none) continue;
      double p = std::exp(score[at] - log_sum), dp = 0;
      for (int64_t c = 0; c < dv; ++c) {
        double g = grad_o[out + static_cast<size_t>(c)];
        dp += g * v[value_at(key) + static_cast<size_t>(c)];
        dv_grad[value_at(key) + static_cast<size_t>(c)] += p * keep[at] * g;
      }
      double ds = p * (keep[at] * dp - delta);
      if (!bias.empty()) dbias[bias_at(key)] += ds;
      ds *= slope[at] * scale;
      for (int64_t c = 0; c < d; ++c) {
        dq[static_cast<size_t>((token * heads + head) * d + c)] +=
            ds * k[key_at(key) + static_cast<size_t>(c)];
        dk[key_at(key) + static_cast<size_t>(c)] += ds * x[c];
      }
    }
    if (!sinks.empty())
      dsinks[static_cast<size_t>(head)] -= std::exp(sinks[static_cast<size_t>(head)] - log_sum) * delta;
  }
};

}  // namespace megatron::testing
