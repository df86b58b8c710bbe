#include <algorithm>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/tokenizers/regex/regex_analysis.h"
#include "megatron/tokenizers/regex/regex_program.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr uint32_t kNoEnd = std::numeric_limits<uint32_t>::max();
constexpr size_t kMaxSteps = 20000;
constexpr int kMaxDepth = 100;

using Steps = std::vector<RegexStep>;

// Recursive descent; each function returns steps whose jumps count from their own beginning.
class Compiler {
 public:
  explicit Compiler(std::string_view pattern) : pattern_(pattern) {
    if (!is_utf8(pattern)) stop("is not UTF-8");
  }

  RegexProgram compile() {
    Steps steps = alternatives();
    if (at_ < pattern_.size()) stop("has an unmatched ')'");
    steps.push_back({RegexStep::match});
    program_.steps = std::move(steps);
    if (uses_words_) program_.words = CharSet::word_characters(false);
    find_first(program_);
    return std::move(program_);
  }

 private:
  [[noreturn]] void stop(std::string_view what) const {
    fail("regular expression '{}': {} (at byte {})", pattern_, what, at_);
  }

  bool more() const { return at_ < pattern_.size(); }
  char peek() const { return more() ? pattern_[at_] : '\0'; }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t next_point() {
    if (!more()) stop("ends too early");
    const Utf8Char c = decode_utf8(pattern_.substr(at_));
    at_ += c.length;
    return c.point;
  }

  void append(Steps& steps, const Steps& more) {
    const auto base = static_cast<uint32_t>(steps.size());
    if (base + more.size() > kMaxSteps) stop("is too large");
    for (RegexStep step : more) {
      if (step.kind == RegexStep::split || step.kind == RegexStep::jump) step.a += base, step.b += base;
      if (step.kind >= RegexStep::look_ahead && step.kind <= RegexStep::atomic) step.a += base;
      steps.push_back(step);
    }
  }

  Steps alternatives() {
    if (++depth_ > kMaxDepth) stop("nests too deep");
    const bool outer_case = ignore_case_;
    Steps steps = sequence();
    if (peek() == '|' && more()) {
      ++at_;
      const Steps rest = alternatives_rest();
      Steps both{{RegexStep::split, 1, static_cast<uint32_t>(steps.size() + 2)}};
      append(both, steps);
      both.push_back({RegexStep::jump, static_cast<uint32_t>(steps.size() + 2 + rest.size())});
      append(both, rest);
      steps = std::move(both);
    }
    ignore_case_ = outer_case;
    --depth_;
    return steps;
  }

  // Alternatives behind the first, joined from the back so that depth does not grow with their number.
  Steps alternatives_rest() {
    std::vector<Steps> branches{sequence()};
    while (more() && peek() == '|') {
      ++at_;
      branches.push_back(sequence());
    }
    Steps steps = std::move(branches.back());
    for (size_t i = branches.size() - 1; i-- > 0;) {
      Steps both{{RegexStep::split, 1, static_cast<uint32_t>(branches[i].size() + 2)}};
      append(both, branches[i]);
      both.push_back({RegexStep::jump, static_cast<uint32_t>(branches[i].size() + 2 + steps.size())});
      append(both, steps);
      steps = std::move(both);
    }
    return steps;
  }

  Steps sequence() {
    Steps steps;
    while (more() && peek() != '|' && peek() != ')') append(steps, quantified());
    return steps;
  }

  Steps quantified() {
    Steps body = atom();
    while (more()) {
      uint32_t min = 0, max = kNoEnd;
      const size_t before = at_;
      const bool bounded = peek() == '{';
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (!(take("{") && bounds(min, max))) {
        at_ = before;
        break;
      }
      // As Oniguruma reads it, '+' behind bounds repeats what they made.
      const bool lazy = take("?"), own = !lazy && !bounded && take("+");
      body = repeated(std::move(body), min, max, lazy, own);
    }
    return body;
  }

