#include "megatron/tokenizers/chat/interpreter.h"

#include <algorithm>

#include "megatron/tokenizers/chat/loop.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {

// A macro with the scope that it was defined in.
class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, std::shared_ptr<MacroSyntax> syntax, ScopePtr scope)
      : interpreter_(interpreter), syntax_(std::move(syntax)), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr(Runtime&) override { return "<Macro " + text_repr(syntax_->name) + ">"; }
  bool callable() const override { return true; }
  bool attribute(Runtime& runtime, std::string_view name, Value& result) override {
    if (name == "name") return result = runtime.text(syntax_->name), true;
    if (name == "caller") return result = Value(syntax_->uses_caller), true;
    if (name == "catch_kwargs") return result = Value(syntax_->uses_kwargs), true;
    if (name == "catch_varargs") return result = Value(syntax_->uses_varargs), true;
    if (name != "arguments") return false;
    Values names;
    for (const std::string& argument : syntax_->arguments) names.push_back(runtime.text(argument));
    return result = runtime.tuple(std::move(names)), true;
  }
  Value call(Runtime&, Arguments arguments) override {
    return interpreter_.call_macro(*syntax_, scope_, std::move(arguments));
  }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<MacroSyntax> syntax_;
  ScopePtr scope_;
};

Interpreter::Interpreter(Runtime& runtime, std::vector<std::pair<std::string, Value>> names)
    : runtime_(runtime), names_(global_functions()), output_(runtime.budget) {
  names_.insert(names_.end(), std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
  globals_ = std::make_shared<Scope>(runtime_.budget, nullptr);
  for (const auto& [name, value] : names_) globals_->set(name, value);
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : captured_) scope->clear();
}

std::string Interpreter::run(const Block& block) {
  execute(block, inner(globals_));
  return output_.take();
}

void Interpreter::write(const Value& value) {
  append_text(runtime_, *out_, value);
  if (out_->text().size() > runtime_.budget.limits().output_bytes)
    fault("the template writes more than {} bytes; raise the limit", runtime_.budget.limits().output_bytes);
}

template <class Body>
std::string Interpreter::captured(Body body) {
  TextBuilder buffer(runtime_.budget);
  struct Restore {
    TextBuilder*& place;
    TextBuilder* before;
    ~Restore() { place = before; }
  } restore{out_, out_};
  out_ = &buffer;
  body();
  return buffer.take();
}

Interpreter::Flow Interpreter::execute(const Block& block, const ScopePtr& scope) {
  for (const auto& statement : block) {
    Flow flow = Flow::on;
    try {
      flow = execute(*statement, scope);
    } catch (const ValueFault& problem) {
      throw TemplateError(fmt::format("line {}: {}", statement->line, problem.what()));
    }
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, const ScopePtr& scope) {
  Level level(runtime_.budget);
  runtime_.budget.step();
  switch (statement.kind) {
    case Statement::Kind::data:
      out_->add(statement.text);
      return Flow::on;
    case Statement::Kind::print:
      for (const ExpressionPtr& expression : statement.expressions) write(evaluate(*expression, scope));
      return Flow::on;
    case Statement::Kind::if_:
      return execute_if(statement, scope);
    case Statement::Kind::for_:
      return execute_for(statement, scope);
    case Statement::Kind::set:
      assign(statement.targets[0], evaluate(*statement.expressions[0], scope), scope);
      return Flow::on;
    case Statement::Kind::set_block:
      return execute_set_block(statement, scope);
    case Statement::Kind::with: {
      ScopePtr body = inner(scope);
      for (size_t i = 0; i < statement.targets.size(); ++i)
        assign(statement.targets[i], evaluate(*statement.expressions[i], scope), body);
      return execute(statement.blocks[0], body);
    }
    case Statement::Kind::macro:
      scope->set(statement.macro->name, make_macro(statement.macro, scope));
      return Flow::on;
    case Statement::Kind::call:
      execute_call(statement, scope);
      return Flow::on;
    case Statement::Kind::generation:
      execute_generation(statement, scope);
      return Flow::on;
    case Statement::Kind::filter_block:
      return execute_filter_block(statement, scope);
    case Statement::Kind::break_:
      return Flow::break_;
    case Statement::Kind::continue_:
      return Flow::continue_;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement, const ScopePtr& scope) {
  for (size_t i = 0; i < statement.expressions.size(); ++i)
    if (truth(evaluate(*statement.expressions[i], scope))) return execute(statement.blocks[i], scope);
  return statement.blocks.size() > statement.expressions.size() ? execute(statement.blocks.back(), scope)
                                                                : Flow::on;
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement, const ScopePtr& scope) {
  Value iterable = evaluate(*statement.expressions[0], scope);
  if (!statement.recursive) return run_loop(statement, scope, std::move(iterable), 0);
  out_->add(captured([&] { run_loop(statement, scope, std::move(iterable), 0); }));
  return Flow::on;
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, const ScopePtr& scope, Value iterable,
                                        int depth) {
  Loop::Keeps keeps;
  if (const Expression* condition = statement.expressions[1].get())
    keeps = [this, condition, &statement, scope](Value& item) {
      ScopePtr names = inner(scope);
      assign(statement.targets[0], item, names);
      if (!truth(evaluate(*condition, names))) return false;
      item = assigned(statement.targets[0], *names);  // Jinja's condition passes on what it unpacked
      return true;
    };
  Loop::Recurse recurse;
  if (statement.recursive)
    recurse = [this, &statement, scope](Value children, int deeper) {
      Level level(runtime_.budget);
      return runtime_.text(captured([&] { run_loop(statement, scope, std::move(children), deeper); }));
    };
  auto loop =
      std::make_shared<Loop>(runtime_, std::move(iterable), std::move(keeps), std::move(recurse), depth);
  struct Finish {
    Loop& loop;
    ~Finish() { loop.finish(); }
  } finish{*loop};
  bool completed = false;  // Jinja runs the else unless some pass of the body came to its end
  for (Value item; loop->advance(item);) {
    ScopePtr body = inner(scope);
    body->set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(statement.targets[0], item, body);
    const Flow flow = execute(statement.blocks[0], body);
    if (flow == Flow::break_) break;
    completed = completed || flow == Flow::on;
  }
  return completed ? Flow::on : execute(statement.blocks[1], inner(scope));
}

Interpreter::Flow Interpreter::execute_set_block(const Statement& statement, const ScopePtr& scope) {
  Flow flow = Flow::on;
  Value value = runtime_.text(captured([&] { flow = execute(statement.blocks[0], inner(scope)); }));
  if (flow != Flow::on) return flow;
  if (statement.expressions[0]) value = evaluate_filter(*statement.expressions[0], scope, &value);
  assign(statement.targets[0], std::move(value), scope);
  return flow;
}

Interpreter::Flow Interpreter::execute_filter_block(const Statement& statement, const ScopePtr& scope) {
  Flow flow = Flow::on;
  const Value text = runtime_.text(captured([&] { flow = execute(statement.blocks[0], inner(scope)); }));
  if (flow == Flow::on) write(evaluate_filter(*statement.expressions[0], scope, &text));
  return flow;
}

void Interpreter::execute_call(const Statement& statement, const ScopePtr& scope) {
  const Value caller = make_macro(statement.macro, scope);
  write(evaluate_call(*statement.expressions[0], scope, &caller));
}

// The block's place is counted from what has reached the output itself, as transformers does: inside a macro
// or another block whose text is still being put together, it begins where that text will.
void Interpreter::execute_generation(const Statement& statement, const ScopePtr& scope) {
  const std::string text = captured([&] { execute(statement.macro->body, inner(scope)); });
  const size_t begin = output_.text().size();
  generations_.push_back({begin, begin + text.size()});
  out_->add(text);
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& scope) {
  if (target.is_tuple) {
    if (!is_iterable(value)) fault("cannot unpack non-iterable {} object", type_name(value));
    Cursor cursor(runtime_, value);
    Value item;
    for (const Target& part : target.parts) {
      if (!cursor.next(item)) fault("not enough values to unpack (expected {})", target.parts.size());
      assign(part, item, scope);
    }
    if (cursor.next(item)) fault("too many values to unpack (expected {})", target.parts.size());
    return;
  }
  if (target.attribute.empty()) return scope->set(target.name, std::move(value));
  auto* space = lookup(target.name, *scope).object_as<Namespace>();
  if (!space) fault("cannot assign attribute on non-namespace object");
  space->set(runtime_, target.attribute, std::move(value));
}

Value Interpreter::assigned(const Target& target, const Scope& scope) {
  if (!target.is_tuple) return lookup(target.name, scope);
  Values values;
  for (const Target& part : target.parts) values.push_back(assigned(part, scope));
  return runtime_.tuple(std::move(values));
}

Value Interpreter::make_macro(const std::shared_ptr<MacroSyntax>& syntax, const ScopePtr& scope) {
  for (ScopePtr around = scope; around && !around->captured; around = around->parent()) {
    around->captured = true;
    captured_.push_back(around);
  }
  return Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, syntax, scope)));
}

