#include "megatron/inference/constraint/json_grammar.h"

#include <algorithm>

#include "megatron/base/refuse.h"
#include "megatron/inference/constraint/regex_grammar.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

using Part = Grammar::Part;

constexpr std::string_view kHex = "0123456789abcdef";

// Characters that stand in a string as they are.
const Grammar::Points& plain_characters() {
  static const Grammar::Points points = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
  return points;
}

Grammar::Points intersection(const Grammar::Points& a, const Grammar::Points& b) {
  Grammar::Points both;
  for (auto [first, last] : a)
    for (auto [from, to] : b)
      if (first <= to && last >= from) both.emplace_back(std::max(first, from), std::min(last, to));
  return both;
}

std::string escape_of(char32_t point) {
  switch (point) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return std::string("\\u00") + kHex[point >> 4] + kHex[point & 15];
  }
}

}  // namespace

// A rule that is made when it is first called; the rule is declared before, as values contain values.
Part JsonGrammar::shared(int& rule, Part (JsonGrammar::*make)()) {
  if (rule < 0) {
    rule = grammar_.declare_rule();
    const int own = rule;
    grammar_.define_rule(own, (this->*make)());
  }
  return grammar_.call(rule);
}

Part JsonGrammar::space() { return shared(space_, &JsonGrammar::make_space); }
Part JsonGrammar::any_value() { return shared(value_, &JsonGrammar::make_value); }
Part JsonGrammar::any_object() { return shared(object_, &JsonGrammar::make_object); }
Part JsonGrammar::any_string() { return shared(string_, &JsonGrammar::make_string); }
Part JsonGrammar::number() { return shared(number_, &JsonGrammar::make_number); }

Part JsonGrammar::make_space() {
  constexpr int64_t kIndentation = 32;
  const Part line =
      grammar_.sequence({grammar_.literal("\n"), grammar_.repeat(0, kIndentation, [&] {
                           return grammar_.alternatives({grammar_.literal(" "), grammar_.literal("\t")});
                         })});
  return grammar_.alternatives({grammar_.nothing(), grammar_.literal(" "), line});
}

Part JsonGrammar::make_value() {
  return grammar_.alternatives({any_object(), shared(array_, &JsonGrammar::make_array), any_string(),
                                number(), grammar_.literals({"true", "false", "null"})});
}

Part JsonGrammar::make_object() { return bracketed("{", {}, member(any_string(), any_value()), "}"); }
Part JsonGrammar::make_array() { return bracketed("[", {}, any_value(), "]"); }
Part JsonGrammar::make_string() {
  return grammar_.sequence(
      {grammar_.literal("\""), grammar_.repeat(0, -1, [&] { return character(); }), grammar_.literal("\"")});
}

Part JsonGrammar::make_number() {
  const auto digit = [&] { return grammar_.byte_range('0', '9'); };
  const Part whole = grammar_.alternatives(
      {grammar_.literal("0"),
       grammar_.sequence({grammar_.byte_range('1', '9'), grammar_.repeat(0, 17, digit)})});
  const Part fraction = grammar_.sequence({grammar_.literal("."), grammar_.repeat(1, 17, digit)});
  const Part exponent =
      grammar_.sequence({grammar_.literals({"e", "E"}), grammar_.optional(grammar_.literals({"+", "-"})),
                         grammar_.repeat(1, 2, digit)});
  return grammar_.sequence({grammar_.optional(grammar_.literal("-")), whole, grammar_.optional(fraction),
                            grammar_.optional(exponent)});
}

// Any character, as it is or escaped; halves of surrogate pairs never stand alone.
Part JsonGrammar::character() {
  const auto hex = [&] {
    return grammar_.alternatives(
        {grammar_.byte_range('0', '9'), grammar_.byte_range('a', 'f'), grammar_.byte_range('A', 'F')});
  };
  const auto one_of = [&](std::string_view bytes) {
    std::vector<std::string> texts;
    for (char byte : bytes) texts.emplace_back(1, byte);
    return grammar_.literals(texts);
  };
  const Part low = grammar_.sequence({one_of("0123456789abcefABCEF"), hex(), hex(), hex()});
  const Part below = grammar_.sequence({one_of("dD"), one_of("01234567"), hex(), hex()});
  const Part pair = grammar_.sequence({one_of("dD"), one_of("89abAB"), hex(), hex(), grammar_.literal("\\u"),
                                       one_of("dD"), one_of("cdefCDEF"), hex(), hex()});
  const Part escapes = grammar_.sequence(
      {grammar_.literal("\\"),
       grammar_.alternatives(
           {one_of("\"\\/bfnrt"),
            grammar_.sequence({grammar_.literal("u"), grammar_.alternatives({low, below, pair})})})});
  return grammar_.alternatives({grammar_.character(plain_characters()), escapes});
}

