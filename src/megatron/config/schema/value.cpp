#include "megatron/config/schema/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "megatron/base/nearest.h"

namespace megatron {
namespace {

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

// A choice without what spellings differ in: all_gather, allgather and All-Gather are one.
std::string bare(std::string_view choice) {
  std::string text = lower(choice);
  std::erase_if(text, [](char c) { return c == '_' || c == '-'; });
  return text;
}

// The one of the choices that `text` names, in the schema's own spelling.
ValidationError to_choice(const Setting& setting, const std::string& text, size_t& index) {
  const std::string wanted = setting.is_dtype ? dtype_name(text) : lower(text);
  std::vector<std::string> names;
  for (size_t i = 0; i < setting.choices.size(); ++i) {
    if (bare(setting.choices[i]) == bare(wanted)) return index = i, ValidationError{};
    names.emplace_back(setting.choices[i]);
  }
  const std::vector<std::string> near = nearest(text, names, 1);
  return {"no such choice", near.empty() || names.size() <= 3 ? fmt::format("use {}", join_choices(setting))
                                                              : fmt::format("did you mean {}? There are {}",
                                                                            near[0], join_choices(setting))};
}

ValidationError convert(const Setting& setting, const Json& value, std::string& result) {
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

ValidationError convert(const Setting& setting, const Json& value, int64_t& result) {
  const bool whole = value.is_int() || (value.is_double() && std::abs(value.as_double()) < 0x1p63 &&
                                        value.as_double() == std::trunc(value.as_double()));
  if (value.is_double() && !whole) return {"this is not a whole number", "give " + describe_values(setting)};
  if (!whole) return wrong_type(setting, value);
  result = value.as_int();
  return check_range(setting, static_cast<double>(result));
}

ValidationError convert(const Setting& setting, const Json& value, double& result) {
  if (!value.is_number()) return wrong_type(setting, value);
  result = value.as_double();
  if (std::isinf(result)) return {"this is not finite", "give " + describe_values(setting)};
  return check_range(setting, result);
}

ValidationError convert(const Setting& setting, const Json& value, bool& result) {
  if (value.is_bool()) return result = value.as_bool(), ValidationError{};
  if (!value.is_string()) return wrong_type(setting, value);
  const std::string text = lower(value.as_string());
  if (text != "true" && text != "false") return wrong_type(setting, value);
  return result = text == "true", ValidationError{};
}

template <class T>
ValidationError convert(const Setting& setting, const Json& value, std::vector<T>& result) {
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

template <class T>
ValidationError convert(const Setting& setting, const Json& value, std::optional<T>& result) {
  const bool infinite = setting.infinity_is_none && value.is_double() && std::isinf(value.as_double());
  if (value.is_null() || infinite) return {};
  return convert(setting, value, result.emplace());
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

ValidationError convert(const Setting& setting, const Json& value, Json& result) {
  result = value;
  if (setting.is_pattern) return check_pattern(value);
  if (value.is_object()) return {};
  return {"this is " + std::string(value.type_name()), "give a mapping, such as {key: value}"};
}

Json to_json(const std::string& text) { return text.empty() ? Json() : Json(text); }
template <class T>
Json to_json(const T& value) {
  return Json(value);
}
template <class T>
Json to_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
template <class T>
Json to_json(const std::vector<T>& items) {
  Json result = Json::array();
  for (const T& item : items) result.push_back(Json(item));
  return result;
}

// Calls `act` with the place of the value, by its C++ type.
template <class Act>
auto with_place(const Setting& setting, void* object, Act&& act) {
  void* place = setting.address(object);
  const auto as = [&]<class T>(std::type_identity<T>) { return act(*static_cast<T*>(place)); };
  switch (setting.type) {
    case ValueType::boolean:
      return as(std::type_identity<bool>());
    case ValueType::integer:
      return as(std::type_identity<int64_t>());
    case ValueType::real:
      return as(std::type_identity<double>());
    case ValueType::text:
      return as(std::type_identity<std::string>());
    case ValueType::optional_boolean:
      return as(std::type_identity<std::optional<bool>>());
    case ValueType::optional_integer:
      return as(std::type_identity<std::optional<int64_t>>());
    case ValueType::optional_real:
      return as(std::type_identity<std::optional<double>>());
    case ValueType::integers:
      return as(std::type_identity<std::vector<int64_t>>());
    case ValueType::reals:
      return as(std::type_identity<std::vector<double>>());
    case ValueType::texts:
      return as(std::type_identity<std::vector<std::string>>());
    default:
      return as(std::type_identity<Json>());
  }
}

}  // namespace

ValidationError store_value(const Setting& setting, void* object, const Json& value, const void* defaults) {
  const bool choice = setting.type == ValueType::choice;
  if (value.is_null()) {
    const Json fallback = read_value(setting, defaults);
    if (choice && setting.choices.front() == "none") return setting.set_choice(object, 0), ValidationError{};
    // A number's "unset" default (0) lies outside its range, and an empty text is null.
    if (setting.type == ValueType::json || fallback.is_null())
      return with_place(setting, object, [&]<class T>(T& place) {
        place = *static_cast<const T*>(setting.address(const_cast<void*>(defaults)));
        return ValidationError{};
      });
    return store_value(setting.without_range(), object, fallback, defaults);
  }
  if (choice) {
    if (!value.is_string()) return wrong_type(setting, value);
    size_t index = 0;
    ValidationError error = to_choice(setting, value.as_string(), index);
    if (!error) setting.set_choice(object, static_cast<int>(index));
    return error;
  }
  // Only what is right is stored, so that a refused value leaves the default.
  return with_place(setting, object, [&]<class T>(T& place) {
    T converted{};
    ValidationError error = convert(setting, value, converted);
    if (!error) place = std::move(converted);
    return error;
  });
}

Json read_value(const Setting& setting, const void* object) {
  if (setting.type == ValueType::choice)
    return setting.choices[static_cast<size_t>(setting.get_choice(object))];
  return with_place(setting, const_cast<void*>(object),  // only read
                    [](const auto& place) { return to_json(place); });
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
