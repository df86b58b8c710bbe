#pragma once

#include <algorithm>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/sequences.h"

namespace megatron::cpu::MEGATRON_ISA {

// Where the state of a value head is, which is [key channels, value channels].
template <class Args>
int64_t state_at(const Args& args, int64_t slot, int64_t h) {
  return (slot * args.value_heads + h) * args.key_channels * args.value_channels;
}

// The value heads that share a key head along one sequence: advance(t, h, state) leaves the state after a
// token, and its query in q. Outputs are stateᵀ · q. States before chunks are kept where that is asked for.
template <class T, class Args, class Advance>
void scan_states(const Args& args, int64_t key_head, int64_t sequence, const TokenSpan& span,
                 int64_t first_slot, const std::vector<Compute<T>>& q, const Advance& advance) {
  using C = Compute<T>;
  const int64_t keys = args.key_channels, values = args.value_channels, count = keys * values,
                share = args.value_heads / args.key_heads;
  C* carried = optional_pointer<C>(args.state);
  C* before = optional_pointer<C>(args.before);
  std::vector<C> state(static_cast<size_t>(count)), out(static_cast<size_t>(values));
  for (int64_t h = key_head * share; h < (key_head + 1) * share; ++h) {
    C* own = carried ? carried + state_at(args, sequence, h) : nullptr;
    if (own)
      std::copy_n(own, count, state.begin());
    else
      std::fill(state.begin(), state.end(), C(0));
    for (int64_t t = span.begin; t < span.end; ++t) {
      const int64_t in_sequence = t - span.begin;
      if (before && in_sequence % args.chunk == 0)
        std::copy_n(state.begin(), count, before + state_at(args, first_slot + in_sequence / args.chunk, h));
      advance(t, h, state.data());
      std::fill(out.begin(), out.end(), C(0));
      for (int64_t i = 0; i < keys; ++i)
        for (int64_t c = 0; c < values; ++c)
          out[static_cast<size_t>(c)] +=
              state[static_cast<size_t>(i * values + c)] * q[static_cast<size_t>(i)];
      T* row = pointer<T>(args.o) + (t * args.value_heads + h) * values;
      for (int64_t c = 0; c < values; ++c) row[c] = T(out[static_cast<size_t>(c)]);
    }
    if (own) std::copy_n(state.begin(), count, own);
  }
}

// Goes back along the sequence: step_back(t, h, state, dstate) turns the gradient of the state after a token
// into that of the state before it. `state` is the one before it; the one after it follows in memory, also
// behind a chunk's last token where `keeps_last`. advance() makes the states inside a chunk again.
template <class T, class Args, class Advance, class StepBack>
void scan_states_back(const Args& args, int64_t key_head, const TokenSpan& span, int64_t first_slot,
                      bool keeps_last, const Advance& advance, const StepBack& step_back) {
  using C = Compute<T>;
  const int64_t count = args.key_channels * args.value_channels, share = args.value_heads / args.key_heads,
                chunks = (span.end - span.begin + args.chunk - 1) / args.chunk;
  const C* before = pointer<C>(args.before);
  std::vector<C> states(static_cast<size_t>((args.chunk + keeps_last) * count)),
      dstate(static_cast<size_t>(count));
  for (int64_t h = key_head * share; h < (key_head + 1) * share; ++h) {
    std::fill(dstate.begin(), dstate.end(), C(0));
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t begin = span.begin + chunk * args.chunk, end = std::min(span.end, begin + args.chunk),
                    last = keeps_last ? end : end - 1;
      std::copy_n(before + state_at(args, first_slot + chunk, h), count, states.data());
      for (int64_t t = begin; t < last; ++t) {
        C* next = states.data() + (t + 1 - begin) * count;
        std::copy_n(next - count, count, next);
        advance(t, h, next);
      }
      for (int64_t t = end - 1; t >= begin; --t)
        step_back(t, h, states.data() + (t - begin) * count, dstate.data());
    }
  }
}

}  // namespace megatron::cpu::MEGATRON_ISA