// A character out of `points`, escaped only where it has to be.
Part JsonGrammar::escaped_character(const Grammar::Points& points) {
  std::vector<Part> parts;
  if (const Grammar::Points plain = intersection(points, plain_characters()); !plain.empty())
    parts.push_back(grammar_.character(plain));
  std::vector<std::string> escapes;
  for (auto [first, last] : points)
    for (char32_t point = first; point <= last && point <= '\\'; ++point)
      if (point < 0x20 || point == '"' || point == '\\') escapes.push_back(escape_of(point));
  if (!escapes.empty()) parts.push_back(grammar_.literals(escapes));
  return grammar_.alternatives(parts);
}

Part JsonGrammar::string(int64_t min, int64_t max) {
  if (min == 0 && max < 0) return any_string();
  const int rule = grammar_.declare_rule();
  grammar_.define_rule(
      rule, grammar_.sequence({grammar_.literal("\""), grammar_.repeat(min, max, [&] { return character(); }),
                               grammar_.literal("\"")}));
  return grammar_.call(rule);
}

Part JsonGrammar::string_matching(std::string_view pattern) {
  const int rule = grammar_.declare_rule();
  const Part matched = regex_part(
      grammar_, pattern, [&](const Grammar::Points& points) { return escaped_character(points); }, true);
  grammar_.define_rule(rule, grammar_.sequence({grammar_.literal("\""), matched, grammar_.literal("\"")}));
  return grammar_.call(rule);
}

// The names are a tree of characters: a text leaves it with a character that no name has there, or ends
// between two names.
Part JsonGrammar::string_other_than(const std::set<std::string>& names) {
  const int rule = grammar_.declare_rule();
  const Part end = grammar_.literal("\"");
  const Part free =
      grammar_.sequence({grammar_.repeat(0, -1, [&] { return grammar_.character(plain_characters()); }),
                         grammar_.literal("\"")});
  // Texts that begin with `prefix`, as a part that ends behind the quotation mark.
  const auto below = [&](const auto& self, const std::string& prefix) -> Part {
    std::set<std::string> next;  // characters
    for (const std::string& name : names)
      if (name.size() > prefix.size() && name.starts_with(prefix))
        next.insert(name.substr(
            prefix.size(), tokenizers::decode_utf8(std::string_view(name).substr(prefix.size())).length));
    std::vector<Part> ways;
    Grammar::Points others = plain_characters();
    for (const std::string& character : next) {
      const char32_t point = tokenizers::decode_utf8(character).point;
      others = intersection(others, point == 0 ? Grammar::Points{{1, 0x10FFFF}}
                                               : Grammar::Points{{0, point - 1}, {point + 1, 0x10FFFF}});
      ways.push_back(grammar_.sequence({grammar_.literal(character), self(self, prefix + character)}));
    }
    // The parts behind are the same nodes for all, so the way there is a link, not a copy.
    ways.push_back(grammar_.sequence({grammar_.character(others), Part{free.begin, free.begin}}));
    if (!names.contains(prefix)) ways.push_back(Part{end.begin, end.begin});
    const Part all = grammar_.alternatives(ways);
    return {all.begin, all.begin};
  };
  const Part body = below(below, "");
  const Part quote = grammar_.literal("\"");
  const Part finish = grammar_.alternatives({free, end});
  grammar_.define_rule(rule, {grammar_.sequence({quote, body}).begin, finish.end});
  return grammar_.call(rule);
}

Part JsonGrammar::digits(int64_t min, int64_t max) {
  return grammar_.repeat(min, max, [&] { return grammar_.byte_range('0', '9'); });
}

// Digits from `low` to `high`, which have the same number of them.
Part JsonGrammar::between(std::string_view low, std::string_view high) {
  if (low.empty()) return grammar_.nothing();
  const auto count = static_cast<int64_t>(low.size()) - 1;
  const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
  if (low[0] == high[0])
    return grammar_.sequence({grammar_.literal(low.substr(0, 1)), between(low.substr(1), high.substr(1))});
  char first = low[0], last = high[0];
  std::vector<Part> parts;
  if (low.substr(1) != zeros) {
    parts.push_back(grammar_.sequence({grammar_.literal(low.substr(0, 1)), between(low.substr(1), nines)}));
    ++first;
  }
  if (high.substr(1) != nines) {
    parts.push_back(grammar_.sequence({grammar_.literal(high.substr(0, 1)), between(zeros, high.substr(1))}));
    --last;
  }
  if (first <= last)
    parts.push_back(
        grammar_.sequence({grammar_.byte_range(static_cast<uint8_t>(first), static_cast<uint8_t>(last)),
                           digits(count, count)}));
  return grammar_.alternatives(parts);
}

Part JsonGrammar::whole_between(int64_t low, int64_t high) {
  std::vector<Part> parts;
  int64_t begin = 0, end = 9;  // of the numbers with this many digits
  for (int length = 1; length <= 18 && begin <= high; ++length) {
    if (low <= end)
      parts.push_back(between(std::to_string(std::max(low, begin)), std::to_string(std::min(high, end))));
    begin = end + 1;
    if (length < 18) end = end * 10 + 9;
  }
  return grammar_.alternatives(parts);
}

