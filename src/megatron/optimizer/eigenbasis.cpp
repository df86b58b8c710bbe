#include "megatron/optimizer/eigenbasis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace megatron {
namespace {

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void subtract(double* a, double factor, const double* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] -= factor * b[i];
}

// Takes away from `vector` what lies in the given rows of `basis`, twice, because the first pass leaves
// rounding; returns the norm of the rest.
double orthogonalize_against(double* vector, const double* basis, const std::vector<int64_t>& rows,
                             int64_t n) {
  for (int pass = 0; pass < 2; ++pass)
    for (const int64_t row : rows) subtract(vector, dot(vector, basis + row * n, n), basis + row * n, n);
  return std::sqrt(dot(vector, vector, n));
}

void scale(double* vector, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) vector[i] *= factor;
}

// Fills the rows `missing` from unit vectors: each time the first that is at least half as far from the rows
// `known` as the farthest.
void complete(std::vector<double>& basis, std::vector<int64_t> known, const std::vector<int64_t>& missing,
              int64_t n) {
  std::vector<double> distance(n, 1.0);
  for (const int64_t row : known)
    for (int64_t i = 0; i < n; ++i) distance[i] -= basis[row * n + i] * basis[row * n + i];
  for (const int64_t row : missing) {
    const double farthest = *std::max_element(distance.begin(), distance.end());
    int64_t from = 0;
    while (from + 1 < n && distance[from] < farthest / 2) ++from;
    double* vector = basis.data() + row * n;
    std::fill(vector, vector + n, 0.0);
    vector[from] = 1;
    scale(vector, 1 / orthogonalize_against(vector, basis.data(), known, n), n);
    known.push_back(row);
    for (int64_t i = 0; i < n; ++i) distance[i] -= vector[i] * vector[i];
  }
}

// Householder's reflections: matrix = Q · T · Qᵀ. `transposed` becomes Qᵀ.
void tridiagonalize(std::vector<double> a, int64_t n, std::vector<double>& diagonal,
                    std::vector<double>& beside, std::vector<double>& transposed) {
  std::vector<double> v(n), p(n);
  for (int64_t k = 0; k + 2 < n; ++k) {
    const int64_t first = k + 1;
    double norm = 0;
    for (int64_t i = first; i < n; ++i) norm += a[i * n + k] * a[i * n + k];
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    std::fill(v.begin(), v.end(), 0.0);
    for (int64_t i = first; i < n; ++i) v[i] = a[i * n + k];
    v[first] += std::copysign(norm, v[first]);
    const double beta = 2 / dot(v.data(), v.data(), n);
    for (int64_t i = 0; i < n; ++i) p[i] = beta * dot(a.data() + i * n, v.data(), n);
    const double half = beta / 2 * dot(v.data(), p.data(), n);
    subtract(p.data(), half, v.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      subtract(a.data() + i * n, v[i], p.data(), n);
      subtract(a.data() + i * n, p[i], v.data(), n);
    }
    // Qᵀ ← (I − β v vᵀ) · Qᵀ.
    std::fill(p.begin(), p.end(), 0.0);
    for (int64_t i = first; i < n; ++i) subtract(p.data(), -v[i], transposed.data() + i * n, n);
    for (int64_t i = first; i < n; ++i) subtract(transposed.data() + i * n, beta * v[i], p.data(), n);
  }
  for (int64_t i = 0; i < n; ++i) diagonal[i] = a[i * n + i];
  for (int64_t i = 0; i + 1 < n; ++i) beside[i] = a[(i + 1) * n + i];
}

