#include "megatron/server/fields.h"

#include <cmath>

#include "megatron/server/api_error.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

template <class... Args>
[[noreturn]] void refuse_field(const std::string& name, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, name + ": " + fmt::format(format, std::forward<Args>(args)...), name);
}

}  // namespace

Fields::Fields(const std::string& body) {
  if (!tokenizers::is_utf8(body)) throw ApiError(400, "the body is not UTF-8");
  try {
    body_ = Json::parse(body, "body");
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  if (!body_.is_object())
    throw ApiError(400, fmt::format("body: it is {}, expected an object", body_.type_name()));
}

const Json* Fields::find(const std::string& name) {
  read_.insert(name);
  const Json* value = body_.find(name);
  return value && !value->is_null() ? value : nullptr;
}

const Json& Fields::required(const std::string& name) {
  const Json* value = find(name);
  if (!value) throw ApiError(400, fmt::format("{}: it is missing", name), name);
  return *value;
}

bool Fields::flag(const std::string& name, bool otherwise) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (!value->is_bool()) refuse_field(name, "it is {}, expected true or false", value->type_name());
  return value->as_bool();
}

double Fields::number(const std::string& name, double otherwise, double min, double max) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (!value->is_number()) refuse_field(name, "it is {}, expected a number", value->type_name());
  const double number = value->as_double();
  if (!(number >= min && number <= max))
    refuse_field(name, "{} is out of range (expected {} to {})", number, min, max);
  return number;
}

int64_t Fields::whole(const std::string& name, int64_t otherwise, int64_t min, int64_t max) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (!value->is_number() || (value->is_double() && (std::trunc(value->as_double()) != value->as_double() ||
                                                     std::abs(value->as_double()) > 9e15)))
    refuse_field(name, "expected an integer");
  const int64_t number = value->as_int();
  if (number < min) refuse_field(name, "{} is out of range (expected at least {})", number, min);
  if (number > max) refuse_field(name, "{} is out of range (expected at most {})", number, max);
  return number;
}

std::string Fields::text(const std::string& name, const std::string& otherwise) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (!value->is_string()) refuse_field(name, "it is {}, expected a string", value->type_name());
  return value->as_string();
}

std::vector<std::string> Fields::texts(const std::string& name) {
  const Json* value = find(name);
  if (!value) return {};
  if (value->is_string()) return {value->as_string()};
  if (!value->is_array())
    refuse_field(name, "it is {}, expected a string or an array of strings", value->type_name());
  std::vector<std::string> texts;
  for (const Json& one : value->as_array()) {
    if (!one.is_string()) refuse_field(name, "it has {} in it, expected strings", one.type_name());
    texts.push_back(one.as_string());
  }
  return texts;
}

void Fields::ignore(std::initializer_list<const char*> names) { read_.insert(names.begin(), names.end()); }

void Fields::refuse_unknown() const {
  for (const auto& [name, value] : body_.as_object())
    if (!read_.contains(name))
      throw ApiError(400, fmt::format("Unrecognized request argument supplied: {}", name), name);
}

std::vector<int64_t> token_ids(const Json& list, int64_t size, const std::string& name) {
  std::vector<int64_t> ids;
  for (const Json& id : list.as_array()) {
    if (!id.is_int() || id.as_int() < 0 || id.as_int() >= size)
      refuse_field(name, "{} is no token (expected 0 to {})", id.dump(), size - 1);
    ids.push_back(id.as_int());
  }
  return ids;
}

}  // namespace megatron
