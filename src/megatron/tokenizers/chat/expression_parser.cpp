#include <algorithm>

#include "megatron/tokenizers/chat/filters.h"
#include "megatron/tokenizers/chat/parser.h"
#include "megatron/tokenizers/chat/template_error.h"

namespace megatron::chat {
namespace {

// Left-deep chains (a + b + c + …) nest without brackets; what evaluates and frees them goes as deep.
constexpr int kMaxDepth = 400;
constexpr int kMaxNesting = 100;

Value literal_text(std::string text) {
  return Value(std::make_shared<const Text>(Text{std::move(text), false, {}}));
}

bool is_container(Expression::Kind kind) {
  return kind == Expression::Kind::list || kind == Expression::Kind::tuple || kind == Expression::Kind::dict;
}

// Whether an expression is made of literals alone.
bool is_literal(const Expression& node) {
  if (node.kind == Expression::Kind::negative) return node.items[0]->kind == Expression::Kind::constant;
  if (!is_container(node.kind)) return node.kind == Expression::Kind::constant;
  return std::ranges::all_of(node.items, [](const auto& item) { return is_literal(*item); });
}

bool is_hashable(const Expression& literal) {
  if (literal.kind == Expression::Kind::tuple)
    return std::ranges::all_of(literal.items, [](const auto& item) { return is_hashable(*item); });
  return !is_container(literal.kind);
}

// Whether a dict of literals has a key that cannot be one, before anything that is no literal.
bool has_bad_key(const Expression& dict) {
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (!is_literal(*dict.items[i]) || !is_literal(*dict.items[i + 1])) return false;
    if (!is_hashable(*dict.items[i])) return true;
  }
  return false;
}

}  // namespace

Parser::Nested::Nested(Parser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) {
    --parser_.nesting_;
    syntax_error(parser_.current().line, fmt::format("nested deeper than {} levels", kMaxNesting));
  }
}

void Parser::set_depth(Expression& node) const {
  int depth = 0;
  auto look = [&](const ExpressionPtr& item) {
    if (!item) return;
    depth = std::max(depth, item->depth);
    node.bad_key = node.bad_key || item->bad_key;
  };
  for (const auto& item : node.items) look(item);
  if (node.call) {
    for (const auto& item : node.call->positional) look(item);
    for (const auto& item : node.call->named) look(item.second);
    look(node.call->more_positional);
    look(node.call->more_named);
  }
  node.depth = depth + 1;
  // Jinja makes values of literals while it compiles operations on them, also where they are never reached.
  if (node.bad_key && !is_container(node.kind))
    syntax_error(node.line, "a dict has a key that is not hashable");
  if (node.depth > kMaxDepth)
    syntax_error(node.line, fmt::format("an expression is deeper than {} levels", kMaxDepth));
}

ExpressionPtr Parser::make(Expression::Kind kind, int line) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  return node;
}

template <class... Items>
ExpressionPtr Parser::make(Expression::Kind kind, int line, Items... items) const {
  ExpressionPtr node = make(kind, line);
  (node->items.push_back(std::move(items)), ...);
  set_depth(*node);
  return node;
}

ExpressionPtr Parser::expression(bool with_condition) {
  Nested nested(*this);
  return with_condition ? conditional() : logical_or();
}

ExpressionPtr Parser::conditional() {
  Nested nested(*this);
  const int line = current().line;
  const size_t unknown = unknown_.size();
  ExpressionPtr node = logical_or();
  while (skip_name("if")) {
    unknown_.resize(unknown);  // the first part is behind a condition, too
    const bool lenient = std::exchange(lenient_, true);
    ExpressionPtr condition = logical_or();
    ExpressionPtr otherwise = skip_name("else") ? conditional() : nullptr;
    lenient_ = lenient;
    node = make(Expression::Kind::conditional, line, std::move(node), std::move(condition),
                std::move(otherwise));
  }
  return node;
}

ExpressionPtr Parser::logical_or() {
  ExpressionPtr left = logical_and();
  while (is_name("or")) {
    const int line = take().line;
    left = make(Expression::Kind::logical_or, line, std::move(left), logical_and());
  }
  return left;
}

ExpressionPtr Parser::logical_and() {
  ExpressionPtr left = logical_not();
  while (is_name("and")) {
    const int line = take().line;
    left = make(Expression::Kind::logical_and, line, std::move(left), logical_not());
  }
  return left;
}

ExpressionPtr Parser::logical_not() {
  if (!is_name("not")) return compare();
  Nested nested(*this);
  const int line = take().line;
  return make(Expression::Kind::logical_not, line, logical_not());
}

