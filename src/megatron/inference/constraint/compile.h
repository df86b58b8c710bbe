#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/inference/constraint.h"
#include "megatron/inference/constraint/token_trie.h"

namespace megatron {

using SharedVocabulary = std::shared_ptr<const ConstraintVocabulary>;

// Texts that a regular expression matches from begin to end.
std::shared_ptr<const Constraint> compile_regex(const SharedVocabulary& vocabulary, std::string_view pattern);
// One of several texts.
std::shared_ptr<const Constraint> compile_choices(const SharedVocabulary& vocabulary,
                                                  std::vector<std::string> choices);
// JSON texts that satisfy a schema.
std::shared_ptr<const Constraint> compile_json_schema(const SharedVocabulary& vocabulary, const Json& schema);
// Any JSON object.
std::shared_ptr<const Constraint> compile_json_object(const SharedVocabulary& vocabulary);

// A text with JSON in it: `before`, a value that satisfies the schema, `after`.
struct FramedSchema {
  std::string before;
  Json schema;
  std::string after;
};
// One of several such texts between `begin` and `end`, or several one behind the other with `separator`
// between them where it is not empty. This is how calls of tools are written.
struct FramedSchemas {
  std::string begin, separator, end;
  std::vector<FramedSchema> choices;
};
std::shared_ptr<const Constraint> compile_framed_schemas(const SharedVocabulary& vocabulary,
                                                         const FramedSchemas& framed);

}  // namespace megatron
