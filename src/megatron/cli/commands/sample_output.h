#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/checkpoint/safetensors.h"
#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/index/index_array.h"

namespace megatron {

template <class T>
Tensor tensor_of(std::vector<T> values, Shape shape) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return Tensor::wrap(owner->data(), std::move(shape), dtype_of<T>(), kCpu, owner);
}

// Tensors by name. Rows of samples are gathered field by field.
class SampleOutput {
 public:
  bool integer_masks = false;  // loss masks are int32, not fp32

  template <class T, class Values>
  void add_row(const std::string& name, const Values& values) {
    auto& rows = std::get<std::map<std::string, Rows<T>>>(fields_)[name];
    rows.values.insert(rows.values.end(), values.begin(), values.end());
    ++rows.count;
  }
  template <class T>
  void add_index(const std::string& name, const IndexArray& array) {
    std::vector<T> values;
    values.reserve(static_cast<size_t>(array.size()));
    for (int64_t i = 0; i < array.size(); ++i) values.push_back(static_cast<T>(array[i]));
    Shape shape{array.rows()};
    if (array.columns() > 1) shape = {array.rows(), array.columns()};
    tensors_.emplace_back(name, tensor_of(std::move(values), shape));
  }
  void add_range(const std::string& name, IndexRange range) {
    std::vector<int32_t> values;
    for (int64_t i = range.begin; i < range.end; ++i) values.push_back(static_cast<int32_t>(i));
    tensors_.emplace_back(name, tensor_of(std::move(values), {range.size()}));
  }
  void add_ids(const std::string& name, std::vector<int32_t> ids) {
    const Shape shape{static_cast<int64_t>(ids.size())};
    tensors_.emplace_back(name, tensor_of(std::move(ids), shape));
  }
  void write(const std::string& path) {
    std::apply([&](auto&... fields) { (finish(fields), ...); }, fields_);
    write_safetensors(path, tensors_);
  }

 private:
  template <class T>
  struct Rows {
    std::vector<T> values;
    int64_t count = 0;
  };
  template <class T>
  void finish(std::map<std::string, Rows<T>>& fields) {
    for (auto& [name, rows] : fields) {
      const int64_t columns = static_cast<int64_t>(rows.values.size()) / rows.count;
      const bool scalar =
          name.ends_with(".is_random") || name.ends_with(".truncated") || name.ends_with(".max_seqlen");
      Shape shape{rows.count, columns};
      if (scalar) shape = {rows.count};
      if (name.ends_with(".attention_mask")) {
        int64_t side = 0;
        while (side * side < columns) ++side;
        shape = {rows.count, 1, side, side};
      }
      tensors_.emplace_back(name, tensor_of(std::move(rows.values), shape));
    }
  }

  std::tuple<std::map<std::string, Rows<int32_t>>, std::map<std::string, Rows<float>>,
             std::map<std::string, Rows<uint8_t>>>
      fields_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

}  // namespace megatron
