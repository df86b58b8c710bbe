#pragma once

#include <cmath>
#include <regex>
#include <string>

#include "megatron/base/json.h"

namespace megatron {

inline size_t characters_in(const std::string& text) {
  size_t count = 0;
  for (char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

inline bool has_json_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && std::trunc(value.as_double()) == value.as_double();
  if (type == "number") return value.is_number();
  return type == "null"      ? value.is_null()
         : type == "boolean" ? value.is_bool()
         : type == "string"  ? value.is_string()
         : type == "array"   ? value.is_array()
                             : value.is_object();
}

// A plain reading of JSON schema, written for these tests alone and without the grammar's code.
inline bool satisfies(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_bool()) return schema.as_bool();
  if (const Json* ref = schema.find("$ref")) {
    const std::string& name = ref->as_string();
    const Json& target = name == "#" ? root : root.at("$defs").at(name.substr(name.rfind('/') + 1));
    return satisfies(value, target, root);
  }
  const auto holds = [&](const char* key, auto check) {
    const Json* found = schema.find(key);
    return !found || check(*found);
  };
  const auto number = [&](const char* key, auto check) {
    return !value.is_number() ||
           holds(key, [&](const Json& bound) { return check(value.as_double(), bound.as_double()); });
  };
  const auto size = [&](const char* key, bool applies, size_t count, bool at_least) {
    return !applies || holds(key, [&](const Json& bound) {
      return at_least ? count >= static_cast<size_t>(bound.as_int())
                      : count <= static_cast<size_t>(bound.as_int());
    });
  };
  const auto matching = [&](const Json& branches) {
    int count = 0;
    for (const Json& branch : branches.as_array()) count += satisfies(value, branch, root) ? 1 : 0;
    return count;
  };
  const size_t length = value.is_string() ? characters_in(value.as_string()) : 0;
  const size_t items = value.is_array() ? value.size() : 0;
  bool good =
      holds("const", [&](const Json& one) { return value == one; }) &&
      holds("enum",
            [&](const Json& all) {
              return std::ranges::find(all.as_array(), value) != all.as_array().end();
            }) &&
      holds("anyOf", [&](const Json& all) { return matching(all) > 0; }) &&
      holds("oneOf", [&](const Json& all) { return matching(all) == 1; }) &&
      holds("type",
            [&](const Json& type) {
              if (type.is_string()) return has_json_type(value, type.as_string());
              return std::ranges::any_of(
                  type.as_array(), [&](const Json& one) { return has_json_type(value, one.as_string()); });
            }) &&
      number("minimum", [](double x, double y) { return x >= y; }) &&
      number("maximum", [](double x, double y) { return x <= y; }) &&
      number("exclusiveMinimum", [](double x, double y) { return x > y; }) &&
      number("exclusiveMaximum", [](double x, double y) { return x < y; }) &&
      size("minLength", value.is_string(), length, true) &&
      size("maxLength", value.is_string(), length, false) &&
      size("minItems", value.is_array(), items, true) && size("maxItems", value.is_array(), items, false) &&
      (!value.is_string() || holds("pattern", [&](const Json& pattern) {
        return std::regex_search(value.as_string(), std::regex(pattern.as_string()));
      }));
  if (value.is_array()) {
    const Json* prefix = schema.find("prefixItems");
    for (size_t i = 0; i < value.size(); ++i) {
      const bool named = prefix && i < prefix->size();
      good =
          good && (named ? satisfies(value[i], (*prefix)[i], root)
                         : holds("items", [&](const Json& own) { return satisfies(value[i], own, root); }));
    }
  }
  if (value.is_object()) {
    const Json* properties = schema.find("properties");
    for (const auto& [name, member] : value.as_object()) {
      const Json* own = properties ? properties->find(name) : nullptr;
      good =
          good && (own ? satisfies(member, *own, root) : holds("additionalProperties", [&](const Json& any) {
            return satisfies(member, any, root);
          }));
    }
    good = good && holds("required", [&](const Json& names) {
             return std::ranges::all_of(names.as_array(),
                                        [&](const Json& name) { return value.contains(name.as_string()); });
           });
  }
  return good;
}

}  // namespace megatron
