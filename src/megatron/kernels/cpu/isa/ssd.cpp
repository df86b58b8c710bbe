#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/functions.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/sequences.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

template <class C>
C dot(const C* a, const C* b, int64_t n) {
  return sum_over<C>(n, [&](int64_t i) { return a[i] * b[i]; });
}

template <class C>
void add_scaled(C* out, C factor, const C* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += factor * in[i];
}

// One group of heads along one sequence, a chunk at a time.
template <class T>
class GroupScan {
 public:
  using C = Compute<T>;

  GroupScan(const SsdArgs& args, int64_t group)
      : args_(args),
        group_(group),
        heads_(args.heads / args.groups),
        channels_(args.channels),
        states_(args.states),
        b_(table(states_)),
        c_(table(states_)),
        bc_(table(args.chunk)),
        x_(table(channels_)),
        steps_(table(1)),
        slopes_(table(1)),
        sums_(table(1)),
        state_(static_cast<size_t>(heads_ * channels_ * states_)) {}

  void forward(int64_t sequence, const TokenSpan& span, int64_t first_slot) {
    C* carried = optional_pointer<C>(args_.state);
    const auto count = static_cast<int64_t>(state_.size());
    if (carried) {
      carried += (sequence * args_.heads + head(0)) * channels_ * states_;
      std::copy_n(carried, count, state_.begin());
    } else {
      std::fill(state_.begin(), state_.end(), C(0));
    }
    C* before = optional_pointer<C>(args_.before);
    for (int64_t begin = span.begin, slot = first_slot; begin < span.end; begin += args_.chunk, ++slot) {
      load_group(begin, span.end);
      for (int64_t h = 0; h < heads_; ++h) {
        C* state = state_.data() + h * channels_ * states_;
        if (before) std::copy_n(state, channels_ * states_, before + saved_at(slot, h));
        load_head(h);
        write_outputs(h, state);
        advance(state);
      }
    }
    if (carried) std::copy_n(state_.begin(), count, carried);
  }

  struct Gradients {
    C *da_log, *dd, *ddt_bias;  // of this sequence, one per head
  };

