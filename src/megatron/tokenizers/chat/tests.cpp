// What `is` asks.
#include "megatron/tokenizers/chat/filters.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/text_methods.h"

namespace megatron::chat {
namespace {

const Value& other(Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) fault("the test takes one argument");
  return arguments.positional[0];
}
void no_arguments(Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.named.empty()) fault("the test takes no argument");
}

template <int remainder>
bool parity(Runtime& runtime, const Value& input, Arguments& arguments) {
  no_arguments(arguments);
  return equal(runtime, apply(runtime, BinaryOperator::modulo, input, Value(2)), Value(remainder));
}
bool divisibleby(Runtime& runtime, const Value& input, Arguments& arguments) {
  return equal(runtime, apply(runtime, BinaryOperator::modulo, input, other(arguments)), Value(0));
}
template <bool wanted>
bool is_defined(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.is_undefined() != wanted;
}
template <Value::Kind kind>
bool is_kind(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.is(kind);
}
template <bool wanted>
bool is_bool(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.is(Value::Kind::boolean) && input.boolean() == wanted;
}
bool is_number(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.is_number();
}
bool is_lower(Runtime& runtime, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), is_lower_text(to_text(runtime, input));
}
bool is_upper(Runtime& runtime, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), is_upper_text(to_text(runtime, input));
}
bool is_sequence(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.is_undefined() || input.is_text() || input.is_sequence() ||
                                      input.is_dict() || input.object_as<Range>();
}
bool iterable(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), is_iterable(input);
}
bool callable(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.is_undefined() || (input.is_object() && input.object().callable());
}
bool escaped(Runtime&, const Value& input, Arguments& arguments) {
  return no_arguments(arguments), input.markup();
}
bool sameas(Runtime& runtime, const Value& input, Arguments& arguments) {
  const Value& it = other(arguments);
  if (input.kind() != it.kind()) return false;
  if (input.identity()) return input.identity() == it.identity();
  return !input.is_undefined() && equal(runtime, input, it);
}
bool in(Runtime& runtime, const Value& input, Arguments& arguments) {
  return contains(runtime, other(arguments), input);
}
bool is_filter(Runtime& runtime, const Value& input, Arguments& arguments) {
  require_hashable(runtime, input);
  return no_arguments(arguments), input.is_text() && find_filter(input.text());
}
bool is_test(Runtime& runtime, const Value& input, Arguments& arguments) {
  require_hashable(runtime, input);
  return no_arguments(arguments), input.is_text() && find_test(input.text());
}
bool eq(Runtime& runtime, const Value& input, Arguments& arguments) {
  return equal(runtime, input, other(arguments));
}
bool ne(Runtime& runtime, const Value& input, Arguments& arguments) {
  return !equal(runtime, input, other(arguments));
}
bool lt(Runtime& runtime, const Value& input, Arguments& arguments) {
  return less(runtime, input, other(arguments));
}
bool le(Runtime& runtime, const Value& input, Arguments& arguments) {
  return less_or_equal(runtime, input, other(arguments));
}
bool gt(Runtime& runtime, const Value& input, Arguments& arguments) {
  return less(runtime, other(arguments), input);
}
bool ge(Runtime& runtime, const Value& input, Arguments& arguments) {
  return less_or_equal(runtime, other(arguments), input);
}

struct NamedTest {
  std::string_view name;
  TestFunction function;
};
constexpr NamedTest kTests[] = {
    {"odd", parity<1>},
    {"even", parity<0>},
    {"divisibleby", divisibleby},
    {"defined", is_defined<true>},
    {"undefined", is_defined<false>},
    {"filter", is_filter},
    {"test", is_test},
    {"none", is_kind<Value::Kind::none>},
    {"boolean", is_kind<Value::Kind::boolean>},
    {"false", is_bool<false>},
    {"true", is_bool<true>},
    {"integer", is_kind<Value::Kind::integer>},
    {"float", is_kind<Value::Kind::real>},
    {"lower", is_lower},
    {"upper", is_upper},
    {"string", is_kind<Value::Kind::text>},
    {"mapping", is_kind<Value::Kind::dict>},
    {"number", is_number},
    {"sequence", is_sequence},
    {"iterable", iterable},
    {"callable", callable},
    {"sameas", sameas},
    {"escaped", escaped},
    {"in", in},
    {"==", eq},
    {"eq", eq},
    {"equalto", eq},
    {"!=", ne},
    {"ne", ne},
    {">", gt},
    {"gt", gt},
    {"greaterthan", gt},
    {"ge", ge},
    {">=", ge},
    {"<", lt},
    {"lt", lt},
    {"lessthan", lt},
    {"<=", le},
    {"le", le},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const NamedTest& test : kTests)
    if (test.name == name) return test.function;
  return nullptr;
}

}  // namespace megatron::chat
