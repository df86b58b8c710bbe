#pragma once

#include <string_view>

#include "megatron/base/json.h"
#include "megatron/inference/constraint/grammar.h"
#include "megatron/inference/constraint/json_grammar.h"

namespace megatron {

// The JSON texts that a JSON schema (draft 2020-12, local $ref) describes, as part of a grammar. Every text
// of it satisfies the schema; members come in the order of `properties`, and others only where
// additionalProperties is given. A keyword that cannot be kept is a ConfigError that names it and its place.
Grammar::Part json_schema_part(Grammar& grammar, JsonGrammar& json, const Json& schema);

}  // namespace megatron
