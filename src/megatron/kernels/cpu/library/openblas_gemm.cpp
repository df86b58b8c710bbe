#include <cblas.h>

#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/library/layout.h"

namespace megatron::cpu {

bool library_supports(const GemmProblem& p) {
  return p.k > 0 && p.in == DType::F32 && p.out == DType::F32 && Layouts(p).fit();
}

bool library_sums_by_shape() { return true; }  // small GEMMs have kernels of their own

void library_run(const GemmProblem& p, int threads) {
  openblas_set_num_threads(threads);
  Layouts layouts(p);
  cblas_sgemm(CblasRowMajor, layouts.a.transposed ? CblasTrans : CblasNoTrans,
              layouts.b.transposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), static_cast<float>(p.alpha),
              static_cast<const float*>(p.a), static_cast<blasint>(layouts.a.leading),
              static_cast<const float*>(p.b), static_cast<blasint>(layouts.b.leading),
              static_cast<float>(p.beta), static_cast<float*>(p.c), static_cast<blasint>(layouts.c.leading));
  add_bias(p);
}

}  // namespace megatron::cpu
