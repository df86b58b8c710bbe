#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/value.h"

namespace megatron::chat {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class Comparison { equal, unequal, less, less_or_equal, greater, greater_or_equal, in, not_in };

// The arguments of a call as they are written.
struct CallSyntax {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // *args, **kwargs
};

using FilterFunction = Value (*)(Runtime&, const Value& input, Arguments&);
using TestFunction = bool (*)(Runtime&, const Value& input, Arguments&);

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // name
    list,         // items
    tuple,        // items
    dict,         // items: key, value, key, value…
    attribute,    // items[0] . name
    item,         // items[0] [items[1]]
    slice,        // items[0] [items[1] : items[2] : items[3]], each of which may be null
    call,         // items[0] (call)
    filter,       // items[0] | name(call); items[0] is null for the text of a filter block
    test,         // items[0] is name(call)
    negative,     // - items[0]
    positive,     // + items[0]
    logical_not,  // not items[0]
    logical_and,  // items[0] and items[1]
    logical_or,   // items[0] or items[1]
    binary,       // items[0] binary items[1]
    concat,       // items joined by ~
    compare,      // items[0] comparisons[0] items[1] comparisons[1] …
    conditional,  // items[0] if items[1] else items[2], which may be null
  };
  Kind kind = Kind::constant;
  int line = 1;
  int depth = 1;         // levels of expressions, this one included
  bool bad_key = false;  // it is, or holds, a dict of literals with a key that is not hashable
  std::string name;
  Value value;
  std::vector<ExpressionPtr> items;
  std::unique_ptr<CallSyntax> call;
  BinaryOperator binary = BinaryOperator::add;
  std::vector<Comparison> comparisons;
  FilterFunction filter = nullptr;  // null: an unknown one, which may never be reached
  TestFunction test = nullptr;
};

// What is assigned to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name, attribute;
  bool is_tuple = false;
  std::vector<Target> parts;
  int line = 1;
};

// A macro, or the body of a call block.
struct MacroSyntax {
  std::string name;
  std::vector<std::string> arguments;
  std::vector<ExpressionPtr> defaults;  // of the last arguments
  Block body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Statement {
  enum class Kind {
    data,          // text
    print,         // expressions
    if_,           // expressions[i] ? blocks[i]; a block more than expressions is the else
    for_,          // target in expressions[0] if expressions[1] (may be null); blocks: body, else
    set,           // target = expressions[0]
    set_block,     // target = blocks[0], through expressions[0] where it is not null
    with,          // targets = expressions; blocks[0]
    macro,         // macro
    call,          // expressions[0] called with macro as its caller
    generation,    // macro's body, whose place in the output is told
    filter_block,  // expressions[0] applied to blocks[0]
    break_,
    continue_,
  };
  Kind kind = Kind::data;
  int line = 1;
  std::string text;
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> blocks;
  std::vector<Target> targets;
  std::shared_ptr<MacroSyntax> macro;
  bool recursive = false;  // of a for
};

// Parses a template; a TemplateError names the line.
Block parse(std::string_view source);

}  // namespace megatron::chat
