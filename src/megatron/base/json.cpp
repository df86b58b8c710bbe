#include "megatron/base/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "megatron/base/json_reader.h"
#include "megatron/base/refuse.h"
#include "megatron/base/text_file.h"

namespace megatron {
namespace {

constexpr size_t max_depth = 512;

// Builds a Json from the parser's events; stack_ holds the containers that are still open.
class Builder {
 public:
  explicit Builder(std::string_view origin) : origin_(origin) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(int64_t value) { return add(Json(value)); }
  bool number_unsigned(uint64_t value) {
    return add(value <= uint64_t{INT64_MAX} ? Json(static_cast<int64_t>(value))
                                            : Json(static_cast<double>(value)));
  }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() {
    const Json::Object& object = stack_.back().value.as_object();
    std::unordered_set<std::string_view> keys;
    for (const auto& [key, value] : object)
      require(keys.insert(key).second, "{}: the key \"{}\" stands twice in one object: remove one", origin_,
              key);
    return close();
  }
  bool end_array() { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    // The library's message begins with its own error number; the part after "] " is for people.
    std::string_view what = error.what();
    if (size_t bracket = what.find("] "); bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    refuse("{}: malformed JSON near byte {}: {}", origin_, position, what);
  }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json value;
    std::string key;
  };

  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Json& parent = stack_.back().value; parent.is_object()) {
      parent.as_object().emplace_back(std::move(key_), std::move(value));
    } else {
      parent.as_array().push_back(std::move(value));
    }
    return true;
  }
  bool open(Json value) {
    require(stack_.size() < max_depth, "{}: nested deeper than {} levels", origin_, max_depth);
    stack_.push_back({std::move(value), std::move(key_)});
    return true;
  }
  bool close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    key_ = std::move(done.key);
    return add(std::move(done.value));
  }

  std::string_view origin_;
  std::vector<Open> stack_;
  std::string key_;
  Json root_;
};

// Python writes NaN and Infinity into JSON files; as in dump(), they stand for null here.
std::string without_python_constants(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\' && i + 1 < text.size()) {
        result += text[i++];
      } else {
        in_string = text[i] != '"';
      }
    } else {
      in_string = text[i] == '"';
      bool replaced = false;
      for (std::string_view constant : {"-Infinity", "Infinity", "NaN"}) {
        if (!text.substr(i).starts_with(constant)) continue;
        result += "null";
        i += constant.size() - 1;
        replaced = true;
        break;
      }
      if (replaced) continue;
    }
    result += text[i];
  }
  return result;
}

void write_string(std::string& out, const std::string& text) {
  bool plain = true;
  for (unsigned char c : text) plain = plain && c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
  if (plain) {
    out += '"';
    out += text;
    out += '"';
  } else {
    out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

void write_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string_view digits(buffer, end - buffer);
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";  // stays a double when read back
}

void write(std::string& out, const Json& json, int indent, int depth);

// `write_item(i)` writes one member; an indent below zero keeps everything on one line.
template <class WriteItem>
void write_items(std::string& out, char open, char close, size_t count, int indent, int depth,
                 WriteItem write_item) {
  out += open;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    if (indent >= 0) out.append(1, '\n').append(static_cast<size_t>(indent) * (depth + 1), ' ');
    write_item(i);
  }
  if (indent >= 0 && count > 0) out.append(1, '\n').append(static_cast<size_t>(indent) * depth, ' ');
  out += close;
}

void write(std::string& out, const Json& json, int indent, int depth) {
  if (json.is_null()) {
    out += "null";
  } else if (json.is_bool()) {
    out += json.as_bool() ? "true" : "false";
  } else if (json.is_int()) {
    out += std::to_string(json.as_int());
  } else if (json.is_double()) {
    write_double(out, json.as_double());
  } else if (json.is_string()) {
    write_string(out, json.as_string());
  } else if (json.is_array()) {
    const Json::Array& items = json.as_array();
    write_items(out, '[', ']', items.size(), indent, depth,
                [&](size_t i) { write(out, items[i], indent, depth + 1); });
  } else {
    const Json::Object& items = json.as_object();
    write_items(out, '{', '}', items.size(), indent, depth, [&](size_t i) {
      write_string(out, items[i].first);
      out += indent >= 0 ? ": " : ":";
      write(out, items[i].second, indent, depth + 1);
    });
  }
}

[[noreturn]] void wrong_type(const char* wanted, const Json& json) {
  fail("JSON: wanted {}, found {}", wanted, json.type_name());
}

}  // namespace

Json Json::parse(std::string_view text, std::string_view origin) {
  if (Json value; read_plain_json(text, value)) return value;
  Builder builder(origin);
  bool python = text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
  if (python) {
    nlohmann::json::sax_parse(without_python_constants(text), &builder);
  } else {
    nlohmann::json::sax_parse(text, &builder);
  }
  return builder.take();
}

Json Json::read(const std::string& path) { return parse(read_text_file(path), path); }

const char* Json::type_name() const {
  static constexpr const char* names[] = {"null",     "a bool",   "an integer", "a number",
                                          "a string", "an array", "an object"};
  return names[value_.index()];
}

bool Json::as_bool() const {
  if (!is_bool()) wrong_type("a bool", *this);
  return std::get<bool>(value_);
}

int64_t Json::as_int() const {
  if (is_double()) {
    double value = std::get<double>(value_);
    // 2^63 is the first double beyond int64.
    if (value == std::trunc(value) && value >= -0x1p63 && value < 0x1p63) return static_cast<int64_t>(value);
    fail("JSON: wanted an integer, found {}", value);
  }
  if (!is_int()) wrong_type("an integer", *this);
  return std::get<int64_t>(value_);
}

double Json::as_double() const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(value_));
  if (!is_double()) wrong_type("a number", *this);
  return std::get<double>(value_);
}

const std::string& Json::as_string() const {
  if (!is_string()) wrong_type("a string", *this);
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  if (!is_array()) wrong_type("an array", *this);
  return std::get<Array>(value_);
}

Json::Array& Json::as_array() {
  if (!is_array()) wrong_type("an array", *this);
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  if (!is_object()) wrong_type("an object", *this);
  return std::get<Object>(value_);
}

Json::Object& Json::as_object() {
  if (!is_object()) wrong_type("an object", *this);
  return std::get<Object>(value_);
}

size_t Json::size() const {
  if (is_array()) return std::get<Array>(value_).size();
  if (!is_object()) wrong_type("an array or object", *this);
  return std::get<Object>(value_).size();
}

const Json& Json::operator[](size_t index) const {
  const Array& items = as_array();
  require(index < items.size(), "JSON: index {} in an array of {}", index, items.size());
  return items[index];
}

Json& Json::operator[](size_t index) { return const_cast<Json&>(std::as_const(*this)[index]); }

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : std::get<Object>(value_))
    if (name == key) return &value;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) wrong_type("an object", *this);
  const Json* found = find(key);
  require(found != nullptr, "JSON: the key \"{}\" is missing", key);
  return *found;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object{};
  Object& object = as_object();
  for (auto& [name, value] : object)
    if (name == key) return value;
  return object.emplace_back(std::string(key), Json()).second;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, *this, indent, 0);
  return out;
}

bool operator==(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number() && a.is_int() != b.is_int()) return a.as_double() == b.as_double();
  return a.value_ == b.value_;
}

}  // namespace megatron
