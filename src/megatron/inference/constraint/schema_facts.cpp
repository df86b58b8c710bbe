#include "megatron/inference/constraint/schema_facts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/base/refuse.h"

namespace megatron {
namespace {

// Keywords that ask for nothing.
constexpr std::array<std::string_view, 15> kAnnotations = {
    "title",     "description", "default", "examples", "example",     "$comment", "deprecated",   "readOnly",
    "writeOnly", "$schema",     "$id",     "$defs",    "definitions", "$anchor",  "discriminator"};
struct TypedKeyword {
  std::string_view name, type;
};
constexpr std::array<TypedKeyword, 17> kTyped = {{{"properties", "object"},
                                                  {"required", "object"},
                                                  {"additionalProperties", "object"},
                                                  {"items", "array"},
                                                  {"prefixItems", "array"},
                                                  {"minItems", "array"},
                                                  {"maxItems", "array"},
                                                  {"minLength", "string"},
                                                  {"maxLength", "string"},
                                                  {"pattern", "string"},
                                                  {"format", "string"},
                                                  {"minimum", "number"},
                                                  {"maximum", "number"},
                                                  {"exclusiveMinimum", "number"},
                                                  {"exclusiveMaximum", "number"},
                                                  {"multipleOf", "number"},
                                                  {"uniqueItems", "array"}}};
constexpr std::array<std::string_view, 7> kGeneral = {"type",  "$ref",  "const", "enum",
                                                      "anyOf", "oneOf", "allOf"};
constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "object", "array",
                                                    "string", "number",  "integer"};

template <class List>
bool is_in(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

double number_at(const Json& schema, const char* keyword, const std::string& place) {
  const Json& value = schema.at(keyword);
  require_input(value.is_number() && std::isfinite(value.as_double()),
                "JSON schema: {}/{}: expected a number", place, keyword);
  return value.as_double();
}

int64_t whole_bound(double value, bool integer, bool up, const char* keyword, const std::string& place) {
  const double moved = up ? std::ceil(value) : std::floor(value);
  require_input(integer || moved == value,
                "JSON schema: {}/{}: {} is not supported for numbers; give a whole number", place, keyword,
                value);
  require_input(std::abs(moved) <= static_cast<double>(JsonGrammar::kMaxInteger),
                "JSON schema: {}/{}: {} has more than 18 digits", place, keyword, value);
  return static_cast<int64_t>(moved);
}

const Json& followed(const Json& root, const Json& schema, const std::string& place) {
  const Json* now = &schema;
  for (int i = 0; i < 32; ++i) {
    const Json* target = now->find("$ref");
    if (!target || !target->is_string()) return *now;
    now = &resolve_pointer(root, target->as_string(), place);
  }
  return *now;
}

// The values that a schema is limited to; none where it is not.
std::vector<Json> values_of(const Json& schema) {
  if (const Json* value = schema.find("const")) return {*value};
  if (const Json* values = schema.find("enum"); values && values->is_array()) return values->as_array();
  return {};
}

bool disjoint(const std::vector<Json>& a, const std::vector<Json>& b) {
  return !a.empty() && !b.empty() &&
         std::ranges::none_of(a, [&](const Json& value) { return std::ranges::find(b, value) != b.end(); });
}

bool same_kind(const std::string& a, const std::string& b) {
  const auto number = [](const std::string& type) { return type == "number" || type == "integer"; };
  return a == b || (number(a) && number(b));
}

bool requires_name(const Json& schema, const std::string& name) {
  const Json* list = schema.find("required");
  return list && list->is_array() &&
         std::ranges::find(list->as_array(), Json(name)) != list->as_array().end();
}

bool cannot_both_hold(const Json& root, const Json& a, const Json& b, const std::string& place) {
  if (!a.is_object() || !b.is_object()) return false;
  const std::vector<Json> values_a = values_of(a), values_b = values_of(b);
  if (disjoint(values_a, values_b)) return true;
  std::vector<std::string> types_a = schema_types(a, place), types_b = schema_types(b, place);
  if (!values_a.empty() && !types_b.empty())
    if (std::ranges::none_of(values_a, [&](const Json& value) { return has_type(value, types_b); }))
      return true;
  if (!values_b.empty() && !types_a.empty())
    if (std::ranges::none_of(values_b, [&](const Json& value) { return has_type(value, types_a); }))
      return true;
  if (types_a.empty() || types_b.empty()) return false;
  if (std::ranges::none_of(types_a, [&](const std::string& one) {
        return std::ranges::any_of(types_b, [&](const std::string& other) { return same_kind(one, other); });
      }))
    return true;
  if (types_a != std::vector<std::string>{"object"} || types_b != types_a) return false;
  // Two objects: a member that both must have tells them apart.
  const Json *members_a = a.find("properties"), *members_b = b.find("properties");
  if (!members_a || !members_b || !members_a->is_object()) return false;
  for (const auto& [name, value] : members_a->as_object()) {
    const Json* other = members_b->find(name);
    if (!other || !requires_name(a, name) || !requires_name(b, name)) continue;
    if (disjoint(values_of(followed(root, value, place)), values_of(followed(root, *other, place))))
      return true;
  }
  return false;
}

}  // namespace

void refuse_unknown_keywords(const Json& schema, const std::string& place) {
  for (const auto& [name, value] : schema.as_object()) {
    if (is_in(kAnnotations, name) || is_in(kGeneral, name)) continue;
    const auto typed = std::ranges::find(kTyped, std::string_view(name), &TypedKeyword::name);
    require_input(typed != kTyped.end(), "JSON schema: {}/{} is not supported; leave it out", place, name);
    if (name == "uniqueItems")
      require_input(value.is_bool() && !value.as_bool(),
                    "JSON schema: {}/uniqueItems is not supported; leave it out", place);
    if (name == "multipleOf")
      require_input(value == Json(1) && schema.contains("type") && schema.at("type") == Json("integer"),
                    "JSON schema: {}/multipleOf is not supported; leave it out", place);
  }
}

void refuse_siblings(const Json& schema, std::string_view keyword,
                     std::initializer_list<std::string_view> allowed, const std::string& place) {
  for (const auto& [name, value] : schema.as_object())
    require_input(name == keyword || is_in(kAnnotations, name) || is_in(allowed, name),
                  "JSON schema: {}/{} beside {} is not supported; leave one of them out", place, name,
                  keyword);
}

std::vector<std::string> schema_types(const Json& schema, const std::string& place) {
  std::vector<std::string> types;
  const auto add = [&](const std::string& type) {
    require_input(is_in(kTypes, type), "JSON schema: {}/type: '{}' is no type of JSON", place, type);
    if (!is_in(types, type)) types.push_back(type);
  };
  if (const Json* type = schema.find("type")) {
    const Json::Array listed = type->is_array() ? type->as_array() : Json::Array{*type};
    require_input(!listed.empty(), "JSON schema: {}/type: it names none", place);
    for (const Json& one : listed) {
      require_input(one.is_string(), "JSON schema: {}/type: expected a string or an array of them", place);
      add(one.as_string());
    }
    if (is_in(types, "number")) std::erase(types, "integer");
    return types;
  }
  for (const TypedKeyword& keyword : kTyped)
    if (!keyword.type.empty() && schema.contains(keyword.name)) add(std::string(keyword.type));
  return types;
}

bool has_type(const Json& value, const std::vector<std::string>& types) {
  return std::ranges::any_of(types, [&](const std::string& type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_bool();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "integer")
      return value.is_int() || (value.is_double() && std::trunc(value.as_double()) == value.as_double());
    return value.is_number();
  });
}

