#include "megatron/kernels/cpu/isa/functions.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/state_scan.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// One key head, with the value heads that share it, along one sequence. A state is [key channels, value
// channels]; states before chunks are kept, those inside are made again.
template <class T>
class ChannelScan {
 public:
  using C = Compute<T>;

  ChannelScan(const ChannelDeltaArgs& args, int64_t key_head)
      : args_(args),
        key_head_(key_head),
        keys_(args.key_channels),
        values_(args.value_channels),
        q_(size(keys_)),
        k_(size(keys_)),
        e_(size(keys_)),
        decay_(size(keys_)),
        delta_(size(values_)) {}

  void forward(int64_t sequence, const TokenSpan& span, int64_t first_slot) {
    scan_states<T>(args_, key_head_, sequence, span, first_slot, q_, [&](int64_t t, int64_t h, C* state) {
      load(t);
      advance(t, h, state);
    });
  }

  void backward(const ChannelDeltaBackwardArgs& back, const TokenSpan& span, int64_t first_slot) {
    const size_t all = size((span.end - span.begin) * keys_);
    // What value heads share gathers over all of them.
    std::vector<C> dq(all, C(0)), dk(all, C(0)), de(all, C(0)), dg(all, C(0));
    scan_states_back<T>(
        args_, key_head_, span, first_slot, false,
        [&](int64_t t, int64_t h, C* state) {
          load(t);
          advance(t, h, state);
        },
        [&](int64_t t, int64_t h, C* old, C* dstate) {
          const size_t row = size((t - span.begin) * keys_);
          load(t);
          step_back(back, t, h, old, dstate, {&dq[row], &dk[row], &de[row], &dg[row]});
        });
    for (int64_t t = span.begin; t < span.end; ++t)
      for (int64_t i = 0; i < keys_; ++i) {
        const int64_t to = (t * args_.key_heads + key_head_) * keys_ + i;
        const size_t from = size((t - span.begin) * keys_ + i);
        pointer<T>(back.dq)[to] = T(dq[from]);
        pointer<T>(back.dk)[to] = T(dk[from]);
        pointer<T>(back.de)[to] = T(de[from]);
        pointer<C>(back.dg)[to] = dg[from];
      }
  }

 private:
  struct Gradients {
    C *q, *k, *e, *g;  // of a token
  };
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  const T* value_row(int64_t t, int64_t h) const {
    return pointer<T>(args_.v) + t * args_.v.stride(0) + h * values_;
  }

  void load(int64_t t) {
    const auto row = [&]<class E>(const Tensor& x, Type<E>) {
      return pointer<E>(x) + t * x.stride(0) + key_head_ * keys_;
    };
    const T *q = row(args_.q, Type<T>{}), *k = row(args_.k, Type<T>{}), *e = row(args_.e, Type<T>{});
    const C* g = row(args_.g, Type<C>{});
    for (int64_t i = 0; i < keys_; ++i) {
      q_[size(i)] = C(q[i]);
      k_[size(i)] = C(k[i]);
      e_[size(i)] = C(e[i]);
      decay_[size(i)] = math::exp(g[i]);
    }
  }

  // The state after the token; delta_ is what was written.
  void advance(int64_t t, int64_t h, C* state) {
    const T* v = value_row(t, h);
    for (int64_t c = 0; c < values_; ++c) delta_[size(c)] = C(v[c]);
    for (int64_t i = 0; i < keys_; ++i)
      for (int64_t c = 0; c < values_; ++c) {
        state[i * values_ + c] *= decay_[size(i)];
        delta_[size(c)] -= state[i * values_ + c] * e_[size(i)];
      }
    for (int64_t i = 0; i < keys_; ++i)
      for (int64_t c = 0; c < values_; ++c) state[i * values_ + c] += k_[size(i)] * delta_[size(c)];
  }

  // `old`: the state before this token. dstate: of the state after it, becomes that before it.
  void step_back(const ChannelDeltaBackwardArgs& back, int64_t t, int64_t h, C* old, C* dstate, Gradients d) {
    const T* grad = pointer<T>(back.d_o) + t * back.d_o.stride(0) + h * values_;
    const T* v = value_row(t, h);
    std::vector<C> d_o(size(values_)), ddelta(size(values_), C(0));
    for (int64_t c = 0; c < values_; ++c) d_o[size(c)] = C(grad[c]), delta_[size(c)] = C(v[c]);
    for (int64_t i = 0; i < keys_; ++i)
      for (int64_t c = 0; c < values_; ++c) {
        old[i * values_ + c] *= decay_[size(i)];
        delta_[size(c)] -= old[i * values_ + c] * e_[size(i)];
        dstate[i * values_ + c] += q_[size(i)] * d_o[size(c)];
        ddelta[size(c)] += dstate[i * values_ + c] * k_[size(i)];
      }
    for (int64_t i = 0; i < keys_; ++i) {
      C dq = 0, dk = 0, de = 0, dg = 0;
      for (int64_t c = 0; c < values_; ++c) {
        const C kept = old[i * values_ + c], dnow = dstate[i * values_ + c];
        dq += (kept + k_[size(i)] * delta_[size(c)]) * d_o[size(c)];
        dk += dnow * delta_[size(c)];
        de -= kept * ddelta[size(c)];
        const C dkept = dnow - e_[size(i)] * ddelta[size(c)];
        dg += dkept * kept;
        dstate[i * values_ + c] = dkept * decay_[size(i)];
      }
      d.q[i] += dq;
      d.k[i] += dk;
      d.e[i] += de;
      d.g[i] += dg;
    }
    T* dv = pointer<T>(back.dv) + (t * args_.value_heads + h) * values_;
    for (int64_t c = 0; c < values_; ++c) dv[c] = T(ddelta[size(c)]);
  }

  const ChannelDeltaArgs& args_;
  int64_t key_head_, keys_, values_;
  std::vector<C> q_, k_, e_, decay_, delta_;
};

void channel_delta(const KernelContext& ctx, const ChannelDeltaArgs& args) {
  dispatch_float("channel_delta", args.q.dtype(), [&]<class T>(Type<T>) {
    for_each_scan(ctx, token_spans(args.rows, args.q.size(0)), args.key_heads, args.chunk,
                  [&](int64_t sequence, const TokenSpan& span, int64_t first_slot, int64_t head) {
                    ChannelScan<T>(args, head).forward(sequence, span, first_slot);
                  });
  });
}

void channel_delta_backward(const KernelContext& ctx, const ChannelDeltaBackwardArgs& args) {
  const ChannelDeltaArgs& forward = args.forward;
  dispatch_float("channel_delta_backward", forward.q.dtype(), [&]<class T>(Type<T>) {
    for_each_scan(ctx, token_spans(forward.rows, forward.q.size(0)), forward.key_heads, forward.chunk,
                  [&](int64_t, const TokenSpan& span, int64_t first_slot, int64_t head) {
                    ChannelScan<T>(forward, head).backward(args, span, first_slot);
                  });
  });
}

}  // namespace

void add_channel_delta_kernels(KernelTable& table) {
  table.channel_delta = channel_delta;
  table.channel_delta_backward = channel_delta_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
