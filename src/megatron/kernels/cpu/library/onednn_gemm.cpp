#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "megatron/base/error.h"
#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/library/layout.h"

namespace megatron::cpu {
namespace {

// What is set up once for the process, and never changed.
struct Library {
  dnnl::engine engine;
  bool bf16;  // in hardware; without, our own GEMM is faster than oneDNN's emulation
};

const Library& library() {
  static const Library library = [] {
    auto bf16_isa = dnnl::cpu_isa::avx512_core_bf16;
    // The bf16 GEMM of version 2 dies on machines with AMX.
    if (DNNL_VERSION_MAJOR < 3) dnnl::set_max_cpu_isa(bf16_isa);
    auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), wanted = static_cast<unsigned>(bf16_isa);
    return Library{dnnl::engine(dnnl::engine::kind::cpu, 0), (has & wanted) == wanted};
  }();
  return library;
}

dnnl::memory::desc describe(DType dtype, int64_t rows, int64_t columns, const Layout& layout) {
  auto type = dtype == DType::BF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  dnnl::memory::dims strides = {layout.leading, 1};
  if (layout.transposed) std::swap(strides[0], strides[1]);
  return {{rows, columns}, type, strides};
}

void run_fp32(const GemmProblem& p, const Layouts& layouts) {
  auto status = dnnl_sgemm(layouts.a.transposed ? 'T' : 'N', layouts.b.transposed ? 'T' : 'N', p.m, p.n, p.k,
                           static_cast<float>(p.alpha), static_cast<const float*>(p.a), layouts.a.leading,
                           static_cast<const float*>(p.b), layouts.b.leading, static_cast<float>(p.beta),
                           static_cast<float*>(p.c), layouts.c.leading);
  require(status == dnnl_success, "gemm: oneDNN refused [{}, {}] · [{}, {}] with status {}", p.m, p.k, p.k,
          p.n, static_cast<int>(status));
  add_bias(p);
}

// Primitives come from oneDNN's own cache, which knows them by everything that describes them: two
// microseconds.
void run_bf16(const GemmProblem& p, const Layouts& layouts) {
  const dnnl::engine& engine = library().engine;
  auto a = describe(p.in, p.m, p.k, layouts.a), b = describe(p.in, p.k, p.n, layouts.b);
  auto c = describe(p.out, p.m, p.n, layouts.c);
  dnnl::memory::desc bias;
  if (p.bias) bias = describe(p.in, 1, p.n, {p.n, false});
  dnnl::primitive_attr attributes;
  if (p.beta != 0) {
    dnnl::post_ops post;
    post.append_sum(static_cast<float>(p.beta));
    attributes.set_post_ops(post);
  }
#if DNNL_VERSION_MAJOR < 3
  auto operation = p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  dnnl::matmul::primitive_desc description(operation, attributes, engine);
#else
  dnnl::matmul::primitive_desc description =
      p.bias ? dnnl::matmul::primitive_desc(engine, a, b, bias, c, attributes)
             : dnnl::matmul::primitive_desc(engine, a, b, c, attributes);
#endif
  auto at = [&](const dnnl::memory::desc& d, const void* data) {
    return dnnl::memory(d, engine, const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, at(a, p.a)}, {DNNL_ARG_WEIGHTS, at(b, p.b)}, {DNNL_ARG_DST, at(c, p.c)}};
  if (p.bias) arguments.emplace(DNNL_ARG_BIAS, at(bias, p.bias));
  dnnl::stream stream(engine);
  dnnl::matmul(description).execute(stream, arguments);
  stream.wait();
}

}  // namespace

bool library_supports(const GemmProblem& p) {
  if (p.k == 0 || !Layouts(p).fit()) return false;
  if (p.in == DType::F32 && p.out == DType::F32) return true;
  bool bf16 = p.in == DType::BF16 && (p.out == DType::BF16 || p.out == DType::F32) && p.alpha == 1;
  return bf16 && library().bf16;
}

bool library_sums_by_shape() { return false; }

void library_run(const GemmProblem& p, int threads) {
  omp_set_num_threads(threads);  // of those that this thread may start
  library();
  if (p.in == DType::F32)
    run_fp32(p, Layouts(p));
  else
    run_bf16(p, Layouts(p));
}

}  // namespace megatron::cpu
