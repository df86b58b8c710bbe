#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

// An orthonormal basis on the host in fp64: vector j is the elements [j · n, (j + 1) · n) of `vectors`.
struct Eigenbasis {
  std::vector<double> values;  // descending
  std::vector<double> vectors;
  std::vector<int64_t> order;  // of which vector of the basis before it vector j is the successor
};

// Eigenvalues and eigenvectors of a symmetric, positive semi-definite `matrix`, n × n. What is smaller than
// n · `epsilon` times the largest eigenvalue counts as 0, and its vectors complete the others' in one way
// that depends on the space alone, so that rounding does not choose them.
Eigenbasis symmetric_eigenbasis(const std::vector<double>& matrix, int64_t n, double epsilon);

// One step of orthogonal iteration: the columns of matrix · basis, made orthonormal one after the other,
// sorted by vᵀ · matrix · v. Columns that vanish are completed as above.
Eigenbasis refined_eigenbasis(const std::vector<double>& matrix, const std::vector<double>& basis, int64_t n,
                              double epsilon);

}  // namespace megatron