ExpressionPtr Parser::compare() {
  constexpr std::pair<std::string_view, Comparison> kComparisons[] = {
      {"==", Comparison::equal},         {"!=", Comparison::unequal}, {"<", Comparison::less},
      {"<=", Comparison::less_or_equal}, {">", Comparison::greater},  {">=", Comparison::greater_or_equal}};
  const int line = current().line;
  ExpressionPtr first = sum();
  ExpressionPtr node;
  for (;;) {
    std::optional<Comparison> comparison;
    for (const auto& [symbol, meaning] : kComparisons)
      if (is_symbol(symbol)) comparison = meaning;
    if (is_name("in")) comparison = Comparison::in;
    if (is_name("not") && ahead().kind == Token::Kind::name && ahead().text == "in") {
      take();
      comparison = Comparison::not_in;
    }
    if (!comparison) break;
    take();
    if (!node) node = make(Expression::Kind::compare, line, std::move(first));
    node->comparisons.push_back(*comparison);
    node->items.push_back(sum());
    set_depth(*node);
  }
  return node ? std::move(node) : std::move(first);
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = concat();
  while (is_symbol("+") || is_symbol("-")) {
    const Token op = take();
    left = make(Expression::Kind::binary, op.line, std::move(left), concat());
    left->binary = op.text == "+" ? BinaryOperator::add : BinaryOperator::subtract;
  }
  return left;
}

ExpressionPtr Parser::concat() {
  const int line = current().line;
  ExpressionPtr first = product();
  if (!is_symbol("~")) return first;
  ExpressionPtr node = make(Expression::Kind::concat, line, std::move(first));
  while (skip_symbol("~")) node->items.push_back(product());
  set_depth(*node);
  return node;
}

