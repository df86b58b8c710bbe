#pragma once

#include <algorithm>
#include <cstdint>

namespace megatron::cpu::MEGATRON_ISA {

// Sums and maxima over i in [0, n) of term(i), kept in sixteen lanes that are joined in a fixed order: fast
// as vector code, and the same bits on every instruction set.
inline constexpr int kLanes = 16;

template <class C, class Join>
inline C join_lanes(C (&lanes)[kLanes], Join join) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = join(lanes[l], lanes[l + width]);
  return lanes[0];
}

template <class C, class Term>
inline C sum_over(int64_t n, Term term) {
  C lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  for (int l = 0; i < n; ++i, ++l) lanes[l] += term(i);
  return join_lanes(lanes, [](C a, C b) { return a + b; });
}

// The better of all terms by `better(a, b)`; n must not be zero.
template <class C, class Term, class Better>
inline C best_over(int64_t n, Term term, Better better) {
  C lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = term(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] = better(lanes[l], C(term(i + l)));
  for (int l = 0; i < n; ++i, ++l) lanes[l] = better(lanes[l], C(term(i)));
  return join_lanes(lanes, better);
}

template <class C, class Term>
inline C max_over(int64_t n, Term term) {
  return best_over<C>(n, term, [](C a, C b) { return a > b ? a : b; });
}

}  // namespace megatron::cpu::MEGATRON_ISA
