#include "megatron/kernels/cpu/isa/functions.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/state_scan.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// One key head, with the value heads that share it, along one sequence. A state is [key channels, value
// channels]; states before chunks are kept, those inside are made again.
template <class T>
class DeltaScan {
 public:
  using C = Compute<T>;

  DeltaScan(const DeltaRuleArgs& args, int64_t key_head)
      : args_(args),
        key_head_(key_head),
        keys_(args.key_channels),
        values_(args.value_channels),
        share_(args.value_heads / args.key_heads),
        q_(size(keys_)),
        k_(size(keys_)),
        v_(size(values_)) {}

  void forward(int64_t sequence, const TokenSpan& span, int64_t first_slot) {
    std::vector<C> delta(size(values_));
    scan_states<T>(args_, key_head_, sequence, span, first_slot, q_, [&](int64_t t, int64_t h, C* state) {
      load(t, h);
      advance(state, delta.data());
    });
  }

  struct Gradients {
    C *da_log, *ddt_bias;  // of this sequence, one per value head
  };

  void backward(const DeltaRuleBackwardArgs& back, const TokenSpan& span, int64_t first_slot,
                Gradients totals) {
    const int64_t length = span.end - span.begin;
    // q and k serve several value heads: their gradients gather over all of them.
    std::vector<C> dq(size(length * keys_), C(0)), dk(size(length * keys_), C(0));
    std::vector<C> delta(size(values_));
    scan_states_back<T>(
        args_, key_head_, span, first_slot, true,
        [&](int64_t t, int64_t h, C* state) {
          load(t, h);
          advance(state, delta.data());
        },
        [&](int64_t t, int64_t h, const C* states, C* dstate) {
          load(t, h);
          step_back(back, t, h, states, dstate, &dq[at((t - span.begin) * keys_)],
                    &dk[at((t - span.begin) * keys_)], totals);
        });
    for (int64_t t = span.begin; t < span.end; ++t) {
      load(t, first_head());
      T* row = pointer<T>(back.dqkv) + t * width();
      unscale(&dq[at((t - span.begin) * keys_)], q_, q_length_, query_scale(), row + key_head_ * keys_);
      unscale(&dk[at((t - span.begin) * keys_)], k_, k_length_, C(1),
              row + (args_.key_heads + key_head_) * keys_);
    }
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  int64_t first_head() const { return key_head_ * share_; }
  int64_t width() const { return 2 * args_.key_heads * keys_ + args_.value_heads * values_; }
  int64_t value_at(int64_t h) const { return 2 * args_.key_heads * keys_ + h * values_; }
  C query_scale() const { return C(1) / std::sqrt(C(keys_)); }

  // q and k of unit length (q then scaled), v, decay and beta of a token for one value head.
  void load(int64_t t, int64_t h) {
    const T* row = pointer<T>(args_.qkv) + t * args_.qkv.stride(0);
    q_length_ = unit(row + key_head_ * keys_, q_, query_scale());
    k_length_ = unit(row + (args_.key_heads + key_head_) * keys_, k_, C(1));
    for (int64_t c = 0; c < values_; ++c) v_[at(c)] = C(row[value_at(h) + c]);
    rate_ = -math::exp(pointer<C>(args_.a_log)[h]);
    raw_ = C(pointer<T>(args_.a)[t * args_.a.stride(0) + h]) + pointer<C>(args_.dt_bias)[h];
    log_decay_ = rate_ * math::softplus(raw_);
    decay_ = math::exp(log_decay_);
    beta_ = math::sigmoid(C(pointer<T>(args_.b)[t * args_.b.stride(0) + h]));
  }

  // The length that the vector is divided by.
  C unit(const T* in, std::vector<C>& out, C scale) const {
    C length =
        std::sqrt(sum_over<C>(keys_, [&](int64_t i) { return C(in[i]) * C(in[i]); }) + C(args_.epsilon));
    for (int64_t i = 0; i < keys_; ++i) out[at(i)] = C(in[i]) / length * scale;
    return length;
  }

  // The gradient of a vector from that of its scaled unit vector.
  void unscale(const C* grad, const std::vector<C>& scaled, C length, C scale, T* out) const {
    const C along = sum_over<C>(keys_, [&](int64_t i) { return grad[i] * scaled[at(i)]; });
    for (int64_t i = 0; i < keys_; ++i)
      out[i] = T((scale * grad[i] - scaled[at(i)] * along / scale) / length);
  }

  void advance(C* state, C* delta) const {
    for (int64_t i = 0; i < keys_ * values_; ++i) state[i] *= decay_;
    for (int64_t c = 0; c < values_; ++c) delta[c] = v_[at(c)];
    for (int64_t i = 0; i < keys_; ++i)
      for (int64_t c = 0; c < values_; ++c) delta[c] -= state[i * values_ + c] * k_[at(i)];
    for (int64_t i = 0; i < keys_; ++i)
      for (int64_t c = 0; c < values_; ++c) state[i * values_ + c] += k_[at(i)] * beta_ * delta[c];
  }

  // `states`: before this token, then after it. dstate: of the state after it, becomes that before it.
  void step_back(const DeltaRuleBackwardArgs& back, int64_t t, int64_t h, const C* states, C* dstate, C* dq,
                 C* dk, Gradients totals) {
    const C *old = states, *now = states + keys_ * values_;
    const T* grad = pointer<T>(back.d_o) + t * back.d_o.stride(0) + h * values_;
    std::vector<C> d_o(size(values_)), error(v_), pushed(size(values_), C(0));
    for (int64_t c = 0; c < values_; ++c) d_o[at(c)] = C(grad[c]);
    for (int64_t i = 0; i < keys_; ++i) {
      C sum = 0;
      for (int64_t c = 0; c < values_; ++c) {
        sum += now[i * values_ + c] * d_o[at(c)];
        dstate[i * values_ + c] += q_[at(i)] * d_o[at(c)];
        error[at(c)] -= decay_ * old[i * values_ + c] * k_[at(i)];  // v − Rᵀk of the decayed state
        pushed[at(c)] += dstate[i * values_ + c] * k_[at(i)];       // the gradient of what is written
      }
      dq[i] += sum;
    }
    C dbeta = 0, ddecay = 0;
    for (int64_t c = 0; c < values_; ++c) dbeta += pushed[at(c)] * error[at(c)];
    for (int64_t i = 0; i < keys_; ++i) {
      C sum = 0;
      for (int64_t c = 0; c < values_; ++c) {
        const C kept = old[i * values_ + c] * decay_;
        sum += dstate[i * values_ + c] * beta_ * error[at(c)] - kept * beta_ * pushed[at(c)];
        const C dkept = dstate[i * values_ + c] - k_[at(i)] * beta_ * pushed[at(c)];
        ddecay += dkept * kept;
        dstate[i * values_ + c] = dkept * decay_;
      }
      dk[i] += sum;
    }
    T* dv = pointer<T>(back.dqkv) + t * width() + value_at(h);
    for (int64_t c = 0; c < values_; ++c) dv[c] = T(beta_ * pushed[at(c)]);
    pointer<T>(back.db)[t * args_.value_heads + h] = T(dbeta * beta_ * (C(1) - beta_));
    const C draw = ddecay * rate_ * math::sigmoid(raw_);
    pointer<T>(back.da)[t * args_.value_heads + h] = T(draw);
    totals.ddt_bias[h] += draw;
    totals.da_log[h] += ddecay * log_decay_;
  }

  const DeltaRuleArgs& args_;
  int64_t key_head_, keys_, values_, share_;
  std::vector<C> q_, k_, v_;
  C q_length_ = 0, k_length_ = 0, rate_ = 0, raw_ = 0, log_decay_ = 0, decay_ = 0, beta_ = 0;
};

template <class T>
void forward(const KernelContext& ctx, const DeltaRuleArgs& args) {
  const auto spans = token_spans(args.rows, args.qkv.size(0));
  for_each_scan(ctx, spans, args.key_heads, args.chunk,
                [&](int64_t sequence, const TokenSpan& span, int64_t first_slot, int64_t group) {
                  DeltaScan<T>(args, group).forward(sequence, span, first_slot);
                });
}

template <class T>
void backward(const KernelContext& ctx, const DeltaRuleBackwardArgs& args) {
  using C = Compute<T>;
  const DeltaRuleArgs& forward = args.forward;
  const int64_t heads = forward.value_heads;
  const auto spans = token_spans(forward.rows, forward.qkv.size(0));
  std::vector<C> sums(spans.size() * static_cast<size_t>(2 * heads), C(0));
  for_each_scan(ctx, spans, forward.key_heads, forward.chunk,
                [&](int64_t sequence, const TokenSpan& span, int64_t first_slot, int64_t group) {
                  C* own = sums.data() + 2 * sequence * heads;
                  DeltaScan<T>(forward, group).backward(args, span, first_slot, {own, own + heads});
                });
  C* targets[] = {pointer<C>(args.da_log), pointer<C>(args.ddt_bias)};
  sum_sequences<C>(sums, heads, targets);
}

void delta_rule(const KernelContext& ctx, const DeltaRuleArgs& args) {
  dispatch_float("delta_rule", args.qkv.dtype(), [&]<class T>(Type<T>) { forward<T>(ctx, args); });
}
void delta_rule_backward(const KernelContext& ctx, const DeltaRuleBackwardArgs& args) {
  dispatch_float("delta_rule_backward", args.forward.qkv.dtype(),
                 [&]<class T>(Type<T>) { backward<T>(ctx, args); });
}

}  // namespace

void add_delta_rule_kernels(KernelTable& table) {
  table.delta_rule = delta_rule;
  table.delta_rule_backward = delta_rule_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