Part JsonGrammar::integer(const NumberRange& range) {
  const int64_t low = range.min.value_or(-kMaxInteger) + (range.min && range.above_min ? 1 : 0);
  const int64_t high = range.max.value_or(kMaxInteger) - (range.max && range.below_max ? 1 : 0);
  require_input(low <= high, "JSON schema: no integer lies between its minimum and maximum");
  std::vector<Part> parts;
  if (high >= 0) parts.push_back(whole_between(std::max<int64_t>(low, 0), high));
  if (low < 0)
    parts.push_back(
        grammar_.sequence({grammar_.literal("-"), whole_between(std::max<int64_t>(-high, 1), -low)}));
  return grammar_.alternatives(parts);
}

// Numbers from low to high, both >= 0: whole parts below `high` with any fraction, and `high` itself.
Part JsonGrammar::magnitude(int64_t low, bool above, int64_t high, bool below) {
  constexpr int64_t kFraction = 17;
  std::vector<Part> parts;
  if (above && low < high)
    parts.push_back(grammar_.sequence({grammar_.literal(std::to_string(low) + "."), digits(0, kFraction - 1),
                                       grammar_.byte_range('1', '9')}));
  if (const int64_t first = low + (above ? 1 : 0); first < high)
    parts.push_back(grammar_.sequence(
        {whole_between(first, high - 1),
         grammar_.optional(grammar_.sequence({grammar_.literal("."), digits(1, kFraction)}))}));
  if (!below && (low < high || !above)) {
    const auto zero = [&] { return grammar_.literal("0"); };
    parts.push_back(grammar_.sequence({grammar_.literal(std::to_string(high)),
                                       grammar_.optional(grammar_.sequence(
                                           {grammar_.literal("."), grammar_.repeat(1, kFraction, zero)}))}));
  }
  require_input(!parts.empty(), "JSON schema: no number lies between its minimum and maximum");
  return grammar_.alternatives(parts);
}

Part JsonGrammar::number(const NumberRange& range) {
  const int64_t low = range.min.value_or(-kMaxInteger), high = range.max.value_or(kMaxInteger);
  require_input(low < high || (low == high && !range.above_min && !range.below_max),
                "JSON schema: no number lies between its minimum and maximum");
  std::vector<Part> parts;
  if (high > 0 || (high == 0 && !range.below_max))
    parts.push_back(magnitude(std::max<int64_t>(low, 0), low >= 0 && range.above_min, high, range.below_max));
  if (low < 0)
    parts.push_back(grammar_.sequence(
        {grammar_.literal("-"),
         magnitude(std::max<int64_t>(-high, 0), high <= 0 && range.below_max, -low, range.above_min)}));
  return grammar_.alternatives(parts);
}

Part JsonGrammar::member(Part key, Part value) {
  return grammar_.sequence({key, grammar_.literal(":"), space(), value});
}

// Nodes before member i: `first` where nothing is written yet, `next` behind a comma, `later` behind another
// member, where a comma or the end comes. A member is reached from the former two.
Part JsonGrammar::bracketed(std::string_view open, const std::vector<Member>& members,
                            const std::optional<Part>& more, std::string_view close, Optional optional) {
  const auto join = [&](const Part& from, const Part& to) { grammar_.sequence({{from.end, from.end}, to}); };
  const size_t count = members.size();
  size_t needed = 0;  // members up to the last that is required
  for (size_t i = 0; i < count; ++i)
    if (members[i].required) needed = i + 1;
  const Part begin = grammar_.sequence({grammar_.literal(open), space()});
  const Part end = grammar_.literal(close), blank = space();
  join(blank, end);
  Part first = grammar_.nothing(), next = grammar_.nothing();
  join(begin, first);
  for (size_t i = 0; i <= count; ++i) {
    if (i == count && !more) break;
    const Part later = grammar_.nothing();
    const Part& own = i < count ? members[i].part : *more;
    join(first, own);
    join(next, own);
    join(own, later);
    const Part comma = grammar_.sequence({grammar_.literal(","), space()});
    const bool is_last = i + 1 >= count && !more;
    if (!is_last) join(later, comma);
    if (i + 1 >= needed) join(later, blank);
    if (i == count) {
      join(comma, own);
      break;
    }
    const Part next_first = grammar_.nothing(), next_next = grammar_.nothing();
    join(comma, next_next);
    if (!members[i].required && optional == Optional::skipped) {
      join(first, next_first);
      join(next, next_next);
    } else if (i >= needed) {
      join(first, end);
    }
    first = next_first;
    next = next_next;
  }
  if (count == 0 || optional == Optional::skipped) join(first, end);
  return {begin.begin, end.end};
}

}  // namespace megatron
