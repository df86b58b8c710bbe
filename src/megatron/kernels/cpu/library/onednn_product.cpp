#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "megatron/base/error.h"
#include "megatron/kernels/cpu/product.h"

namespace megatron::cpu {
namespace {

// How a matrix lies in memory: its leading dimension, and whether it is the transpose that is row-major. Zero
// where neither is so.
struct Layout {
  int64_t leading = 0;
  bool transposed = false;
};

Layout layout_of(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if ((column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1))
    return {rows == 1 ? columns : row_stride, false};
  if ((row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1))
    return {columns == 1 ? rows : column_stride, true};
  return {};
}

}  // namespace

bool library_supports(const Product& p) {
  if (p.in != DType::F32 || p.out != DType::F32 || p.k == 0) return false;
  Layout c = layout_of(p.m, p.n, p.c_row, p.c_column);
  return layout_of(p.m, p.k, p.a_row, p.a_column).leading &&
         layout_of(p.k, p.n, p.b_row, p.b_column).leading && c.leading && !c.transposed;
}

void library_run(const Product& p, int threads) {
  omp_set_num_threads(threads);  // of those that this thread may start
  Layout a = layout_of(p.m, p.k, p.a_row, p.a_column), b = layout_of(p.k, p.n, p.b_row, p.b_column);
  Layout c = layout_of(p.m, p.n, p.c_row, p.c_column);
  auto status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', p.m, p.n, p.k,
                           static_cast<float>(p.alpha), static_cast<const float*>(p.a), a.leading,
                           static_cast<const float*>(p.b), b.leading, static_cast<float>(p.beta),
                           static_cast<float*>(p.c), c.leading);
  require(status == dnnl_success, "gemm: oneDNN refused [{}, {}] · [{}, {}] with status {}", p.m, p.k, p.k,
          p.n, static_cast<int>(status));
  if (!p.bias) return;
  const float* bias = static_cast<const float*>(p.bias);
  for (int64_t i = 0; i < p.m; ++i) {
    float* row = static_cast<float*>(p.c) + i * c.leading;
    for (int64_t j = 0; j < p.n; ++j) row[j] += bias[j];
  }
}

}  // namespace megatron::cpu
