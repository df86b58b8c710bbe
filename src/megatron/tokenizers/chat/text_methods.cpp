// The methods of Python's str.
#include <algorithm>

#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/brace_format.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/split.h"
#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/text_methods.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

using Method = Value (*)(Runtime&, const Value& self, Arguments&);

template <Case to>
Value cased(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound(arguments, "case", {});
  runtime.budget.step(static_cast<int64_t>(self.text().size() / 4));
  return runtime.text(change_case(self.text(), to), self.markup());
}

template <bool left, bool right>
Value stripped(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "strip", {"chars"});
  std::string_view chars;
  if (bound.has_value(0)) chars = bound.text(0);
  runtime.budget.step(static_cast<int64_t>(self.text().size() / 16 * (1 + chars.size())));
  return runtime.text(std::string(strip(self.text(), bound.has_value(0) ? &chars : nullptr, left, right)),
                      self.markup());
}

// Whether all characters have a property, and there is one.
template <bool (*test)(char32_t)>
Value all_are(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound(arguments, "is", {});
  runtime.budget.step(static_cast<int64_t>(self.text().size() / 4));
  for (size_t at = 0; at < self.text().size();)
    if (!test(next_code_point(self.text(), at))) return Value(false);
  return Value(!self.text().empty());
}
bool is_ascii(char32_t point) { return point < 0x80; }

Value isascii(Runtime& runtime, const Value& self, Arguments& arguments) {
  return self.text().empty() ? Value(true) : all_are<is_ascii>(runtime, self, arguments);
}
Value isprintable(Runtime& runtime, const Value& self, Arguments& arguments) {
  return self.text().empty() ? Value(true) : all_are<is_printable>(runtime, self, arguments);
}
Value islower(Runtime&, const Value& self, Arguments&) { return Value(is_lower_text(self.text())); }
Value isupper(Runtime&, const Value& self, Arguments&) { return Value(is_upper_text(self.text())); }

Value istitle(Runtime&, const Value& self, Arguments&) {
  bool cased = false, word = false;
  for (size_t at = 0; at < self.text().size();) {
    const char32_t point = next_code_point(self.text(), at);
    const bool up = is_upper(point) || is_title(point), low = is_lower(point);
    if (up ? word : low && !word) return Value(false);
    word = up || low;
    cased = cased || word;
  }
  return Value(cased);
}

Value isidentifier(Runtime&, const Value& self, Arguments&) {
  const std::string& bytes = self.text();
  for (size_t at = 0; at < bytes.size();) {
    const bool first = at == 0;
    const char32_t point = next_code_point(bytes, at);
    if (point != '_' && !(first ? is_alpha(point) : is_alnum(point))) return Value(false);
  }
  return Value(!bytes.empty());
}

// The part of a text that find, count and their kin look at, and where it begins.
struct Window {
  std::string_view bytes;
  size_t begin = 0;
  bool valid = true;
};
Window window(Runtime& runtime, const std::string& bytes, const Bound& bound, size_t start_at) {
  const int64_t size = count_code_points(bytes);
  runtime.budget.step(static_cast<int64_t>(bytes.size() / 8));
  auto at = [&](size_t i, int64_t otherwise) {
    if (!bound.has_value(i)) return otherwise;
    const int64_t given = to_integer(bound[i]);
    return given < 0 ? std::max<int64_t>(given + size, 0) : given;
  };
  const int64_t start = at(start_at, 0), stop = std::min(at(start_at + 1, size), size);
  if (start > stop) return {{}, 0, false};
  const size_t begin = byte_offset(bytes, start);
  return {
      std::string_view(bytes).substr(begin, byte_offset(std::string_view(bytes).substr(begin), stop - start)),
      begin, true};
}

template <bool from_end, bool must>
Value found(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "find", {"sub", "start", "end"}, 1);
  const std::string& sub = bound.text(0);
  const Window in = window(runtime, self.text(), bound, 1);
  const size_t at = !in.valid ? std::string_view::npos : from_end ? in.bytes.rfind(sub) : in.bytes.find(sub);
  if (at != std::string_view::npos)
    return Value(count_code_points(std::string_view(self.text()).substr(0, in.begin + at)));
  if (must) fault("substring not found");
  return Value(-1);
}

Value count(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "count", {"sub", "start", "end"}, 1);
  const std::string& sub = bound.text(0);
  const Window in = window(runtime, self.text(), bound, 1);
  if (!in.valid) return Value(0);
  if (sub.empty()) return Value(count_code_points(in.bytes) + 1);
  int64_t times = 0;
  for (size_t at = in.bytes.find(sub); at != std::string_view::npos; at = in.bytes.find(sub, at + sub.size()))
    ++times;
  return Value(times);
}

