#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/inference/constraint/json_grammar.h"

namespace megatron {

// What single keywords of a JSON schema say. `place` is a JSON pointer, for messages.

// A ConfigError for a keyword that asks for something and is not known.
void refuse_unknown_keywords(const Json& schema, const std::string& place);
// A ConfigError for keywords beside `keyword` that ask for something more, but for those `allowed`.
void refuse_siblings(const Json& schema, std::string_view keyword,
                     std::initializer_list<std::string_view> allowed, const std::string& place);
// The types that a schema allows; where it names none those that its other keywords speak of, and none where
// there are no such keywords.
std::vector<std::string> schema_types(const Json& schema, const std::string& place);
bool has_type(const Json& value, const std::vector<std::string>& types);
// A whole number that is not negative.
int64_t count_of(const Json& schema, const char* keyword, int64_t otherwise, const std::string& place);
// minimum, maximum and their exclusive forms; bounds between two integers are moved inwards for integers.
NumberRange number_range(const Json& schema, const std::string& place, bool integer);
// "#/$defs/node" within `root`.
const Json& resolve_pointer(const Json& root, const std::string& pointer, const std::string& place);
// A ConfigError where one value might satisfy two schemas of a oneOf.
void refuse_overlaps(const Json& root, const Json& branches, const std::string& place);

}  // namespace megatron
