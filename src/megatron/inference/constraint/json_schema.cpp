#include "megatron/inference/constraint/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "megatron/base/refuse.h"
#include "megatron/inference/constraint/schema_facts.h"
#include "megatron/inference/constraint/string_formats.h"

namespace megatron {
namespace {

using Part = Grammar::Part;

class SchemaCompiler {
 public:
  SchemaCompiler(Grammar& grammar, JsonGrammar& json, const Json& root)
      : grammar_(grammar), json_(json), root_(root) {}

  Part compile(const Json& schema, const std::string& place) {
    if (schema.is_bool()) {
      require_input(schema.as_bool(), "JSON schema: {} is false, which no value satisfies", place);
      return json_.any_value();
    }
    require_input(schema.is_object(), "JSON schema: {} is {}, expected an object", place, schema.type_name());
    refuse_unknown_keywords(schema, place);
    if (const Json* target = schema.find("$ref")) return reference(*target, schema, place);
    if (const Json* value = schema.find("const")) {
      refuse_siblings(schema, "const", {"type"}, place);
      return constants({*value}, schema, place);
    }
    if (const Json* values = schema.find("enum")) {
      refuse_siblings(schema, "enum", {"type"}, place);
      require_input(values->is_array() && values->size() > 0,
                    "JSON schema: {}/enum: expected an array of values", place);
      return constants(values->as_array(), schema, place);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"})
      if (const Json* branches = schema.find(keyword)) return branches_of(*branches, keyword, schema, place);

    std::vector<Part> parts;
    for (const std::string& type : schema_types(schema, place)) parts.push_back(typed(type, schema, place));
    return parts.empty() ? json_.any_value() : grammar_.alternatives(parts);
  }

 private:
  // Each schema that something refers to is one rule, so that it may contain itself.
  Part reference(const Json& target, const Json& schema, const std::string& place) {
    refuse_siblings(schema, "$ref", {}, place);
    require_input(target.is_string(), "JSON schema: {}/$ref: expected a string", place);
    const std::string& pointer = target.as_string();
    auto found = rules_.find(pointer);
    if (found == rules_.end()) {
      const Json& there = resolve_pointer(root_, pointer, place);
      found = rules_.emplace(pointer, grammar_.declare_rule()).first;
      const int rule = found->second;
      grammar_.define_rule(rule, compile(there, pointer));
      return grammar_.call(rule);
    }
    return grammar_.call(found->second);
  }

  Part constants(const Json::Array& values, const Json& schema, const std::string& place) {
    std::vector<std::string> texts;
    for (const Json& value : values)
      if (!schema.contains("type") || has_type(value, schema_types(schema, place)))
        texts.push_back(value.dump());
    require_input(!texts.empty(), "JSON schema: {}: no value of the enum has its type", place);
    return grammar_.literals(std::move(texts));
  }

  Part branches_of(const Json& branches, const std::string& keyword, const Json& schema,
                   const std::string& place) {
    refuse_siblings(schema, keyword, {"type"}, place);
    require_input(branches.is_array() && branches.size() > 0,
                  "JSON schema: {}/{}: expected an array of schemas", place, keyword);
    require_input(keyword != "allOf" || branches.size() == 1,
                  "JSON schema: {}/allOf of several schemas is not supported; write them as one", place);
    if (keyword == "oneOf") refuse_overlaps(root_, branches, place);
    std::vector<Part> parts;
    for (size_t i = 0; i < branches.size(); ++i) {
      const std::string own = fmt::format("{}/{}/{}", place, keyword, i);
      Json branch = branches[i];
      if (const Json* type = schema.find("type"); type && branch.is_object()) {
        if (!branch.contains("type") && !branch.contains("$ref")) branch["type"] = *type;
        require_input(branch.contains("type") && branch.at("type") == *type,
                      "JSON schema: {}/type beside {} is not supported where a branch has its own", place,
                      keyword);
      }
      parts.push_back(compile(branch, own));
    }
    return grammar_.alternatives(parts);
  }

  Part typed(const std::string& type, const Json& schema, const std::string& place) {
    if (type == "null") return grammar_.literal("null");
    if (type == "boolean") return grammar_.literals({"true", "false"});
    if (type == "object") return object(schema, place);
    if (type == "array") return array(schema, place);
    if (type == "string") return string(schema, place);
    const NumberRange range = number_range(schema, place, type == "integer");
    if (type == "integer") return json_.integer(range);
    return range.min || range.max ? json_.number(range) : json_.number();
  }

  Part string(const Json& schema, const std::string& place) {
    const Json *pattern = schema.find("pattern"), *format = schema.find("format");
    const int64_t min = count_of(schema, "minLength", 0, place),
                  max = count_of(schema, "maxLength", -1, place);
    const bool limited = min > 0 || max >= 0;
    require_input((pattern ? 1 : 0) + (format ? 1 : 0) + (limited ? 1 : 0) <= 1,
                  "JSON schema: {}: pattern, format and lengths together are not supported; keep one", place);
    require_input(max < 0 || min <= max, "JSON schema: {}: minLength {} is above maxLength {}", place, min,
                  max);
    if (pattern) {
      require_input(pattern->is_string(), "JSON schema: {}/pattern: expected a string", place);
      return json_.string_matching(pattern->as_string());
    }
    if (format) {
      require_input(format->is_string(), "JSON schema: {}/format: expected a string", place);
      return json_.string_matching(format_pattern(format->as_string(), place));
    }
    return json_.string(min, max);
  }

  Part array(const Json& schema, const std::string& place) {
    const int64_t min = count_of(schema, "minItems", 0, place), max = count_of(schema, "maxItems", -1, place);
    require_input(max < 0 || min <= max, "JSON schema: {}: minItems {} is above maxItems {}", place, min,
                  max);
    const Json *prefix = schema.find("prefixItems"), *items = schema.find("items");
    const int64_t named = prefix ? static_cast<int64_t>(prefix->size()) : 0;
    const bool closed = items && items->is_bool() && !items->as_bool();
    require_input(!closed || min <= named, "JSON schema: {}: minItems {} of {} possible items", place, min,
                  named);
    const auto item = [&](int64_t i) {
      if (i < named)
        return compile((*prefix)[static_cast<size_t>(i)], fmt::format("{}/prefixItems/{}", place, i));
      return items ? compile(*items, place + "/items") : json_.any_value();
    };
    std::vector<JsonGrammar::Member> members;
    int64_t listed = std::max(min, named);
    if (closed) listed = named;
    if (max >= 0) listed = closed ? std::min(named, max) : max;
    for (int64_t i = 0; i < listed; ++i) members.push_back({item(i), i < min});
    std::optional<Part> more;
    if (max < 0 && !closed) more = item(listed);
    return json_.bracketed("[", members, more, "]", JsonGrammar::Optional::last);
  }

  Part object(const Json& schema, const std::string& place) {
    const Json *properties = schema.find("properties"), *additional = schema.find("additionalProperties");
    std::set<std::string> required, names;
    if (const Json* list = schema.find("required")) {
      require_input(list->is_array(), "JSON schema: {}/required: expected an array", place);
      for (const Json& name : list->as_array()) {
        require_input(name.is_string(), "JSON schema: {}/required: expected strings", place);
        required.insert(name.as_string());
      }
    }
    const bool closed = additional && additional->is_bool() && !additional->as_bool();
    const auto other = [&] {
      return additional && additional->is_object() ? compile(*additional, place + "/additionalProperties")
                                                   : json_.any_value();
    };
    const auto key = [&](const std::string& name) { return grammar_.literal(Json(name).dump()); };
    std::vector<JsonGrammar::Member> members;
    if (properties) {
      require_input(properties->is_object(), "JSON schema: {}/properties: expected an object", place);
      for (const auto& [name, value] : properties->as_object()) {
        names.insert(name);
        if (value.is_bool() && !value.as_bool()) {
          require_input(!required.contains(name), "JSON schema: {}/properties/{} is false and required",
                        place, name);
          continue;
        }
        members.push_back({json_.member(key(name), compile(value, place + "/properties/" + name)),
                           required.contains(name)});
      }
    }
    for (const std::string& name : required)
      if (names.insert(name).second) {
        require_input(!closed, "JSON schema: {}: '{}' is required and additionalProperties is false", place,
                      name);
        members.push_back({json_.member(key(name), other()), true});
      }
    std::optional<Part> more;
    // Where properties are listed, others come only if the schema speaks of them.
    if (!closed && (additional || names.empty())) {
      const Part any_key = names.empty() ? json_.any_string() : json_.string_other_than(names);
      more = json_.member(any_key, other());
    }
    return json_.bracketed("{", members, more, "}");
  }

  Grammar& grammar_;
  JsonGrammar& json_;
  const Json& root_;
  std::map<std::string, int> rules_;
};

}  // namespace

Part json_schema_part(Grammar& grammar, JsonGrammar& json, const Json& schema) {
  return SchemaCompiler(grammar, json, schema).compile(schema, "#");
}

}  // namespace megatron