  void backward(const SsdBackwardArgs& back, const TokenSpan& span, int64_t first_slot, Gradients sums) {
    std::vector<C> dstates(state_.size(), C(0)), db = table(states_), dc = table(states_);
    const C* before = pointer<C>(args_.before);
    int64_t chunks = (span.end - span.begin + args_.chunk - 1) / args_.chunk;
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      load_group(span.begin + chunk * args_.chunk, span.end);
      std::fill(db.begin(), db.end(), C(0));
      std::fill(dc.begin(), dc.end(), C(0));
      for (int64_t h = 0; h < heads_; ++h) {
        load_head(h);
        head_backward(back, h, before + saved_at(first_slot + chunk, h),
                      dstates.data() + h * channels_ * states_, db.data(), dc.data(), sums);
      }
      T* out = pointer<T>(back.dxbc);
      for (int64_t i = 0; i < length_; ++i)
        for (int64_t n = 0; n < states_; ++n) {
          out[(begin_ + i) * width() + b_at() + n] = T(db[at(i, states_) + n]);
          out[(begin_ + i) * width() + c_at() + n] = T(dc[at(i, states_) + n]);
        }
    }
  }

 private:
  static size_t at(int64_t i, int64_t columns) { return static_cast<size_t>(i * columns); }
  std::vector<C> table(int64_t columns) const { return std::vector<C>(at(args_.chunk, columns)); }
  int64_t width() const { return args_.heads * channels_ + 2 * args_.groups * states_; }
  int64_t b_at() const { return args_.heads * channels_ + group_ * states_; }
  int64_t c_at() const { return b_at() + args_.groups * states_; }
  int64_t head(int64_t h) const { return group_ * heads_ + h; }
  int64_t saved_at(int64_t slot, int64_t h) const {
    return (slot * args_.heads + head(h)) * channels_ * states_;
  }

  // b, c and c · bᵀ, which all heads of the group share.
  void load_group(int64_t begin, int64_t end) {
    begin_ = begin;
    length_ = std::min(args_.chunk, end - begin);
    const T* in = pointer<T>(args_.xbc);
    for (int64_t i = 0; i < length_; ++i) {
      const T* row = in + (begin + i) * args_.xbc.stride(0);
      for (int64_t n = 0; n < states_; ++n) {
        b_[at(i, states_) + n] = C(row[b_at() + n]);
        c_[at(i, states_) + n] = C(row[c_at() + n]);
      }
      for (int64_t j = 0; j <= i; ++j)
        bc_[at(i, args_.chunk) + j] = dot(&c_[at(i, states_)], &b_[at(j, states_)], states_);
    }
  }

  // x, the step Δ and its slope, and the sum of log-decays since the chunk began.
  void load_head(int64_t h) {
    const T *in = pointer<T>(args_.xbc), *dt = pointer<T>(args_.dt);
    const C bias = pointer<C>(args_.dt_bias)[head(h)];
    rate_ = -math::exp(pointer<C>(args_.a_log)[head(h)]);
    C sum = 0;
    for (int64_t i = 0; i < length_; ++i) {
      const T* row = in + (begin_ + i) * args_.xbc.stride(0) + head(h) * channels_;
      for (int64_t p = 0; p < channels_; ++p) x_[at(i, channels_) + p] = C(row[p]);
      const C raw = C(dt[(begin_ + i) * args_.dt.stride(0) + head(h)]) + bias, step = math::softplus(raw);
      const bool inside = step >= C(args_.step_min) && step <= C(args_.step_max);
      steps_[i] = std::min(std::max(step, C(args_.step_min)), C(args_.step_max));
      slopes_[i] = inside ? math::sigmoid(raw) : C(0);
      sums_[i] = sum += steps_[i] * rate_;
    }
  }

  void write_outputs(int64_t h, const C* state) {
    T* y = pointer<T>(args_.y);
    const C skip = pointer<C>(args_.d)[head(h)];
    std::vector<C> out(static_cast<size_t>(channels_));
    for (int64_t i = 0; i < length_; ++i) {
      const C decay = math::exp(sums_[i]);
      for (int64_t p = 0; p < channels_; ++p)
        out[p] =
            skip * x_[at(i, channels_) + p] + decay * dot(state + p * states_, &c_[at(i, states_)], states_);
      for (int64_t j = 0; j <= i; ++j)
        add_scaled(out.data(), math::exp(sums_[i] - sums_[j]) * bc_[at(i, args_.chunk) + j] * steps_[j],
                   &x_[at(j, channels_)], channels_);
      T* row = y + ((begin_ + i) * args_.heads + head(h)) * channels_;
      for (int64_t p = 0; p < channels_; ++p) row[p] = T(out[p]);
    }
  }

  void advance(C* state) {
    const C total = sums_[length_ - 1], decay = math::exp(total);
    for (int64_t k = 0; k < channels_ * states_; ++k) state[k] *= decay;
    for (int64_t j = 0; j < length_; ++j) {
      const C weight = math::exp(total - sums_[j]) * steps_[j];
      for (int64_t p = 0; p < channels_; ++p)
        add_scaled(state + p * states_, weight * x_[at(j, channels_) + p], &b_[at(j, states_)], states_);
    }
  }

  // dstate: the gradient of the state after the chunk, which becomes that of the state before it.
  void head_backward(const SsdBackwardArgs& back, int64_t h, const C* state, C* dstate, C* db, C* dc,
                     Gradients totals) {
    const T* dy_in = pointer<T>(back.dy);
    const C skip = pointer<C>(args_.d)[head(h)];
    const C total = sums_[length_ - 1], decay = math::exp(total);
    std::vector<C> dy(x_.size()), dstep_x(x_.size(), C(0)), dsums(sums_.size(), C(0));
    for (int64_t i = 0; i < length_; ++i) {
      const T* row = dy_in + (begin_ + i) * back.dy.stride(0) + head(h) * channels_;
      for (int64_t p = 0; p < channels_; ++p) dy[at(i, channels_) + p] = C(row[p]);
    }
    // Inside the chunk: from token j to a later token i, both ways.
    for (int64_t i = 0; i < length_; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        const C passed = math::exp(sums_[i] - sums_[j]), cb = bc_[at(i, args_.chunk) + j];
        const C reached = steps_[j] * dot(&dy[at(i, channels_)], &x_[at(j, channels_)], channels_);
        add_scaled(&dstep_x[at(j, channels_)], passed * cb, &dy[at(i, channels_)], channels_);
        add_scaled(dc + i * states_, passed * reached, &b_[at(j, states_)], states_);
        add_scaled(db + j * states_, passed * reached, &c_[at(i, states_)], states_);
        dsums[i] += passed * cb * reached;
        dsums[j] -= passed * cb * reached;
      }
    // Through the state after the chunk.
    C carried = 0;
    for (int64_t k = 0; k < channels_ * states_; ++k) carried += state[k] * dstate[k];
    dsums[length_ - 1] += decay * carried;
    for (int64_t j = 0; j < length_; ++j) {
      const C left = math::exp(total - sums_[j]);
      C entered = 0;
      for (int64_t p = 0; p < channels_; ++p) {
        const C* drow = dstate + p * states_;
        const C put = left * dot(drow, &b_[at(j, states_)], states_);
        const C x = x_[at(j, channels_) + p] * steps_[j];
        dstep_x[at(j, channels_) + p] += put;
        entered += put * x;
        add_scaled(db + j * states_, left * x, drow, states_);
      }
      dsums[length_ - 1] += entered;
      dsums[j] -= entered;
    }
    // Out of the state before it.
    for (int64_t k = 0; k < channels_ * states_; ++k) dstate[k] *= decay;
    for (int64_t i = 0; i < length_; ++i) {
      const C grown = math::exp(sums_[i]);
      C read = 0;
      for (int64_t p = 0; p < channels_; ++p) {
        const C pull = grown * dy[at(i, channels_) + p];
        read += pull * dot(state + p * states_, &c_[at(i, states_)], states_);
        add_scaled(dc + i * states_, pull, state + p * states_, states_);
        add_scaled(dstate + p * states_, pull, &c_[at(i, states_)], states_);
      }
      dsums[i] += read;
    }
    write_gradients(back, h, dy, dstep_x, dsums, skip, totals);
  }

  void write_gradients(const SsdBackwardArgs& back, int64_t h, const std::vector<C>& dy,
                       const std::vector<C>& dstep_x, const std::vector<C>& dsums, C skip, Gradients totals) {
    T *dxbc = pointer<T>(back.dxbc), *ddt = pointer<T>(back.ddt);
    C later = 0;
    for (int64_t i = length_ - 1; i >= 0; --i) {
      later += dsums[i];
      const C *x = &x_[at(i, channels_)], *g = &dstep_x[at(i, channels_)], *up = &dy[at(i, channels_)];
      const C draw = (rate_ * later + dot(x, g, channels_)) * slopes_[i];
      ddt[(begin_ + i) * args_.heads + head(h)] = T(draw);
      totals.ddt_bias[head(h)] += draw;
      totals.da_log[head(h)] += rate_ * steps_[i] * later;
      totals.dd[head(h)] += dot(x, up, channels_);
      T* out = dxbc + (begin_ + i) * width() + head(h) * channels_;
      for (int64_t p = 0; p < channels_; ++p) out[p] = T(steps_[i] * g[p] + skip * up[p]);
    }
  }

  const SsdArgs& args_;
  int64_t group_, heads_, channels_, states_, begin_ = 0, length_ = 0;
  std::vector<C> b_, c_, bc_, x_, steps_, slopes_, sums_, state_;
  C rate_ = 0;
};