int64_t count_of(const Json& schema, const char* keyword, int64_t otherwise, const std::string& place) {
  constexpr double kMost = 1e9;
  if (!schema.contains(keyword)) return otherwise;
  const double value = number_at(schema, keyword, place);
  require_input(value >= 0 && value <= kMost && std::trunc(value) == value,
                "JSON schema: {}/{}: expected a whole number that is not negative, got {}", place, keyword,
                value);
  return static_cast<int64_t>(value);
}

NumberRange number_range(const Json& schema, const std::string& place, bool integer) {
  NumberRange range;
  if (schema.contains("minimum"))
    range.min = whole_bound(number_at(schema, "minimum", place), integer, true, "minimum", place);
  if (schema.contains("maximum"))
    range.max = whole_bound(number_at(schema, "maximum", place), integer, false, "maximum", place);
  if (schema.contains("exclusiveMinimum")) {
    const double bound = number_at(schema, "exclusiveMinimum", place);
    const int64_t low = whole_bound(bound, integer, false, "exclusiveMinimum", place);  // x > 2.5 is x > 2
    if (!range.min || low >= *range.min) {
      range.min = low;
      range.above_min = true;
    }
  }
  if (schema.contains("exclusiveMaximum")) {
    const double bound = number_at(schema, "exclusiveMaximum", place);
    const int64_t high = whole_bound(bound, integer, true, "exclusiveMaximum", place);
    if (!range.max || high <= *range.max) {
      range.max = high;
      range.below_max = true;
    }
  }
  return range;
}

const Json& resolve_pointer(const Json& root, const std::string& pointer, const std::string& place) {
  require_input(pointer == "#" || pointer.starts_with("#/"),
                "JSON schema: {}/$ref: '{}' is not supported; refer to #/$defs/… of the same schema", place,
                pointer);
  const Json* now = &root;
  for (size_t begin = 2; begin <= pointer.size() && pointer.size() > 1;) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string name = pointer.substr(begin, end - begin);
    for (const auto& [escape, character] : {std::pair("~1", "/"), std::pair("~0", "~")})
      for (size_t at = name.find(escape); at != std::string::npos; at = name.find(escape, at + 1))
        name.replace(at, 2, character);
    const bool index = now->is_array() && !name.empty() && name.size() < 9 &&
                       name.find_first_not_of("0123456789") == std::string::npos;
    if (index && std::stoul(name) < now->size())
      now = &(*now)[std::stoul(name)];
    else
      now = now->find(name);
    require_input(now != nullptr, "JSON schema: {}/$ref: '{}' is not there", place, pointer);
    begin = end + 1;
  }
  return *now;
}

void refuse_overlaps(const Json& root, const Json& branches, const std::string& place) {
  for (size_t i = 0; i < branches.size(); ++i)
    for (size_t j = i + 1; j < branches.size(); ++j)
      require_input(cannot_both_hold(root, followed(root, branches[i], place),
                                     followed(root, branches[j], place), place),
                    "JSON schema: {}/oneOf: one value might satisfy branches {} and {}; use anyOf, or a "
                    "required member with "
                    "different constants",
                    place, i, j);
}

}  // namespace megatron
