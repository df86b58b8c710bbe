// The expressions of a template.
#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/interpreter.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  Level level(runtime_.budget);
  runtime_.budget.step();
  try {
    return evaluate_kind(expression, scope);
  } catch (const ValueFault& problem) {
    throw TemplateError(fmt::format("line {}: {}", expression.line, problem.what()));
  }
}

Value Interpreter::lookup(const std::string& name, const Scope& scope) {
  const Value* found = scope.find(name);
  return found ? *found : runtime_.undefined(fmt::format("'{}' is undefined", name));
}

Value Interpreter::evaluate_kind(const Expression& expression, const ScopePtr& scope) {
  auto item = [&](size_t i) { return expression.items[i] ? evaluate(*expression.items[i], scope) : Value(); };
  switch (expression.kind) {
    case Expression::Kind::constant:
      return expression.value;
    case Expression::Kind::name:
      return lookup(expression.name, *scope);
    case Expression::Kind::list:
    case Expression::Kind::tuple: {
      Values items;
      items.reserve(expression.items.size());
      for (size_t i = 0; i < expression.items.size(); ++i) items.push_back(item(i));
      return expression.kind == Expression::Kind::list ? runtime_.list(std::move(items))
                                                       : runtime_.tuple(std::move(items));
    }
    case Expression::Kind::dict:
      return evaluate_dict(expression, scope);
    case Expression::Kind::attribute:
      return get_attribute(runtime_, item(0), expression.name);
    case Expression::Kind::item: {
      const Value from = item(0);
      return get_item(runtime_, from, item(1));
    }
    case Expression::Kind::slice: {
      const Value from = item(0), start = item(1), stop = item(2), step = item(3);
      return get_slice(runtime_, from, start, stop, step);
    }
    case Expression::Kind::call:
      return evaluate_call(expression, scope);
    case Expression::Kind::filter:
      return evaluate_filter(expression, scope);
    case Expression::Kind::test: {
      const Value input = item(0);
      Arguments arguments = evaluate_arguments(*expression.call, scope);
      if (!expression.test) fault("No test named '{}'.", expression.name);
      return Value(expression.test(runtime_, input, arguments));
    }
    case Expression::Kind::negative:
      return negate(item(0));
    case Expression::Kind::positive:
      return plus(item(0));
    case Expression::Kind::logical_not:
      return Value(!truth(item(0)));
    case Expression::Kind::logical_and: {
      Value left = item(0);
      return truth(left) ? item(1) : left;
    }
    case Expression::Kind::logical_or: {
      Value left = item(0);
      return truth(left) ? left : item(1);
    }
    case Expression::Kind::binary: {
      const Value left = item(0);
      return apply(runtime_, expression.binary, left, item(1));
    }
    case Expression::Kind::concat: {
      TextBuilder out(runtime_.budget);
      for (size_t i = 0; i < expression.items.size(); ++i) append_text(runtime_, out, item(i));
      return runtime_.text(out.take());
    }
    case Expression::Kind::compare:
      return evaluate_compare(expression, scope);
    case Expression::Kind::conditional:
      if (truth(item(1))) return item(0);
      if (expression.items[2]) return item(2);
      return runtime_.undefined(
          "the inline if-expression evaluated to false and no else section was defined.");
  }
  return {};
}

Value Interpreter::evaluate_dict(const Expression& expression, const ScopePtr& scope) {
  ValuePairs pairs;
  for (size_t i = 0; i < expression.items.size(); i += 2) {
    Value key = evaluate(*expression.items[i], scope), value = evaluate(*expression.items[i + 1], scope);
    require_hashable(runtime_, key);
    bool known = false;
    for (auto& [other, held] : pairs)
      if (!known && equal(runtime_, key, other)) held = value, known = true;
    if (!known) pairs.emplace_back(std::move(key), std::move(value));
  }
  return runtime_.dict(std::move(pairs));
}

Value Interpreter::evaluate_compare(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.items[0], scope);
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    Value right = evaluate(*expression.items[i + 1], scope);
    bool holds = false;
    switch (expression.comparisons[i]) {
      case Comparison::equal:
        holds = equal(runtime_, left, right);
        break;
      case Comparison::unequal:
        holds = !equal(runtime_, left, right);
        break;
      case Comparison::less:
        holds = less(runtime_, left, right);
        break;
      case Comparison::less_or_equal:
        holds = less_or_equal(runtime_, left, right);
        break;
      case Comparison::greater:
        holds = less(runtime_, right, left);
        break;
      case Comparison::greater_or_equal:
        holds = less_or_equal(runtime_, right, left);
        break;
      case Comparison::in:
        holds = contains(runtime_, right, left);
        break;
      case Comparison::not_in:
        holds = !contains(runtime_, right, left);
        break;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Arguments Interpreter::evaluate_arguments(const CallSyntax& call, const ScopePtr& scope) {
  Arguments arguments;
  for (const ExpressionPtr& argument : call.positional)
    arguments.positional.push_back(evaluate(*argument, scope));
  for (const auto& [name, argument] : call.named)
    arguments.named.emplace_back(name, evaluate(*argument, scope));
  if (call.more_positional) {
    Cursor cursor(runtime_, evaluate(*call.more_positional, scope));
    for (Value item; cursor.next(item);) arguments.positional.push_back(item);
  }
  if (call.more_named) {
    const Value more = evaluate(*call.more_named, scope);
    if (!more.is_dict()) fault("argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [name, value] : more.pairs()) {
      if (!name.is_text()) fault("keywords must be strings");
      for (const auto& other : arguments.named)
        if (other.first == name.text()) fault("got multiple values for keyword argument '{}'", name.text());
      arguments.named.emplace_back(name.text(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*expression.items[0], scope);
  Arguments arguments = evaluate_arguments(*expression.call, scope);
  if (caller) arguments.named.emplace_back("caller", *caller);
  if (callee.is_undefined()) fault("{}", callee.undefined().message);
  if (!callee.is_object()) fault("'{}' object is not callable", type_name(callee));
  const Value keeps_alive = callee;
  return callee.object().call(runtime_, std::move(arguments));
}

Value Interpreter::evaluate_filter(const Expression& expression, const ScopePtr& scope, const Value* text) {
  // A filter block's chain begins with the block's text, where an ordinary one has an expression.
  const Expression* inner = expression.items[0].get();
  const Value input = !inner                                            ? *text
                      : text && inner->kind == Expression::Kind::filter ? evaluate_filter(*inner, scope, text)
                                                                        : evaluate(*inner, scope);
  Arguments arguments = evaluate_arguments(*expression.call, scope);
  if (!expression.filter) fault("No filter named '{}'.", expression.name);
  return expression.filter(runtime_, input, arguments);
}

}  // namespace megatron::chat