ExpressionPtr Parser::product() {
  ExpressionPtr left = power();
  while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
    const Token op = take();
    left = make(Expression::Kind::binary, op.line, std::move(left), power());
    left->binary = op.text == "*"    ? BinaryOperator::multiply
                   : op.text == "/"  ? BinaryOperator::divide
                   : op.text == "//" ? BinaryOperator::floor_divide
                                     : BinaryOperator::modulo;
  }
  return left;
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary();
  while (is_symbol("**")) {
    const int line = take().line;
    left = make(Expression::Kind::binary, line, std::move(left), unary());
    left->binary = BinaryOperator::power;
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filter) {
  Nested nested(*this);
  const int line = current().line;
  ExpressionPtr node;
  if (skip_symbol("-")) {
    node = make(Expression::Kind::negative, line, unary(false));
  } else if (skip_symbol("+")) {
    node = make(Expression::Kind::positive, line, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filter ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::primary() {
  const int line = current().line;
  switch (current().kind) {
    case Token::Kind::name: {
      std::string name = take().text;
      ExpressionPtr node = make(Expression::Kind::constant, line);
      if (name == "true" || name == "True") return node->value = Value(true), std::move(node);
      if (name == "false" || name == "False") return node->value = Value(false), std::move(node);
      if (name == "none" || name == "None") return node;
      node->kind = Expression::Kind::name;
      names_.insert(name);
      node->name = std::move(name);
      return node;
    }
    case Token::Kind::text: {
      std::string text;
      while (is(Token::Kind::text)) text += take().text;
      ExpressionPtr node = make(Expression::Kind::constant, line);
      node->value = literal_text(std::move(text));
      return node;
    }
    case Token::Kind::integer: {
      ExpressionPtr node = make(Expression::Kind::constant, line);
      node->value = Value(take().integer);
      return node;
    }
    case Token::Kind::real: {
      ExpressionPtr node = make(Expression::Kind::constant, line);
      node->value = Value(take().real);
      return node;
    }
    default:
      break;
  }
  if (skip_symbol("(")) {
    ExpressionPtr node = tuple(true, true);
    expect_symbol(")");
    return node;
  }
  if (is_symbol("[")) return list();
  if (is_symbol("{")) return dict();
  unexpected("an expression");
}

bool Parser::is_tuple_end() const {
  return is(Token::Kind::print_end) || is(Token::Kind::block_end) || is_symbol(")");
}

ExpressionPtr Parser::tuple(bool with_condition, bool in_parentheses) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_symbol(",");
    if (is_tuple_end()) break;
    items.push_back(expression(with_condition));
    if (!is_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) unexpected("an expression");
  ExpressionPtr node = make(Expression::Kind::tuple, line);
  node->items = std::move(items);
  set_depth(*node);
  return node;
}

ExpressionPtr Parser::list() {
  ExpressionPtr node = make(Expression::Kind::list, current().line);
  expect_symbol("[");
  while (!is_symbol("]")) {
    if (!node->items.empty()) expect_symbol(",");
    if (is_symbol("]")) break;
    node->items.push_back(expression());
  }
  expect_symbol("]");
  set_depth(*node);
  return node;
}

ExpressionPtr Parser::dict() {
  ExpressionPtr node = make(Expression::Kind::dict, current().line);
  expect_symbol("{");
  while (!is_symbol("}")) {
    if (!node->items.empty()) expect_symbol(",");
    if (is_symbol("}")) break;
    node->items.push_back(expression());
    expect_symbol(":");
    node->items.push_back(expression());
  }
  expect_symbol("}");
  set_depth(*node);
  node->bad_key = node->bad_key || has_bad_key(*node);
  return node;
}

ExpressionPtr Parser::postfix(ExpressionPtr node) {
  for (;;) {
    if (is_symbol(".") || is_symbol("[")) {
      node = subscript(std::move(node));
    } else if (is_symbol("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::filters_and_tests(ExpressionPtr node) {
  for (;;) {
    if (skip_symbol("|")) {
      node = filter(std::move(node));
    } else if (is_name("is")) {
      node = test(std::move(node));
    } else if (is_symbol("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr node) {
  const Token opening = take();
  if (opening.text == ".") {
    if (is(Token::Kind::name)) {
      node = make(Expression::Kind::attribute, opening.line, std::move(node));
      node->name = take().text;
      return node;
    }
    if (!is(Token::Kind::integer)) unexpected("a name or a number");
    ExpressionPtr index = make(Expression::Kind::constant, opening.line);
    index->value = Value(take().integer);
    return make(Expression::Kind::item, opening.line, std::move(node), std::move(index));
  }
  if (skip_symbol("]"))
    return make(Expression::Kind::item, opening.line, std::move(node),
                make(Expression::Kind::tuple, opening.line));
  ExpressionPtr start;
  if (!is_symbol(":")) {
    start = expression();
    if (!is_symbol(":")) {
      if (is_symbol(",")) {  // a tuple as a key
        ExpressionPtr key = make(Expression::Kind::tuple, opening.line, std::move(start));
        while (skip_symbol(",")) key->items.push_back(expression());
        start = std::move(key);
      }
      expect_symbol("]");
      return make(Expression::Kind::item, opening.line, std::move(node), std::move(start));
    }
  }
  expect_symbol(":");
  ExpressionPtr stop, step;
  if (!is_symbol(":") && !is_symbol("]")) stop = expression();
  if (skip_symbol(":") && !is_symbol("]")) step = expression();
  expect_symbol("]");
  return make(Expression::Kind::slice, opening.line, std::move(node), std::move(start), std::move(stop),
              std::move(step));
}

std::unique_ptr<CallSyntax> Parser::call_arguments() {
  auto arguments = std::make_unique<CallSyntax>();
  const int line = current().line;
  auto ensure = [&](bool right) {
    if (!right) syntax_error(line, "the arguments of a call are out of order");
  };
  expect_symbol("(");
  for (bool first = true; !is_symbol(")"); first = false) {
    if (!first) {
      expect_symbol(",");
      if (is_symbol(")")) break;
    }
    if (skip_symbol("*")) {
      ensure(!arguments->more_positional && !arguments->more_named);
      arguments->more_positional = expression();
    } else if (skip_symbol("**")) {
      ensure(!arguments->more_named);
      arguments->more_named = expression();
    } else if (is(Token::Kind::name) && ahead().kind == Token::Kind::symbol && ahead().text == "=") {
      ensure(!arguments->more_named);
      std::string name = take().text;
      take();
      for (const auto& other : arguments->named) ensure(other.first != name);
      arguments->named.emplace_back(std::move(name), expression());
    } else {
      ensure(!arguments->more_positional && !arguments->more_named && arguments->named.empty());
      arguments->positional.push_back(expression());
    }
  }
  expect_symbol(")");
  return arguments;
}

ExpressionPtr Parser::call(ExpressionPtr node) {
  ExpressionPtr result = make(Expression::Kind::call, current().line);
  result->items.push_back(std::move(node));
  result->call = call_arguments();
  set_depth(*result);
  return result;
}

ExpressionPtr Parser::filter(ExpressionPtr node) {
  ExpressionPtr result = make(Expression::Kind::filter, current().line);
  result->name = expect_name();
  while (skip_symbol(".")) result->name += "." + expect_name();
  result->items.push_back(std::move(node));
  result->call = is_symbol("(") ? call_arguments() : std::make_unique<CallSyntax>();
  result->filter = find_filter(result->name);
  if (!result->filter && !lenient_)
    unknown_.emplace_back(result->line, fmt::format("No filter named '{}'.", result->name));
  set_depth(*result);
  return result;
}

ExpressionPtr Parser::test(ExpressionPtr node) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExpressionPtr result = make(Expression::Kind::test, line);
  result->name = expect_name();
  while (skip_symbol(".")) result->name += "." + expect_name();
  result->items.push_back(std::move(node));
  result->call = std::make_unique<CallSyntax>();
  if (is_symbol("(")) {
    result->call = call_arguments();
  } else if ((is(Token::Kind::name) || is(Token::Kind::text) || is(Token::Kind::integer) ||
              is(Token::Kind::real) || is_symbol("[") || is_symbol("{")) &&
             !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) syntax_error(line, "tests cannot be chained with is");
    Nested nested(*this);
    result->call->positional.push_back(postfix(primary()));
  }
  result->test = find_test(result->name);
  if (!result->test && !lenient_)
    unknown_.emplace_back(line, fmt::format("No test named '{}'.", result->name));
  set_depth(*result);
  return negated ? make(Expression::Kind::logical_not, line, std::move(result)) : std::move(result);
}

}  // namespace megatron::chat
