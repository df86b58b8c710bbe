// The functions that every template has.
#include <ctime>

#include "megatron/tokenizers/chat/interpreter.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {
namespace {

// dict(mapping or pairs, **named).
ValuePairs dict_pairs(Runtime& runtime, Arguments& arguments, std::string_view function) {
  if (arguments.positional.size() > 1)
    fault("{} expected at most 1 argument, got {}", function, arguments.positional.size());
  ValuePairs pairs;
  auto add = [&](Value key, Value value) {
    require_hashable(runtime, key);
    for (auto& [known, held] : pairs)
      if (equal(runtime, known, key)) return void(held = std::move(value));
    pairs.emplace_back(std::move(key), std::move(value));
  };
  // Python asks for keys(), which something undefined refuses, though it iterates as nothing.
  if (!arguments.positional.empty() && arguments.positional[0].is_undefined())
    fault("{}", arguments.positional[0].undefined().message);
  if (!arguments.positional.empty() && arguments.positional[0].is_dict()) {
    pairs = arguments.positional[0].pairs();
  } else if (!arguments.positional.empty()) {
    Cursor cursor(runtime, arguments.positional[0]);
    for (Value pair; cursor.next(pair);) {
      const Values both = to_values(runtime, pair);
      if (both.size() != 2) fault("a pair of {} has {} items; 2 is required", function, both.size());
      add(both[0], both[1]);
    }
  }
  for (auto& [name, value] : arguments.named) add(runtime.text(name), value);
  return pairs;
}

Value make_dict(Runtime& runtime, Arguments& arguments) {
  return runtime.dict(dict_pairs(runtime, arguments, "dict"));
}

Value make_namespace(Runtime& runtime, Arguments& arguments) {
  const ValuePairs pairs = dict_pairs(runtime, arguments, "namespace");
  Value result = runtime.make_namespace();
  for (const auto& [name, value] : pairs)
    if (name.is_text()) result.object_as<Namespace>()->set(runtime, name.text(), value);
  return result;
}

[[noreturn]] Value raise_exception(Runtime& runtime, Arguments& arguments) {
  Bound bound(arguments, "raise_exception", {"message"}, 1);
  throw TemplateError(to_text(runtime, bound[0]));
}

Value strftime_now(Runtime& runtime, Arguments& arguments) {
  Bound bound(arguments, "strftime_now", {"format"}, 1);
  const std::string& format = bound.text(0);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(runtime.now);
  std::tm now{};
  localtime_r(&seconds, &now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(runtime.now.time_since_epoch()).count() %
      1'000'000;
  TextBuilder out(runtime.budget);
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out.add(format[i]);
      continue;
    }
    std::string conversion = "%";
    while (++i < format.size() && std::string_view("-_0^#EO").find(format[i]) != std::string_view::npos &&
           conversion.size() < 4)
      conversion += format[i];
    if (i == format.size()) fault("strftime_now: a conversion has no letter");
    conversion += format[i];
    if (format[i] == 'f') {
      out.add(fmt::format("{:06}", micros));
    } else if (format[i] != 'z' && format[i] != 'Z') {  // a time without a zone
      char buffer[256];
      const bool known = std::isalpha(static_cast<unsigned char>(format[i])) || format[i] == '%';
      out.add(known ? std::string_view(buffer, std::strftime(buffer, sizeof buffer, conversion.c_str(), &now))
                    : std::string_view(conversion));
    }
  }
  return runtime.text(out.take());
}

// joiner(sep): empty when it is first called, then `sep`.
Value make_joiner(Runtime& runtime, Arguments& arguments) {
  Bound bound(arguments, "joiner", {"sep"});
  const Value separator = bound.value_or(0, runtime.text(", "));
  auto used = std::make_shared<bool>(false);
  return make_function(
      fmt::format("jinja2.utils.Joiner object{}", kAddress),
      [separator, used](Runtime& r, Arguments&) {
        return std::exchange(*used, true) ? separator : r.text("");
      },
      nesting_around({&separator}));
}

// cycler(a, b, …): next() gives one after the other.
class Cycler : public Object {
 public:
  Cycler(Values items, int nesting)
      : items_(std::move(items)), at_(std::make_shared<size_t>(0)), nesting_(nesting) {}
  std::string type_name() const override { return "Cycler"; }
  int nesting() const override { return nesting_; }
  bool attribute(Runtime&, std::string_view name, Value& result) override {
    if (name == "current") return result = items_[*at_], true;
    if (name != "next" && name != "reset") return false;
    result = make_function(
        fmt::format("bound method Cycler.{}", name),
        [items = items_, at = at_, resets = name == "reset"](Runtime&, Arguments&) {
          if (resets) return *at = 0, Value();
          Value item = items[*at];
          *at = (*at + 1) % items.size();
          return item;
        },
        nesting_);
    return true;
  }

 private:
  Values items_;
  std::shared_ptr<size_t> at_;
  int nesting_;
};

Value make_cycler(Runtime&, Arguments& arguments) {
  if (arguments.positional.empty()) fault("at least one item has to be provided");
  const int nesting = nesting_around(Value(), arguments);
  return Value(std::shared_ptr<Object>(std::make_shared<Cycler>(std::move(arguments.positional), nesting)));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  return {{"range", make_function(fmt::format("function safe_range{}", kAddress), make_range)},
          {"dict", make_function("class 'dict'", make_dict)},
          {"namespace", make_function("class 'jinja2.utils.Namespace'", make_namespace)},
          {"raise_exception",
           make_function(fmt::format("function raise_exception{}", kAddress), raise_exception)},
          {"strftime_now", make_function(fmt::format("function strftime_now{}", kAddress), strftime_now)},
          {"joiner", make_function("class 'jinja2.utils.Joiner'", make_joiner)},
          {"cycler", make_function("class 'jinja2.utils.Cycler'", make_cycler)}};
}

}  // namespace megatron::chat