// One implicit QR step with Wilkinson's shift on rows [begin, end] of the tridiagonal matrix; the rotations
// turn the rows of `vectors` too.
void implicit_step(std::vector<double>& d, std::vector<double>& e, std::vector<double>& vectors,
                   int64_t begin, int64_t end, int64_t n) {
  const double delta = (d[end - 1] - d[end]) / 2, last = e[end - 1];
  const double shift = d[end] - last * last / (delta + std::copysign(std::hypot(delta, last), delta));
  double x = d[begin] - shift, z = e[begin];
  for (int64_t k = begin; k < end; ++k) {
    const double r = std::hypot(x, z), c = r > 0 ? x / r : 1, s = r > 0 ? z / r : 0;
    if (k > begin) e[k - 1] = r;
    const double a = d[k], b = e[k], g = d[k + 1];
    d[k] = c * c * a + 2 * c * s * b + s * s * g;
    d[k + 1] = s * s * a - 2 * c * s * b + c * c * g;
    e[k] = c * s * (g - a) + (c * c - s * s) * b;
    x = e[k];
    if (k + 1 < end) {
      z = s * e[k + 1];
      e[k + 1] *= c;
    }
    double *low = vectors.data() + k * n, *high = low + n;
    for (int64_t i = 0; i < n; ++i) {
      const double was = low[i];
      low[i] = c * was + s * high[i];
      high[i] = c * high[i] - s * was;
    }
  }
}

void diagonalize(std::vector<double>& d, std::vector<double>& e, std::vector<double>& vectors, int64_t n) {
  const auto small = [&](int64_t k) {
    return std::abs(e[k]) <= std::numeric_limits<double>::epsilon() * (std::abs(d[k]) + std::abs(d[k + 1]));
  };
  int64_t end = n - 1;
  for (int64_t left = 50 * n; end > 0 && left > 0; --left) {
    if (small(end - 1)) {
      e[--end] = 0;
      continue;
    }
    int64_t begin = end - 1;
    while (begin > 0 && !small(begin - 1)) --begin;
    implicit_step(d, e, vectors, begin, end, n);
  }
}

// Vectors in descending order of their values; those that were equal keep theirs.
Eigenbasis sorted(const std::vector<double>& values, const std::vector<double>& vectors, int64_t n) {
  Eigenbasis result{.values = {}, .vectors = {}, .order = std::vector<int64_t>(n)};
  std::iota(result.order.begin(), result.order.end(), 0);
  std::stable_sort(result.order.begin(), result.order.end(),
                   [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  for (const int64_t from : result.order) {
    result.values.push_back(values[from]);
    result.vectors.insert(result.vectors.end(), vectors.begin() + from * n, vectors.begin() + (from + 1) * n);
  }
  return result;
}

}  // namespace

Eigenbasis symmetric_eigenbasis(const std::vector<double>& matrix, int64_t n, double epsilon) {
  std::vector<double> diagonal(n), beside(n), vectors(n * n);
  for (int64_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  tridiagonalize(matrix, n, diagonal, beside, vectors);
  diagonalize(diagonal, beside, vectors, n);
  Eigenbasis result = sorted(diagonal, vectors, n);
  const double smallest = epsilon * static_cast<double>(n) * std::max(result.values.front(), 0.0);
  std::vector<int64_t> known, missing;
  for (int64_t i = 0; i < n; ++i) {
    if (result.values[i] > smallest) {
      known.push_back(i);
      continue;
    }
    result.values[i] = 0;
    missing.push_back(i);
  }
  complete(result.vectors, known, missing, n);
  return result;
}

Eigenbasis refined_eigenbasis(const std::vector<double>& matrix, const std::vector<double>& basis, int64_t n,
                              double epsilon) {
  std::vector<double> vectors(n * n);
  double longest = 0;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) vectors[j * n + i] = dot(matrix.data() + i * n, basis.data() + j * n, n);
    longest = std::max(longest, std::sqrt(dot(vectors.data() + j * n, vectors.data() + j * n, n)));
  }
  const double smallest = epsilon * static_cast<double>(n) * longest;
  std::vector<int64_t> known, missing;
  for (int64_t j = 0; j < n; ++j) {
    double* vector = vectors.data() + j * n;
    const double norm = orthogonalize_against(vector, vectors.data(), known, n);
    if (!(norm > smallest)) {
      missing.push_back(j);
      continue;
    }
    scale(vector, 1 / norm, n);
    // A short rest is far from orthogonal once it is long again.
    scale(vector, 1 / orthogonalize_against(vector, vectors.data(), known, n), n);
    known.push_back(j);
  }
  complete(vectors, known, missing, n);
  std::vector<double> values(n), image(n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) image[i] = dot(matrix.data() + i * n, vectors.data() + j * n, n);
    values[j] = dot(image.data(), vectors.data() + j * n, n);
  }
  for (const int64_t j : missing) values[j] = 0;
  return sorted(values, vectors, n);
}

}  // namespace megatron
