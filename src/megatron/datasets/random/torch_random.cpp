#include "megatron/datasets/random/torch_random.h"

#include <numeric>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/datasets/random/mt19937.h"

namespace megatron {

std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed) {
  constexpr int64_t kLimit = 0xffffffff / 20;
  require(n >= 0 && n < kLimit, "randperm: n is {}, expected 0 to {}; use fewer samples per epoch", n,
          kLimit - 1);
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), int64_t{0});
  Mt19937 bits(static_cast<uint32_t>(seed));
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    std::swap(values[i], values[i + bits.next32() % (values.size() - i)]);
  }
  return values;
}

}  // namespace megatron