template <bool at_end>
Value has_affix(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, at_end ? "endswith" : "startswith", {"prefix", "start", "end"}, 1);
  const Window in = window(runtime, self.text(), bound, 1);
  auto fits = [&](const Value& affix) {
    if (!affix.is_text())
      fault("startswith and endswith want a str or a tuple of str, got {}", type_name(affix));
    return in.valid && (at_end ? in.bytes.ends_with(affix.text()) : in.bytes.starts_with(affix.text()));
  };
  if (!bound[0].is(Value::Kind::tuple)) return Value(fits(bound[0]));
  for (const Value& affix : bound[0].items())
    if (fits(affix)) return Value(true);
  return Value(false);
}

template <bool at_end>
Value without_affix(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "removeprefix", {"affix"}, 1);
  std::string_view bytes = self.text();
  const std::string& affix = bound.text(0);
  if (at_end ? bytes.ends_with(affix) : bytes.starts_with(affix))
    at_end ? bytes.remove_suffix(affix.size()) : bytes.remove_prefix(affix.size());
  return runtime.text(std::string(bytes), self.markup());
}

// `part` as it goes into `self`: markup escapes what is no markup.
std::string put_into(Runtime& runtime, const Value& self, const Value& part) {
  if (!self.markup() || part.markup()) return to_text(runtime, part);
  return escape_html(to_text(runtime, part));
}

Value replace(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "replace", {"old", "new", "count"}, 2);
  const std::string by = self.markup() ? put_into(runtime, self, bound[1]) : bound.text(1);
  return runtime.text(replaced(runtime, self.text(), bound.text(0), by, bound.integer_or(2, -1)),
                      self.markup());
}

Value joined(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "join", {"iterable"}, 1);
  TextBuilder out(runtime.budget);
  Cursor cursor(runtime, bound[0]);
  int64_t i = 0;
  for (Value item; cursor.next(item); ++i) {
    if (i > 0) out.add(self.text());
    if (!item.is_text() && !self.markup())
      fault("sequence item {}: expected str instance, {} found", i, type_name(item));
    out.add(put_into(runtime, self, item));
  }
  return runtime.text(out.take(), self.markup());
}

enum class Side { left, right, both };
template <Side pad_at>
Value padded(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "just", {"width", "fillchar"}, 1);
  const std::string fill = bound.has(1) ? bound.text(1) : " ";
  if (count_code_points(fill) != 1) fault("the fill character must be exactly one character long");
  const int64_t size = length(self), width = to_integer(bound[0]), pad = std::max<int64_t>(width - size, 0);
  const int64_t left = pad_at == Side::left ? pad : pad_at == Side::right ? 0 : pad / 2 + (pad & width & 1);
  TextBuilder out(runtime.budget);
  out.repeat(fill, left);
  out.add(self.text());
  out.repeat(fill, pad - left);
  return runtime.text(out.take(), self.markup());
}

Value zfill(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "zfill", {"width"}, 1);
  const bool sign = self.text().starts_with('+') || self.text().starts_with('-');
  TextBuilder out(runtime.budget);
  if (sign) out.add(self.text()[0]);
  out.repeat("0", to_integer(bound[0]) - length(self));
  out.add(std::string_view(self.text()).substr(sign));
  return runtime.text(out.take(), self.markup());
}

Value expandtabs(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "expandtabs", {"tabsize"});
  const int64_t size = bound.integer_or(0, 8);
  TextBuilder out(runtime.budget);
  int64_t column = 0;
  for (size_t at = 0; at < self.text().size();) {
    const size_t begin = at;
    const char32_t point = next_code_point(self.text(), at);
    if (point == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      out.repeat(" ", spaces);
      column += spaces;
    } else {
      out.add(std::string_view(self.text()).substr(begin, at - begin));
      column = point == '\n' || point == '\r' ? 0 : column + 1;
    }
  }
  return runtime.text(out.take(), self.markup());
}

template <bool from_end>
Value partition(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "partition", {"sep"}, 1);
  const std::string &bytes = self.text(), &sep = bound.text(0);
  if (sep.empty()) fault("empty separator");
  const size_t at = from_end ? bytes.rfind(sep) : bytes.find(sep);
  const Value none = runtime.text("");
  if (at == std::string::npos)
    return runtime.tuple(from_end ? Values{none, none, self} : Values{self, none, none});
  return runtime.tuple(
      {runtime.text(bytes.substr(0, at)), runtime.text(sep), runtime.text(bytes.substr(at + sep.size()))});
}

