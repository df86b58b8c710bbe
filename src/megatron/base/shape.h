#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace megatron {

// Up to six integers held inline: a tensor's sizes or its strides.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> values) : Shape(std::span(values.begin(), values.size())) {}
  explicit Shape(std::span<const int64_t> values);

  int rank() const { return rank_; }
  int64_t operator[](int dim) const { return values_[dim < 0 ? dim + rank_ : dim]; }
  int64_t& operator[](int dim) { return values_[dim < 0 ? dim + rank_ : dim]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= values_[i];
    return n;
  }
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + rank_; }

  void push_back(int64_t value);
  void erase(int dim);
  Shape row_major_strides() const;
  std::string str() const;  // "[2, 3, 4]"

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }

 private:
  int rank_ = 0;
  int64_t values_[kMaxRank] = {};
};

}  // namespace megatron

template <>
struct fmt::formatter<megatron::Shape> {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(const megatron::Shape& shape, fmt::format_context& ctx) const {
    return fmt::format_to(ctx.out(), "{}", shape.str());
  }
};
