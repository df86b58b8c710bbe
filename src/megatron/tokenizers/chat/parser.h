#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/chat/syntax.h"
#include "megatron/tokenizers/chat/token_reader.h"

namespace megatron::chat {

// Jinja's grammar by recursive descent: expressions in expression_parser.cpp, statements in parser.cpp.
class Parser : private TokenReader {
 public:
  explicit Parser(std::vector<Token> tokens) : TokenReader(std::move(tokens)) {}
  Block parse();

 private:
  // Expressions.
  ExpressionPtr make(Expression::Kind kind, int line) const;
  template <class... Items>
  ExpressionPtr make(Expression::Kind kind, int line, Items... items) const;
  ExpressionPtr expression(bool with_condition = true);
  ExpressionPtr conditional();
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr compare();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary();
  ExpressionPtr tuple(bool with_condition = true, bool in_parentheses = false);
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filters_and_tests(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr filter(ExpressionPtr node);  // behind its bar
  ExpressionPtr test(ExpressionPtr node);
  ExpressionPtr call(ExpressionPtr node);
  std::unique_ptr<CallSyntax> call_arguments();
  void set_depth(Expression& node) const;
  bool is_tuple_end() const;

  // Statements.
  Block block(
      std::initializer_list<std::string_view> ends);  // up to one of these names, which is current then
  Block body_until(
      std::initializer_list<std::string_view> ends);  // the same, behind the end of the tag that opens it
  Block whole_body(std::string_view end);             // the same, and drops the one end
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> if_statement();
  std::unique_ptr<Statement> for_statement();
  std::unique_ptr<Statement> set_statement();
  std::unique_ptr<Statement> with_statement();
  std::unique_ptr<Statement> macro_statement();
  std::unique_ptr<Statement> call_statement();
  std::unique_ptr<Statement> generation_statement();
  std::unique_ptr<Statement> filter_statement();
  std::unique_ptr<Statement> print_statement();
  std::unique_ptr<Statement> loop_control(Statement::Kind kind);
  Target target(bool with_attributes);
  Target single_target(bool with_attributes);
  void signature(MacroSyntax& macro);
  void macro_body(MacroSyntax& macro, std::string_view end);
  std::unique_ptr<Statement> make_statement(Statement::Kind kind) const;

  // One level of brackets or blocks.
  class Nested {
   public:
    explicit Nested(Parser& parser);
    ~Nested() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  int nesting_ = 0;
  int loops_ = 0;         // around the statement, within its macro
  bool lenient_ = false;  // inside a condition, where an unknown filter is an error only once it is reached
  std::vector<std::pair<int, std::string>>
      unknown_;                  // filters and tests that would be errors, with their lines
  std::set<std::string> names_;  // read since the innermost macro began
};

}  // namespace megatron::chat
