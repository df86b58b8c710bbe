#include "megatron/inference/constraint/compile.h"

#include "megatron/base/refuse.h"
#include "megatron/inference/constraint/grammar_constraint.h"
#include "megatron/inference/constraint/json_schema.h"
#include "megatron/inference/constraint/regex_grammar.h"

namespace megatron {
namespace {

// A grammar whose root is what `make` makes in it.
template <class Make>
std::shared_ptr<const Constraint> compiled(const SharedVocabulary& vocabulary, std::string_view subject,
                                           Make make) {
  Grammar grammar;
  const int root = grammar.declare_rule();
  grammar.define_rule(root, make(grammar));
  grammar.finish(root, subject);
  return make_grammar_constraint(std::move(grammar), vocabulary);
}

}  // namespace

std::shared_ptr<const Constraint> compile_regex(const SharedVocabulary& vocabulary,
                                                std::string_view pattern) {
  return compiled(vocabulary, "regular expression", [&](Grammar& grammar) {
    return regex_part(
        grammar, pattern, [&](const Grammar::Points& points) { return grammar.character(points); }, false);
  });
}

std::shared_ptr<const Constraint> compile_choices(const SharedVocabulary& vocabulary,
                                                  std::vector<std::string> choices) {
  require_input(!choices.empty(), "choices: there are none; give at least one");
  return compiled(vocabulary, "choices",
                  [&](Grammar& grammar) { return grammar.literals(std::move(choices)); });
}

std::shared_ptr<const Constraint> compile_json_schema(const SharedVocabulary& vocabulary,
                                                      const Json& schema) {
  return compiled(vocabulary, "JSON schema", [&](Grammar& grammar) {
    JsonGrammar json(grammar);
    return json_schema_part(grammar, json, schema);
  });
}

std::shared_ptr<const Constraint> compile_json_object(const SharedVocabulary& vocabulary) {
  return compiled(vocabulary, "JSON object",
                  [&](Grammar& grammar) { return JsonGrammar(grammar).any_object(); });
}

std::shared_ptr<const Constraint> compile_framed_schemas(const SharedVocabulary& vocabulary,
                                                         const FramedSchemas& framed) {
  require_input(!framed.choices.empty(), "tools: there are none to choose from");
  return compiled(vocabulary, "tools", [&](Grammar& grammar) {
    JsonGrammar json(grammar);
    const int one = grammar.declare_rule();
    std::vector<Grammar::Part> parts;
    for (const FramedSchema& choice : framed.choices)
      parts.push_back(
          grammar.sequence({grammar.literal(choice.before), json_schema_part(grammar, json, choice.schema),
                            grammar.literal(choice.after)}));
    grammar.define_rule(one, grammar.alternatives(parts));
    std::vector<Grammar::Part> whole = {grammar.literal(framed.begin), grammar.call(one)};
    if (!framed.separator.empty())
      whole.push_back(grammar.repeat(0, 15, [&] {
        return grammar.sequence({grammar.literal(framed.separator), grammar.call(one)});
      }));
    whole.push_back(grammar.literal(framed.end));
    return grammar.sequence(whole);
  });
}

}  // namespace megatron
