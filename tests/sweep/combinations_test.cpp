// Every three settings that can go together stand in some layout, and all those layouts train like one rank;
// and the whole product of layouts, as far as the time goes that MEGATRON_SWEEP_MINUTES gives it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "parity/design_cases.h"

namespace megatron::testing {
namespace {

TEST(Sweep, EveryThreeSettings) {
  const CoveringDesign design = layout_design();
  const std::vector<DesignRow> rows = design.rows(3);
  expect_covered(design, rows, 3);
  check_rows(design, rows, 2);
}

// Rows of the product in an order that jumps about, so that any beginning of it is a fair sample.
class Product {
 public:
  explicit Product(const CoveringDesign& design) : design_(design) {
    for (const Factor& factor : design.factors()) size_ *= factor.levels.size();
  }
  uint64_t size() const { return size_; }
  DesignRow row(uint64_t number) const {
    constexpr uint64_t stride = 2654435761;  // prime, and no factor of a size: every row comes once
    uint64_t rest = number * stride % size_;
    DesignRow row;
    for (const Factor& factor : design_.factors()) {
      row.push_back(static_cast<int>(rest % factor.levels.size()));
      rest /= factor.levels.size();
    }
    return row;
  }

 private:
  const CoveringDesign& design_;
  uint64_t size_ = 1;
};

TEST(Sweep, TheProduct) {
  const char* given = std::getenv("MEGATRON_SWEEP_MINUTES");
  const double minutes = given ? std::atof(given) : 20;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(minutes * 60);
  const CoveringDesign design = layout_design();
  const Product product(design);
  uint64_t number = 0, possible = 0;
  constexpr size_t kAtOnce = 50;  // their references are shared
  std::vector<DesignRow> rows;
  for (; number < product.size() && std::chrono::steady_clock::now() < end; ++number) {
    DesignRow row = product.row(number);
    if (!design.possible(row)) continue;
    rows.push_back(std::move(row));
    ++possible;
    if (rows.size() < kAtOnce) continue;
    check_rows(design, rows, 2);
    rows.clear();
  }
  check_rows(design, rows, 2);
  fmt::print("{} layouts, all that there are among {} of {} combinations of settings\n", possible, number,
             product.size());
  EXPECT_GT(possible, 0u);
}

}  // namespace
}  // namespace megatron::testing
