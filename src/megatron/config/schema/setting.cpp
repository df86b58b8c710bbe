#include "megatron/config/schema/setting.h"

#include <fmt/core.h>

#include <algorithm>

#include "megatron/config/schema/value.h"

namespace megatron {

bool Limit::covers(const Json& value) const {
  if (values.empty()) return true;
  const auto is_one = [&](const Json& item) {
    return std::find(values.begin(), values.end(), show_value(item)) != values.end();
  };
  if (!value.is_array()) return is_one(value);
  return std::any_of(value.as_array().begin(), value.as_array().end(), is_one);
}

Setting& Setting::dtype(std::initializer_list<std::string_view> names) {
  is_dtype = true;
  return one_of(names);
}

bool Setting::is_list() const {
  return type == ValueType::integers || type == ValueType::reals || type == ValueType::texts;
}

Setting Setting::without_range() const {
  Setting copy = *this;
  copy.lowest = -std::numeric_limits<double>::infinity();
  copy.highest = std::numeric_limits<double>::infinity();
  copy.lowest_excluded = false;
  return copy;
}

Setting& Setting::flag(std::string_view name) {
  flags = {std::string(name)};
  if (is_boolean())
    off_flags = {fmt::format("--no-{}", name.substr(2)), fmt::format("--disable-{}", name.substr(2))};
  return *this;
}

Setting& Setting::off_flag(std::string_view name) {
  if (std::find(off_flags.begin(), off_flags.end(), name) == off_flags.end())
    off_flags.insert(off_flags.begin(), std::string(name));
  return *this;
}

Setting& Schema::add(std::string_view key, std::string_view help, ValueType type) {
  Setting& row = rows_.emplace_back();
  row.section = section_;
  row.key = key;
  row.help = help;
  row.type = type;
  std::string dashed(key);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  row.flag("--" + dashed);
  return row;
}

}  // namespace megatron