Value Interpreter::call_macro(const MacroSyntax& syntax, const ScopePtr& outer, Arguments arguments) {
  Level level(runtime_.budget);
  auto take_named = [&](std::string_view name, Value& value) {
    auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                              [&](const auto& n) { return n.first == name; });
    if (found == arguments.named.end()) return false;
    value = std::move(found->second);
    arguments.named.erase(found);
    return true;
  };
  ScopePtr scope = inner(outer);
  const size_t count = syntax.arguments.size(), defaults_from = count - syntax.defaults.size();
  bool found_caller = false;
  std::vector<size_t> missing;
  for (size_t i = 0; i < count; ++i) {
    Value value;
    found_caller = found_caller || syntax.arguments[i] == "caller";
    if (i < arguments.positional.size()) {
      scope->set(syntax.arguments[i], arguments.positional[i]);
    } else if (take_named(syntax.arguments[i], value)) {
      scope->set(syntax.arguments[i], std::move(value));
    } else {
      missing.push_back(i);
    }
  }
  if (syntax.uses_caller && !found_caller) {
    Value caller = runtime_.undefined("No caller defined");
    take_named("caller", caller);
    scope->set("caller", std::move(caller));
  }
  if (syntax.uses_kwargs) {
    ValuePairs pairs;
    for (auto& [name, value] : arguments.named) pairs.emplace_back(runtime_.text(name), std::move(value));
    scope->set("kwargs", runtime_.dict(std::move(pairs)));
  } else if (!arguments.named.empty()) {
    fault("macro '{}' takes no keyword argument '{}'", syntax.name, arguments.named[0].first);
  }
  if (syntax.uses_varargs) {
    const size_t used = std::min(count, arguments.positional.size());
    scope->set("varargs", runtime_.tuple(Values(arguments.positional.begin() + static_cast<long>(used),
                                                arguments.positional.end())));
  } else if (arguments.positional.size() > count) {
    fault("macro '{}' takes not more than {} argument(s)", syntax.name, count);
  }
  for (size_t i : missing)
    scope->set(syntax.arguments[i],
               i >= defaults_from
                   ? evaluate(*syntax.defaults[i - defaults_from], scope)
                   : runtime_.undefined(fmt::format("parameter '{}' was not provided", syntax.arguments[i])));
  return runtime_.text(captured([&] { execute(syntax.body, scope); }));
}

}  // namespace megatron::chat
