#include "megatron/tokenizers/chat/percent_format.h"

#include <cmath>

#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/number_format.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

class PercentFormat {
 public:
  PercentFormat(Runtime& runtime, std::string_view format, const Value& arguments)
      : runtime_(runtime), format_(format), arguments_(arguments), out_(runtime.budget) {}

  std::string run() {
    while (at_ < format_.size()) {
      const size_t percent = format_.find('%', at_);
      out_.add(format_.substr(at_, percent - at_));
      if (percent == std::string_view::npos) break;
      at_ = percent + 1;
      convert();
    }
    const bool tuple = arguments_.is(Value::Kind::tuple);
    const size_t given = tuple ? arguments_.items().size() : 1;
    // Python counts whatever has items by key or index as a mapping, of which nothing need be used.
    const bool mapping = arguments_.is_dict() || arguments_.is(Value::Kind::list) ||
                         arguments_.is_undefined() || arguments_.object_as<Range>();
    if (taken_ < given && !mapping) fault("not all arguments converted during string formatting");
    return out_.take();
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) fault("incomplete format");
    return format_[at_];
  }

  Value next_argument() {
    if (arguments_.is(Value::Kind::tuple)) {
      if (taken_ >= arguments_.items().size()) fault("not enough arguments for format string");
      return arguments_.items()[taken_++];
    }
    if (taken_++ > 0) fault("not enough arguments for format string");
    return arguments_;
  }

  int64_t number() {
    int64_t value = 0;
    while (at_ < format_.size() && format_[at_] >= '0' && format_[at_] <= '9') {
      value = value * 10 + (format_[at_++] - '0');
      if (value > 1'000'000'000) fault("a width or precision is too large");
    }
    return value;
  }

  void convert() {
    runtime_.budget.step();
    Value named;
    bool has_name = false;
    if (peek() == '(') {
      const size_t close = format_.find(')', at_);
      if (close == std::string_view::npos) fault("incomplete format key");
      if (!arguments_.is_dict()) fault("format requires a mapping");
      const Value* found = find_key(runtime_, *arguments_.dict(),
                                    runtime_.text(std::string(format_.substr(at_ + 1, close - at_ - 1))));
      if (!found) fault("the key of a format is not in its mapping");
      named = *found;
      has_name = true;
      at_ = close + 1;
    }
    FormatSpec spec;
    bool left = false;
    for (;; ++at_) {
      const char flag = peek();
      if (flag == '-') {
        left = true;
      } else if (flag == '+') {
        spec.sign = '+';
      } else if (flag == ' ') {
        if (spec.sign != '+') spec.sign = ' ';
      } else if (flag == '#') {
        spec.alternate = true;
      } else if (flag == '0') {
        spec.zero = true;
      } else {
        break;
      }
    }
    if (peek() == '*') {
      ++at_;
      spec.width = to_integer(next_argument());
      if (spec.width < 0) left = true, spec.width = spec.width == INT64_MIN ? INT64_MAX : -spec.width;
    } else {
      spec.width = number();
    }
    if (peek() == '.') {
      ++at_;
      if (peek() == '*') {
        ++at_;
        spec.precision = std::max<int64_t>(to_integer(next_argument()), 0);
      } else {
        spec.precision = number();
      }
    }
    if (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;
    const char type = peek();
    ++at_;
    if (type == '%') return out_.add('%');
    if (left) spec.align = '<', spec.zero = false;
    write(type, spec, has_name ? named : next_argument());
  }

  void write(char type, FormatSpec spec, const Value& value) {
    const bool as_text = type == 's' || type == 'r' || type == 'a';
    if (as_text || type == 'c') {
      spec.zero = spec.alternate = false;
      spec.sign = 0;
      if (!spec.align) spec.align = '>';
    }
    if (as_text)
      return out_.add(
          format_text(runtime_, type == 's' ? to_text(runtime_, value) : to_repr(runtime_, value), spec));
    if (type == 'c' && value.is_text()) {
      if (length(value) != 1) fault("%c requires int or char");
      return out_.add(format_text(runtime_, value.text(), spec));
    }
    if (value.is_undefined()) fault("{}", value.undefined().message);
    if (!value.is_number()) fault("%{} format: a number is required, not {}", type, type_name(value));
    switch (type) {
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
      case 'c': {
        if (!value.is_integral() && type != 'd' && type != 'i' && type != 'u')
          fault("%{} format: an integer is required, not {}", type, type_name(value));
        if (!std::isfinite(value.real()) || std::abs(value.real()) >= 9.2e18)
          fault("%{} format: the number is too large", type);
        const int64_t whole = value.is_integral() ? value.integer() : static_cast<int64_t>(value.real());
        spec.type = type == 'i' || type == 'u' ? 'd' : type;
        const int64_t digits = spec.precision;
        spec.precision = -1;
        if (digits >= 0 && type != 'c') return out_.add(with_digits(spec, whole, digits));
        return out_.add(format_integer(runtime_, whole, spec));
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        spec.type = type;
        return out_.add(format_real(runtime_, value.real(), spec));
      default:
        fault("unsupported format character '{}'", type);
    }
  }

  // An integer with at least so many digits.
  std::string with_digits(const FormatSpec& spec, int64_t whole, int64_t digits) {
    FormatSpec inner = spec;
    inner.width = digits + (whole < 0 || spec.sign) + (spec.alternate ? 2 : 0);
    inner.zero = true;
    inner.align = 0;
    FormatSpec outer = spec;
    outer.type = outer.sign = 0;
    outer.alternate = false;
    outer.precision = -1;
    if (!outer.align) outer.align = '>';
    if (spec.zero && spec.width > inner.width)
      return format_integer(runtime_, whole, [&] {
        inner.width = spec.width;
        return inner;
      }());
    return format_text(runtime_, format_integer(runtime_, whole, inner), outer);
  }

  Runtime& runtime_;
  std::string_view format_;
  const Value& arguments_;
  TextBuilder out_;
  size_t at_ = 0, taken_ = 0;
};

}  // namespace

Value percent_format(Runtime& runtime, const Value& format, const Value& arguments) {
  return runtime.text(PercentFormat(runtime, format.text(), arguments).run(), format.markup());
}

}  // namespace megatron::chat
