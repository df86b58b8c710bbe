#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/tokenizers/chat/runtime.h"
#include "megatron/tokenizers/chat/scope.h"
#include "megatron/tokenizers/chat/syntax.h"

namespace megatron::chat {

// Bytes of the rendered text.
struct TextSpan {
  size_t begin = 0, end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

// Walks a parsed template once and writes its output. Statements in interpreter.cpp, expressions in
// evaluate.cpp.
class Interpreter {
 public:
  // `names` are what the template is given beside the functions that every template has.
  Interpreter(Runtime& runtime, std::vector<std::pair<std::string, Value>> names);
  ~Interpreter();

  std::string run(const Block& block);
  // Where the output of `generation` blocks stands, in their order.
  const std::vector<TextSpan>& generations() const { return generations_; }

 private:
  friend class Macro;
  enum class Flow { on, break_, continue_ };

  // Statements.
  Flow execute(const Block& block, const ScopePtr& scope);
  Flow execute(const Statement& statement, const ScopePtr& scope);
  Flow execute_if(const Statement& statement, const ScopePtr& scope);
  Flow execute_for(const Statement& statement, const ScopePtr& scope);
  Flow run_loop(const Statement& statement, const ScopePtr& scope, Value iterable, int depth);
  Flow execute_set_block(const Statement& statement, const ScopePtr& scope);
  Flow execute_filter_block(const Statement& statement, const ScopePtr& scope);
  void execute_call(const Statement& statement, const ScopePtr& scope);
  void execute_generation(const Statement& statement, const ScopePtr& scope);
  void assign(const Target& target, Value value, const ScopePtr& scope);
  // What the names of a target hold, a tuple where it has several.
  Value assigned(const Target& target, const Scope& scope);
  ScopePtr inner(const ScopePtr& scope) { return std::make_shared<Scope>(runtime_.budget, scope); }
  void write(const Value& value);
  // What `body` writes, as a text instead.
  template <class Body>
  std::string captured(Body body);
  Value make_macro(const std::shared_ptr<MacroSyntax>& syntax, const ScopePtr& scope);
  Value call_macro(const MacroSyntax& syntax, const ScopePtr& scope, Arguments arguments);

  // Expressions.
  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_kind(const Expression& expression, const ScopePtr& scope);
  Value evaluate_dict(const Expression& expression, const ScopePtr& scope);
  Value evaluate_compare(const Expression& expression, const ScopePtr& scope);
  Value evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller = nullptr);
  Value evaluate_filter(const Expression& expression, const ScopePtr& scope, const Value* text = nullptr);
  Arguments evaluate_arguments(const CallSyntax& call, const ScopePtr& scope);
  Value lookup(const std::string& name, const Scope& scope);

  Runtime& runtime_;
  std::vector<std::pair<std::string, Value>> names_;  // whose texts the outermost scope refers to
  ScopePtr globals_;
  std::vector<ScopePtr>
      captured_;  // by macros: emptied at the end, since a macro stands in the scope that it refers to
  TextBuilder output_;
  TextBuilder* out_ = &output_;
  std::vector<TextSpan> generations_;
};

// The functions that every template has: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now.
std::vector<std::pair<std::string, Value>> global_functions();

}  // namespace megatron::chat
