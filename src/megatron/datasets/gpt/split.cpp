#include "megatron/datasets/gpt/split.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/datasets/random/numpy_math.h"

namespace megatron {
namespace {

std::array<double, 4> book_ends(const SplitVector& vector) {
  std::array<double, 4> ends{};
  for (size_t i = 0; i < 3; ++i) ends[i + 1] = ends[i] + vector[i];
  return ends;
}

}  // namespace

SplitVector parse_split(std::string_view text) {
  auto refuse = [&](std::string_view problem) {
    throw ConfigError(
        fmt::format("--split: '{}' {}; give up to three numbers such as 969,30,1", text, problem));
  };
  std::vector<double> numbers;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find_first_not_of(".0123456789", i), text.size());
    if (end == i) {
      ++i;
      continue;
    }
    const std::string word(text.substr(i, end - i));
    char* last = nullptr;
    numbers.push_back(std::strtod(word.c_str(), &last));
    if (last != word.c_str() + word.size()) refuse("holds no number at '" + word + "'");
    i = end;
  }
  if (numbers.size() > 3) refuse("has more than three numbers");
  numbers.resize(3, 0.0);
  const std::vector<double> shares = normalize_weights(numbers);
  if (!(shares[0] + shares[1] + shares[2] > 0)) refuse("gives no split any data");
  return {shares[0], shares[1], shares[2]};
}

SplitMatrix split_matrix(const SplitVector& vector) {
  const std::array<double, 4> ends = book_ends(vector);
  SplitMatrix matrix;
  for (size_t i = 0; i < 3; ++i)
    if (ends[i + 1] > ends[i]) matrix[i] = {ends[i], ends[i + 1]};
  return matrix;
}

SplitMatrix split_matrix(const SplitVector& a, const SplitVector& b) {
  const std::array<double, 4> first = book_ends(a), second = book_ends(b);
  SplitMatrix matrix;
  for (size_t i = 0; i < 3; ++i) {
    const double begin = std::max(first[i], second[i]), end = std::min(first[i + 1], second[i + 1]);
    if (end > begin) matrix[i] = {begin, end};
  }
  return matrix;
}

Json split_matrix_json(const SplitMatrix& matrix) {
  Json json = Json::array();
  for (size_t i = 0; i < 3; ++i) {
    if (!matrix[i]) {
      json.push_back(nullptr);
      continue;
    }
    // The first book-end of all is Python's integer 0.
    Json ends = Json::array();
    ends.push_back(i == 0 ? Json(0) : Json((*matrix[i])[0]));
    ends.push_back((*matrix[i])[1]);
    json.push_back(std::move(ends));
  }
  return json;
}

IndexRange split_range(const std::array<double, 2>& ends, int64_t count) {
  auto at = [&](double end) {
    return static_cast<int64_t>(std::nearbyint(end * static_cast<double>(count)));
  };
  return {at(ends[0]), at(ends[1])};
}

}  // namespace megatron