template <bool from_end>
Value split_method(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "split", {"sep", "maxsplit"});
  std::string_view sep;
  if (bound.has_value(0)) {
    sep = bound.text(0);
    if (sep.empty()) fault("empty separator");
  }
  Values parts;
  for (std::string_view part : split(runtime.budget, self.text(), bound.has_value(0) ? &sep : nullptr,
                                     bound.integer_or(1, -1), from_end))
    parts.push_back(runtime.text(std::string(part), self.markup()));
  return runtime.list(std::move(parts));
}

Value splitlines(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "splitlines", {"keepends"});
  Values parts;
  for (std::string_view part : split_lines(runtime.budget, self.text(), bound.truth_or(0, false)))
    parts.push_back(runtime.text(std::string(part), self.markup()));
  return runtime.list(std::move(parts));
}

Value format(Runtime& runtime, const Value& self, Arguments& arguments) {
  return runtime.text(brace_format(runtime, self.text(), arguments));
}

struct NamedMethod {
  std::string_view name;
  Method method;
};
constexpr NamedMethod kMethods[] = {
    {"capitalize", cased<Case::capitalize>},
    {"casefold", cased<Case::fold>},
    {"center", padded<Side::both>},
    {"count", count},
    {"endswith", has_affix<true>},
    {"expandtabs", expandtabs},
    {"find", found<false, false>},
    {"format", format},
    {"index", found<false, true>},
    {"isalnum", all_are<is_alnum>},
    {"isalpha", all_are<is_alpha>},
    {"isascii", isascii},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"isidentifier", isidentifier},
    {"islower", islower},
    {"isnumeric", all_are<is_numeric>},
    {"isprintable", isprintable},
    {"isspace", all_are<is_space>},
    {"istitle", istitle},
    {"isupper", isupper},
    {"join", joined},
    {"ljust", padded<Side::right>},
    {"lower", cased<Case::lower>},
    {"lstrip", stripped<true, false>},
    {"partition", partition<false>},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"replace", replace},
    {"rfind", found<true, false>},
    {"rindex", found<true, true>},
    {"rjust", padded<Side::left>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", stripped<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", has_affix<false>},
    {"strip", stripped<true, true>},
    {"swapcase", cased<Case::swap>},
    {"title", cased<Case::title>},
    {"upper", cased<Case::upper>},
    {"zfill", zfill},
};

}  // namespace

bool is_lower_text(std::string_view bytes) {
  bool cased = false;
  for (size_t at = 0; at < bytes.size();) {
    const char32_t point = next_code_point(bytes, at);
    if (is_upper(point) || is_title(point)) return false;
    cased = cased || is_lower(point);
  }
  return cased;
}

bool is_upper_text(std::string_view bytes) {
  bool cased = false;
  for (size_t at = 0; at < bytes.size();) {
    const char32_t point = next_code_point(bytes, at);
    if (is_lower(point) || is_title(point)) return false;
    cased = cased || is_upper(point);
  }
  return cased;
}

std::string replaced(Runtime& runtime, std::string_view bytes, std::string_view old, std::string_view fresh,
                     int64_t count) {
  TextBuilder out(runtime.budget);
  size_t at = 0;
  if (old.empty()) {  // before every character and at the end
    for (; count != 0; --count) {
      out.add(fresh);
      runtime.budget.step();
      if (at >= bytes.size()) return out.take();
      const size_t begin = at;
      next_code_point(bytes, at);
      out.add(bytes.substr(begin, at - begin));
    }
  } else {
    for (size_t found; count != 0 && (found = bytes.find(old, at)) != std::string_view::npos; --count) {
      out.add(bytes.substr(at, found - at));
      out.add(fresh);
      runtime.budget.step();
      at = found + old.size();
    }
  }
  out.add(bytes.substr(at));
  return out.take();
}

bool text_method(const Value& self, std::string_view name, Value& result) {
  const auto* found = std::lower_bound(std::begin(kMethods), std::end(kMethods), name,
                                       [](const NamedMethod& m, std::string_view n) { return m.name < n; });
  if (found == std::end(kMethods) || found->name != name) return false;
  result = make_function(method_name(name, "str"), [self, method = found->method](Runtime& r, Arguments& a) {
    return method(r, self, a);
  });
  return true;
}

}  // namespace megatron::chat
