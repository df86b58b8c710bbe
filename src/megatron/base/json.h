#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace megatron {

// A JSON document as a value. Objects keep the order in which keys were added.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(int64_t{value}) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value) : value_(static_cast<int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }
  // `origin` (a file name, say) begins the message of the Error that malformed text gives.
  static Json parse(std::string_view text, std::string_view origin = "JSON");
  static Json read(const std::string& path);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name() const;

  // Each throws an Error that names the wanted and the actual type.
  bool as_bool() const;
  int64_t as_int() const;    // also a double with an integral value
  double as_double() const;  // also an int
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  size_t size() const;  // of an array or object
  const Json& operator[](size_t index) const;
  Json& operator[](size_t index);                // also keeps json[0] from meaning a null key
  const Json* find(std::string_view key) const;  // nullptr where absent
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const Json& at(std::string_view key) const;  // throws where absent
  Json& operator[](std::string_view key);      // adds where absent; null becomes an object
  void push_back(Json value);                  // null becomes an array

  // indent < 0: one line. Doubles in shortest round-trip form; NaN and infinities as null.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json&, const Json&);

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace megatron