  std::optional<uint32_t> number() {
    uint32_t value = 0;
    const size_t before = at_;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<uint32_t>(pattern_[at_++] - '0');
      if (value > 1000) stop("repeats too often");
    }
    return at_ == before ? std::nullopt : std::optional(value);
  }

  bool bounds(uint32_t& min, uint32_t& max) {
    const auto low = number();
    min = low.value_or(0);
    if (take("}")) {
      max = min;
      return low.has_value();
    }
    if (!take(",")) return false;
    const auto high = number();
    max = high.value_or(kNoEnd);
    if (!take("}") || (!low && !high)) return false;
    if (max < min) stop("has a quantifier whose bounds are swapped");
    return true;
  }

  Steps repeated(Steps body, uint32_t min, uint32_t max, bool lazy, bool own) {
    if (body.size() == 1 && body[0].kind == RegexStep::character) {
      const auto kind = own ? RegexStep::repeat_own : lazy ? RegexStep::repeat_lazy : RegexStep::repeat;
      return {{kind, body[0].a, 0, min, max}};
    }
    Steps steps;
    for (uint32_t i = 0; i < min; ++i) append(steps, body);
    const auto choice = [&](uint32_t in, uint32_t out) {
      return RegexStep{RegexStep::split, lazy ? out : in, lazy ? in : out};
    };
    const auto size = static_cast<uint32_t>(body.size());
    if (max == kNoEnd) {
      if (can_be_empty(body)) stop("repeats what may be empty");
      Steps loop{choice(1, size + 2)};
      append(loop, body);
      loop.push_back({RegexStep::jump, 0});
      append(steps, loop);
    } else {
      Steps rest;
      for (uint32_t i = min; i < max; ++i) {
        Steps one{choice(1, static_cast<uint32_t>(1 + size + rest.size()))};
        append(one, body);
        append(one, rest);
        rest = std::move(one);
      }
      append(steps, rest);
    }
    if (!own) return steps;
    steps.push_back({RegexStep::match});
    Steps atomic{{RegexStep::atomic, static_cast<uint32_t>(steps.size() + 1)}};
    append(atomic, steps);
    return atomic;
  }

  Steps one_of(CharSet set) {
    if (ignore_case_) set.ignore_case();
    program_.sets.push_back(std::move(set));
    if (program_.sets.size() > 300) stop("has too many classes");
    return {{RegexStep::character, static_cast<uint32_t>(program_.sets.size() - 1)}};
  }

  Steps body_of(RegexStep::Kind kind) {
    Steps body = alternatives();
    if (!take(")")) stop("has an open group");
    body.push_back({RegexStep::match});
    Steps steps{{kind, static_cast<uint32_t>(body.size() + 1)}};
    append(steps, body);
    return steps;
  }

  Steps behind(RegexStep::Kind kind) {
    const Steps body = alternatives();
    if (!take(")")) stop("has an open group");
    if (body.size() != 1 || body[0].kind != RegexStep::character)
      stop("looks back by more than one character");
    return {{kind, 1, body[0].a}};
  }

  Steps group() {
    if (take("?=")) return body_of(RegexStep::look_ahead);
    if (take("?!")) return body_of(RegexStep::not_ahead);
    if (take("?<=")) return behind(RegexStep::look_behind);
    if (take("?<!")) return behind(RegexStep::not_behind);
    if (take("?>")) return body_of(RegexStep::atomic);
    const bool outer_case = ignore_case_;
    if (take("?i)")) {
      ignore_case_ = true;  // until the group around it ends
      return {};
    }
    if (take("?i:"))
      ignore_case_ = true;
    else if (take("?-i:"))
      ignore_case_ = false;
    else if (!take("?:") && peek() == '?')
      stop("has a group of a kind that is not known");
    Steps body = alternatives();
    if (!take(")")) stop("has an open group");
    ignore_case_ = outer_case;
    return body;
  }

  Steps atom() {
    if (take("(")) return group();
    if (take("[")) return one_of(char_class());
    if (take(".")) {
      CharSet set = CharSet::all();
      CharSet line;
      line.add('\n');
      line.invert();
      set.intersect(line);
      return one_of(std::move(set));
    }
    if (take("^")) return {{RegexStep::line_begin}};
    if (take("$")) return {{RegexStep::line_end}};
    if (take("\\")) {
      if (take("A")) return {{RegexStep::text_begin}};
      if (take("z")) return {{RegexStep::text_end}};
      if (peek() == 'b' || peek() == 'B') {
        uses_words_ = true;
        return {{pattern_[at_++] == 'b' ? RegexStep::word_border : RegexStep::no_word_border}};
      }
      return one_of(escaped(false));
    }
    if (peek() == '*' || peek() == '+' || peek() == '?') stop("has a quantifier of nothing");
    CharSet set;
    set.add(next_point());
    return one_of(std::move(set));
  }

  char32_t hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'                 ? c - '0'
                        : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                             : -1;
      if (digit < 0) stop("has a malformed hexadecimal escape");
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    return value;
  }

  // What stands behind a backslash, as a set. A single character is left in `last_`.
  CharSet escaped(bool in_class) {
    CharSet set;
    last_.reset();
    const char32_t c = next_point();
    const auto either = [&](CharSet named, bool inverted) {
      if (inverted) named.invert();
      return named;
    };
    switch (c) {
      case 's':
      case 'S':
        return either(CharSet::spaces(), c == 'S');
      case 'd':
      case 'D':
        return either(CharSet::digits(), c == 'D');
      case 'w':
      case 'W':
        return either(CharSet::word_characters(in_class), c == 'W');
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'n':
        last_ = '\n';
        break;
      case 'r':
        last_ = '\r';
        break;
      case 't':
        last_ = '\t';
        break;
      case 'f':
        last_ = '\f';
        break;
      case 'v':
        last_ = '\v';
        break;
      case 'a':
        last_ = '\a';
        break;
      case 'e':
        last_ = 27;
        break;
      case '0':
        last_ = 0;
        break;
      case 'u':
        last_ = hexadecimal(4);
        break;
      case 'x':
        if (take("{")) {
          const size_t end = pattern_.find('}', at_);
          if (end == std::string_view::npos || end - at_ > 6) stop("has a malformed hexadecimal escape");
          last_ = hexadecimal(end - at_);
          ++at_;
        } else {
          last_ = hexadecimal(2);
        }
        break;
      default:
        if ((c < 128 && ((c | 32) >= 'a' && (c | 32) <= 'z')) || (c >= '1' && c <= '9')) {
          --at_;
          stop("has an escape that is not known");
        }
        last_ = c;
    }
    if (*last_ >= CharSet::kPoints) stop("names a character beyond Unicode");
    set.add(*last_);
    return set;
  }

  CharSet property(bool inverted) {
    std::string_view name;
    if (take("{")) {
      if (take("^")) inverted = !inverted;
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) stop("has an open \\p{");
      name = pattern_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      name = pattern_.substr(at_, 1);
      next_point();
    }
    CharSet set = CharSet::property(name);
    if (inverted) set.invert();
    return set;
  }

  CharSet posix_class() {
    if (take("space:]")) return CharSet::spaces();
    if (take("word:]")) return CharSet::word_characters(true);
    if (take("digit:]")) return CharSet::digits();
    if (take("cntrl:]")) return CharSet::property("Cc");
    if (!take("punct:]")) stop("has a POSIX class that is not known");
    CharSet set = CharSet::property("P");
    set.add(CharSet::property("S"));
    return set;
  }

  // Behind '['.
  CharSet char_class() {
    if (++depth_ > kMaxDepth) stop("nests too deep");
    const bool inverted = take("^");
    CharSet set;
    std::optional<CharSet> left;  // of &&
    const auto close = [&] {
      if (left) set.intersect(*left);
      left.reset();
    };
    for (bool first = true;; first = false) {
      if (!more()) stop("has an open class");
      if (!first && take("]")) break;
      if (take("&&")) {
        close();
        left = std::move(set);
        set = CharSet();
        continue;
      }
      last_.reset();
      if (take("[:")) {
        set.add(posix_class());
        continue;
      }
      if (take("[")) {
        set.add(char_class());
        continue;
      }
      if (take("\\"))
        set.add(escaped(true));
      else
        set.add(*(last_ = next_point()));
      if (last_ && peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        const char32_t low = *last_;
        ++at_;
        if (take("\\"))
          escaped(true);
        else
          last_ = next_point();
        if (!last_ || *last_ < low) stop("has a class with a malformed range");
        set.add_range(low, *last_);
      }
    }
    close();
    if (ignore_case_) set.ignore_case();
    if (inverted) set.invert();
    --depth_;
    return set;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ignore_case_ = false, uses_words_ = false;
  std::optional<char32_t> last_;
  RegexProgram program_;
};

}  // namespace

RegexProgram compile_regex(std::string_view pattern) { return Compiler(pattern).compile(); }

}  // namespace megatron::tokenizers
