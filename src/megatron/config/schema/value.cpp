#include "megatron/config/schema/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "megatron/base/nearest.h"

namespace megatron {
namespace {

template <class T>
T& at(const Setting& setting, void* object) {
  return *static_cast<T*>(setting.address(object));
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

ValidationError wrong_type(const Setting& setting, const Json& value) {
  if (value.is_string() && value.as_string().empty())
    return {"the value is empty", "give " + describe_values(setting)};
  return {value.is_string() ? "this is text" : fmt::format("this is {}", value.type_name()),
          "give " + describe_values(setting)};
}

std::string join_choices(const Setting& setting) {
  std::string text;
  for (size_t i = 0; i < setting.choices.size(); ++i) {
    if (i > 0) text += i + 1 == setting.choices.size() ? " or " : ", ";
    text += setting.choices[i];
  }
  return text;
}

// Python's and PyTorch's names for number formats.
std::string dtype_name(std::string_view given) {
  std::string name = lower(given);
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "bfloat16") return "bf16";
  if (name == "float16" || name == "half") return "fp16";
  if (name == "float32" || name == "float") return "fp32";
  if (name == "float64" || name == "double") return "fp64";
  if (name == "uint8" || name.starts_with("float8")) return "fp8";
  return name;
}

// The one of the choices that `text` names, in the schema's own spelling.
ValidationError to_choice(const Setting& setting, const std::string& text, size_t& index) {
  const std::string wanted = setting.is_dtype ? dtype_name(text) : lower(text);
  std::vector<std::string> names;
  for (size_t i = 0; i < setting.choices.size(); ++i) {
    if (lower(setting.choices[i]) == lower(wanted)) return index = i, ValidationError{};
    names.emplace_back(setting.choices[i]);
  }
  const std::vector<std::string> near = nearest(text, names, 1);
  return {"no such choice", near.empty() || names.size() <= 3 ? fmt::format("use {}", join_choices(setting))
                                                              : fmt::format("did you mean {}? There are {}",
                                                                            near[0], join_choices(setting))};
}

ValidationError to_text(const Setting& setting, const Json& value, std::string& result) {
  if (value.is_array() || value.is_object()) return wrong_type(setting, value);
  result = value.is_string() ? value.as_string() : show_value(value);
  if (setting.choices.empty()) return {};
  size_t index = 0;
  ValidationError error = to_choice(setting, result, index);
  if (!error) result = setting.choices[index];
  return error;
}

ValidationError check_range(const Setting& setting, double value) {
  const bool low = setting.lowest_excluded ? value <= setting.lowest : value < setting.lowest;
  if (!std::isnan(value) && !low && value <= setting.highest) return {};
  return {"out of range", "give " + describe_values(setting)};
}

ValidationError to_integer(const Setting& setting, const Json& value, int64_t& result) {
  const bool whole = value.is_int() || (value.is_double() && std::abs(value.as_double()) < 0x1p63 &&
                                        value.as_double() == std::trunc(value.as_double()));
  if (value.is_double() && !whole) return {"this is not a whole number", "give " + describe_values(setting)};
  if (!whole) return wrong_type(setting, value);
  result = value.as_int();
  return check_range(setting, static_cast<double>(result));
}

ValidationError to_real(const Setting& setting, const Json& value, double& result) {
  if (!value.is_number()) return wrong_type(setting, value);
  result = value.as_double();
  if (std::isinf(result)) return {"this is not finite", "give " + describe_values(setting)};
  return check_range(setting, result);
}

ValidationError to_boolean(const Setting& setting, const Json& value, bool& result) {
  if (value.is_bool()) return result = value.as_bool(), ValidationError{};
  if (!value.is_string()) return wrong_type(setting, value);
  const std::string text = lower(value.as_string());
  if (text != "true" && text != "false") return wrong_type(setting, value);
  return result = text == "true", ValidationError{};
}

template <class T, class Convert>
ValidationError to_list(const Setting& setting, const Json& value, std::vector<T>& result, Convert convert) {
  if (value.is_object()) return wrong_type(setting, value);
  const Json::Array single = {value};
  for (const Json& item : value.is_array() ? value.as_array() : single) {
    T element{};
    if (ValidationError error = convert(setting, item, element)) {
      if (value.is_array()) error.reason = fmt::format("{}: {}", show_value(item), error.reason);
      return error;
    }
    result.push_back(std::move(element));
  }
  if (setting.exact_count == 0 || result.empty() || result.size() == setting.exact_count) return {};
  return {fmt::format("{} values", result.size()), fmt::format("give {}", setting.exact_count)};
}

// A whole number, or a list of zeros and ones.
ValidationError check_pattern(const Json& value) {
  const ValidationError error = {"neither a number nor a list of zeros and ones",
                                 "give N, [0,1,1] or ([0]*1+[1]*26)"};
  if (value.is_int())
    return value.as_int() >= 1 ? ValidationError{} : ValidationError{"out of range", "give at least 1"};
  if (!value.is_array()) return error;
  for (const Json& item : value.as_array())
    if (!item.is_int() || (item.as_int() != 0 && item.as_int() != 1)) return error;
  return {};
}

// Converts to T and stores only what is right, so that a refused value leaves the default.
template <class T, class Convert>
ValidationError store(const Setting& setting, void* object, const Json& value, Convert convert) {
  T converted{};
  ValidationError error = convert(setting, value, converted);
  if (!error) at<T>(setting, object) = std::move(converted);
  return error;
}

template <class T, class Convert>
ValidationError store_optional(const Setting& setting, void* object, const Json& value, Convert convert) {
  T converted{};
  ValidationError error = convert(setting, value, converted);
  if (!error) at<std::optional<T>>(setting, object) = converted;
  return error;
}

template <class T>
Json read_list(const std::vector<T>& items) {
  Json result = Json::array();
  for (const T& item : items) result.push_back(Json(item));
  return result;
}

template <class T>
Json read_optional(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

ValidationError store_value(const Setting& setting, void* object, const Json& value, const void* defaults) {
  if (value.is_null()) {
    const Json fallback = read_value(setting, defaults);
    const bool none = setting.type == ValueType::choice && setting.choices.front() == "none";
    if (none) return setting.set_choice(object, 0), ValidationError{};
    if (setting.type == ValueType::json) return at<Json>(setting, object) = fallback, ValidationError{};
    // A number's "unset" default (0) lies outside its range.
    if (!fallback.is_null()) return store_value(setting.without_range(), object, fallback, defaults);
  }
  const auto integer = [](const Setting& s, const Json& v, int64_t& r) { return to_integer(s, v, r); };
  const auto real = [](const Setting& s, const Json& v, double& r) { return to_real(s, v, r); };
  const auto boolean = [](const Setting& s, const Json& v, bool& r) { return to_boolean(s, v, r); };
  const auto text = [](const Setting& s, const Json& v, std::string& r) { return to_text(s, v, r); };
  switch (setting.type) {
    case ValueType::boolean:
      return store<bool>(setting, object, value, boolean);
    case ValueType::integer:
      return store<int64_t>(setting, object, value, integer);
    case ValueType::real:
      return store<double>(setting, object, value, real);
    case ValueType::text:
      if (value.is_null()) return at<std::string>(setting, object).clear(), ValidationError{};
      return store<std::string>(setting, object, value, text);
    case ValueType::choice: {
      if (!value.is_string()) return wrong_type(setting, value);
      size_t index = 0;
      ValidationError error = to_choice(setting, value.as_string(), index);
      if (!error) setting.set_choice(object, static_cast<int>(index));
      return error;
    }
    case ValueType::optional_boolean:
      if (value.is_null()) return at<std::optional<bool>>(setting, object).reset(), ValidationError{};
      return store_optional<bool>(setting, object, value, boolean);
    case ValueType::optional_integer:
      if (value.is_null()) return at<std::optional<int64_t>>(setting, object).reset(), ValidationError{};
      return store_optional<int64_t>(setting, object, value, integer);
    case ValueType::optional_real:
      if (value.is_null() || (setting.infinity_is_none && value.is_double() && std::isinf(value.as_double())))
        return at<std::optional<double>>(setting, object).reset(), ValidationError{};
      return store_optional<double>(setting, object, value, real);
    case ValueType::integers:
      return store<std::vector<int64_t>>(
          setting, object, value,
          [&](const Setting& s, const Json& v, auto& r) { return to_list(s, v, r, integer); });
    case ValueType::reals:
      return store<std::vector<double>>(
          setting, object, value,
          [&](const Setting& s, const Json& v, auto& r) { return to_list(s, v, r, real); });
    case ValueType::texts:
      return store<std::vector<std::string>>(
          setting, object, value,
          [&](const Setting& s, const Json& v, auto& r) { return to_list(s, v, r, text); });
    case ValueType::json: {
      ValidationError error;
      if (setting.is_pattern) error = check_pattern(value);
      if (!setting.is_pattern && !value.is_object())
        error = {"this is " + std::string(value.type_name()), "give a mapping, such as {key: value}"};
      if (!error) at<Json>(setting, object) = value;
      return error;
    }
  }
  return {};
}

Json read_value(const Setting& setting, const void* object) {
  void* place = const_cast<void*>(object);  // only read
  switch (setting.type) {
    case ValueType::boolean:
      return at<bool>(setting, place);
    case ValueType::integer:
      return at<int64_t>(setting, place);
    case ValueType::real:
      return at<double>(setting, place);
    case ValueType::text: {
      const std::string& text = at<std::string>(setting, place);
      return text.empty() ? Json() : Json(text);
    }
    case ValueType::choice:
      return setting.choices[static_cast<size_t>(setting.get_choice(object))];
    case ValueType::optional_boolean:
      return read_optional(at<std::optional<bool>>(setting, place));
    case ValueType::optional_integer:
      return read_optional(at<std::optional<int64_t>>(setting, place));
    case ValueType::optional_real:
      return read_optional(at<std::optional<double>>(setting, place));
    case ValueType::integers:
      return read_list(at<std::vector<int64_t>>(setting, place));
    case ValueType::reals:
      return read_list(at<std::vector<double>>(setting, place));
    case ValueType::texts:
      return read_list(at<std::vector<std::string>>(setting, place));
    case ValueType::json:
      return at<Json>(setting, place);
  }
  return {};
}

std::string show_value(const Json& value) {
  if (value.is_null()) return "none";
  if (value.is_string()) return value.as_string();
  if (value.is_double()) {
    if (std::isinf(value.as_double())) return value.as_double() > 0 ? "inf" : "-inf";
    if (std::isnan(value.as_double())) return "nan";
    return fmt::format("{}", value.as_double());
  }
  if (value.is_array()) {
    std::string text = "[";
    for (size_t i = 0; i < value.size(); ++i) text += (i > 0 ? ", " : "") + show_value(value[i]);
    return text + "]";
  }
  return value.dump();
}

std::string describe_values(const Setting& setting) {
  if (setting.is_pattern) return "N or a list of zeros and ones";
  std::string kind;
  switch (setting.type) {
    case ValueType::boolean:
    case ValueType::optional_boolean:
      return "true or false";
    case ValueType::integer:
    case ValueType::optional_integer:
      kind = "a whole number";
      break;
    case ValueType::real:
    case ValueType::optional_real:
      kind = "a number";
      break;
    case ValueType::integers:
      kind = setting.exact_count > 0 ? fmt::format("{} whole numbers", setting.exact_count) : "whole numbers";
      break;
    case ValueType::reals:
      kind = "numbers";
      break;
    case ValueType::text:
      return setting.choices.empty() ? "text" : join_choices(setting);
    case ValueType::texts:
      return setting.choices.empty() ? "a list of texts" : "some of " + join_choices(setting);
    case ValueType::choice:
      return join_choices(setting);
    case ValueType::json:
      return "a mapping";
  }
  const bool low = std::isfinite(setting.lowest), high = std::isfinite(setting.highest);
  if (low && high)
    return fmt::format("{} {} {} and at most {}", kind, setting.lowest_excluded ? "above" : "of at least",
                       setting.lowest, setting.highest);
  if (low)
    return fmt::format("{} {} {}", kind, setting.lowest_excluded ? "above" : "of at least", setting.lowest);
  if (high) return fmt::format("{} of at most {}", kind, setting.highest);
  return kind;
}

}  // namespace megatron
