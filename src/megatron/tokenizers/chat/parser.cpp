#include "megatron/tokenizers/chat/parser.h"

#include <algorithm>

#include "megatron/tokenizers/chat/template_error.h"

namespace megatron::chat {

Block parse(std::string_view source) { return Parser(tokenize(source)).parse(); }

Block Parser::parse() {
  Block result = block({});
  if (!unknown_.empty()) syntax_error(unknown_[0].first, unknown_[0].second);
  return result;
}

std::unique_ptr<Statement> Parser::make_statement(Statement::Kind kind) const {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = current().line;
  return statement;
}

Block Parser::block(std::initializer_list<std::string_view> ends) {
  Nested nested(*this);
  Block result;
  for (;;) {
    if (is(Token::Kind::end)) {
      if (ends.size() > 0) unexpected(fmt::format("'{}'", *(ends.end() - 1)));
      return result;
    }
    if (is(Token::Kind::data)) {
      auto data = make_statement(Statement::Kind::data);
      data->text = take().text;
      result.push_back(std::move(data));
    } else if (is(Token::Kind::print_begin)) {
      take();
      auto print = make_statement(Statement::Kind::print);
      print->expressions.push_back(tuple());
      expect(Token::Kind::print_end, "'}}'");
      result.push_back(std::move(print));
    } else {
      expect(Token::Kind::block_begin, "'{%'");
      if (is(Token::Kind::name) && std::find(ends.begin(), ends.end(), current().text) != ends.end())
        return result;
      result.push_back(statement());
      expect(Token::Kind::block_end, "'%}'");
    }
  }
}

Block Parser::body_until(std::initializer_list<std::string_view> ends) {
  skip_symbol(":");
  expect(Token::Kind::block_end, "'%}'");
  return block(ends);
}

Block Parser::whole_body(std::string_view end) {
  Block result = body_until({end});
  take();
  return result;
}

std::unique_ptr<Statement> Parser::statement() {
  if (!is(Token::Kind::name)) unexpected("the name of a tag");
  const std::string& name = current().text;
  if (name == "if") return if_statement();
  if (name == "for") return for_statement();
  if (name == "set") return set_statement();
  if (name == "with") return with_statement();
  if (name == "macro") return macro_statement();
  if (name == "call") return call_statement();
  if (name == "generation") return generation_statement();
  if (name == "filter") return filter_statement();
  if (name == "print") return print_statement();
  if (name == "break") return loop_control(Statement::Kind::break_);
  if (name == "continue") return loop_control(Statement::Kind::continue_);
  for (std::string_view other : {"block", "extends", "include", "import", "from", "autoescape"})
    if (name == other)
      syntax_error(current().line, fmt::format("the tag '{}' has no place in a chat template", name));
  syntax_error(current().line, fmt::format("Encountered unknown tag '{}'.", name));
}

std::unique_ptr<Statement> Parser::if_statement() {
  auto result = make_statement(Statement::Kind::if_);
  const bool lenient = std::exchange(lenient_, true);
  do {
    take();  // if or elif
    result->expressions.push_back(tuple(false));
    result->blocks.push_back(body_until({"elif", "else", "endif"}));
  } while (is_name("elif"));
  if (take().text == "else") result->blocks.push_back(whole_body("endif"));
  lenient_ = lenient;
  return result;
}

std::unique_ptr<Statement> Parser::for_statement() {
  auto result = make_statement(Statement::Kind::for_);
  take();
  result->targets.push_back(target(false));
  if (!skip_name("in")) unexpected("'in'");
  result->expressions.push_back(tuple(false));
  const bool lenient = std::exchange(lenient_, false);
  result->expressions.push_back(skip_name("if") ? expression() : nullptr);
  result->recursive = skip_name("recursive");
  ++loops_;
  result->blocks.push_back(body_until({"endfor", "else"}));
  --loops_;
  const bool has_else = is_name("else");
  take();
  const int loops =
      std::exchange(loops_, result->recursive ? 0 : loops_);  // a recursive one is a function of its own
  result->blocks.push_back(has_else ? whole_body("endfor") : Block());
  loops_ = loops;
  lenient_ = lenient;
  return result;
}

std::unique_ptr<Statement> Parser::set_statement() {
  auto result = make_statement(Statement::Kind::set);
  take();
  result->targets.push_back(target(true));
  if (skip_symbol("=")) {
    result->expressions.push_back(tuple());
    return result;
  }
  result->kind = Statement::Kind::set_block;
  ExpressionPtr through;
  while (skip_symbol("|")) through = filter(std::move(through));
  result->expressions.push_back(std::move(through));
  result->blocks.push_back(whole_body("endset"));
  return result;
}

std::unique_ptr<Statement> Parser::with_statement() {
  auto result = make_statement(Statement::Kind::with);
  take();
  while (!is(Token::Kind::block_end) && !is_symbol(":")) {
    if (!result->targets.empty()) expect_symbol(",");
    result->targets.push_back(target(false));
    expect_symbol("=");
    result->expressions.push_back(expression());
  }
  const bool lenient = std::exchange(lenient_, false);
  result->blocks.push_back(whole_body("endwith"));
  lenient_ = lenient;
  return result;
}

void Parser::signature(MacroSyntax& macro) {
  const bool lenient = std::exchange(lenient_, false);
  expect_symbol("(");
  while (!is_symbol(")")) {
    if (!macro.arguments.empty()) expect_symbol(",");
    std::string name = expect_name();
    if (std::find(macro.arguments.begin(), macro.arguments.end(), name) != macro.arguments.end())
      syntax_error(current().line, fmt::format("the argument '{}' stands twice", name));
    macro.arguments.push_back(std::move(name));
    if (skip_symbol("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      syntax_error(current().line, "non-default argument follows default argument");
    }
  }
  expect_symbol(")");
  lenient_ = lenient;
}

void Parser::macro_body(MacroSyntax& macro, std::string_view end) {
  const std::set<std::string> outer = std::exchange(names_, {});
  const int loops = std::exchange(loops_, 0);
  const bool lenient = std::exchange(lenient_, false);
  macro.body = whole_body(end);
  macro.uses_caller = names_.contains("caller");
  macro.uses_varargs = names_.contains("varargs");
  macro.uses_kwargs = names_.contains("kwargs");
  names_.insert(outer.begin(), outer.end());
  loops_ = loops;
  lenient_ = lenient;
}

std::unique_ptr<Statement> Parser::macro_statement() {
  auto result = make_statement(Statement::Kind::macro);
  take();
  result->macro = std::make_shared<MacroSyntax>();
  result->macro->name = expect_name();
  signature(*result->macro);
  macro_body(*result->macro, "endmacro");
  return result;
}

std::unique_ptr<Statement> Parser::call_statement() {
  auto result = make_statement(Statement::Kind::call);
  take();
  result->macro = std::make_shared<MacroSyntax>();
  result->macro->name = "caller";
  if (is_symbol("(")) signature(*result->macro);
  result->expressions.push_back(expression());
  if (result->expressions[0]->kind != Expression::Kind::call) syntax_error(result->line, "expected call");
  macro_body(*result->macro, "endcall");
  return result;
}

std::unique_ptr<Statement> Parser::generation_statement() {
  auto result = make_statement(Statement::Kind::generation);
  take();
  result->macro = std::make_shared<MacroSyntax>();
  macro_body(*result->macro, "endgeneration");
  return result;
}

std::unique_ptr<Statement> Parser::filter_statement() {
  auto result = make_statement(Statement::Kind::filter_block);
  take();
  ExpressionPtr through = filter(nullptr);
  while (skip_symbol("|")) through = filter(std::move(through));
  result->expressions.push_back(std::move(through));
  result->blocks.push_back(whole_body("endfilter"));
  return result;
}

std::unique_ptr<Statement> Parser::print_statement() {
  auto result = make_statement(Statement::Kind::print);
  take();
  while (!is(Token::Kind::block_end)) {
    if (!result->expressions.empty()) expect_symbol(",");
    result->expressions.push_back(expression());
  }
  return result;
}

std::unique_ptr<Statement> Parser::loop_control(Statement::Kind kind) {
  if (loops_ == 0) syntax_error(current().line, fmt::format("'{}' outside loop", current().text));
  auto result = make_statement(kind);
  take();
  return result;
}

Target Parser::single_target(bool with_attributes) {
  Target result;
  result.line = current().line;
  if (skip_symbol("(")) {
    result = target(with_attributes);
    expect_symbol(")");
    return result;
  }
  result.name = expect_name();
  for (std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
    if (result.name == reserved) syntax_error(result.line, fmt::format("can't assign to '{}'", result.name));
  if (loops_ > 0 && result.name == "loop")
    syntax_error(result.line, "can't assign to the special loop variable");
  if (with_attributes && skip_symbol(".")) result.attribute = expect_name();
  return result;
}

Target Parser::target(bool with_attributes) {
  Nested nested(*this);
  Target result;
  result.line = current().line;
  while (!is_tuple_end()) {
    result.parts.push_back(single_target(with_attributes));
    if (!is_symbol(",")) break;
    take();
    result.is_tuple = true;
  }
  if (result.parts.empty()) unexpected("a name to assign to");
  if (result.is_tuple) return result;
  Target only = std::move(result.parts[0]);
  return only;
}

}  // namespace megatron::chat