template <class T>
void forward(const KernelContext& ctx, const SsdArgs& args) {
  const auto spans = token_spans(args.rows, args.xbc.size(0));
  for_each_scan(ctx, spans, args.groups, args.chunk,
                [&](int64_t sequence, const TokenSpan& span, int64_t first_slot, int64_t group) {
                  GroupScan<T>(args, group).forward(sequence, span, first_slot);
                });
}

template <class T>
void backward(const KernelContext& ctx, const SsdBackwardArgs& args) {
  using C = Compute<T>;
  const SsdArgs& forward = args.forward;
  const int64_t heads = forward.heads;
  const auto spans = token_spans(forward.rows, forward.xbc.size(0));
  std::vector<C> sums(spans.size() * static_cast<size_t>(3 * heads), C(0));
  for_each_scan(
      ctx, spans, forward.groups, forward.chunk,
      [&](int64_t sequence, const TokenSpan& span, int64_t first_slot, int64_t group) {
        C* own = sums.data() + 3 * sequence * heads;
        GroupScan<T>(forward, group).backward(args, span, first_slot, {own, own + heads, own + 2 * heads});
      });
  C* targets[] = {pointer<C>(args.da_log), pointer<C>(args.dd), pointer<C>(args.ddt_bias)};
  sum_sequences<C>(sums, heads, targets);
}

void ssd(const KernelContext& ctx, const SsdArgs& args) {
  dispatch_float("ssd", args.xbc.dtype(), [&]<class T>(Type<T>) { forward<T>(ctx, args); });
}
void ssd_backward(const KernelContext& ctx, const SsdBackwardArgs& args) {
  dispatch_float("ssd_backward", args.forward.xbc.dtype(), [&]<class T>(Type<T>) { backward<T>(ctx, args); });
}

}  // namespace

void add_ssd_kernels(KernelTable& table) {
  table.ssd = ssd;
  table.ssd_backward = ssd_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
