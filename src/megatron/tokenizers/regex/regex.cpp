#include "megatron/tokenizers/regex/regex.h"

#include "megatron/base/error.h"
#include "megatron/tokenizers/regex/regex_program.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kNoMatch = static_cast<size_t>(-1);

// Runs a program with a stack of the places to which it can go back.
class Matcher {
 public:
  Matcher(const RegexProgram& program, std::string_view text)
      : program_(program), text_(text), budget_(100000 + 1000 * text.size()) {}

  // The end of a match that begins at `at`, with the step to begin with; kNoMatch where there is none.
  size_t run(uint32_t step, size_t at) {
    const size_t floor = stack_.size();
    stack_.push_back({step, at, at, false});
    size_t end = kNoMatch;
    while (stack_.size() > floor) {
      Choice& choice = stack_.back();
      const uint32_t next = choice.step;
      const size_t place = choice.at;
      if (choice.at == choice.until) {
        stack_.pop_back();
      } else if (choice.lazy) {
        choice.at = next_place(choice.at);  // a lazy run takes one more
      } else {
        choice.at = previous_place(choice.at);  // a greedy run gives one back
      }
      end = advance(next, place);
      if (end != kNoMatch) break;
    }
    stack_.resize(floor);
    return end;
  }

 private:
  // The step to try at place `at`, and then at each place on the way to `until`.
  struct Choice {
    uint32_t step;
    size_t at, until;
    bool lazy;
  };

  size_t next_place(size_t at) const { return at + decode_utf8(text_.substr(at)).length; }
  size_t previous_place(size_t at) const {
    do {
      --at;
    } while (at > 0 && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80);
    return at;
  }
  bool in(uint32_t set, char32_t point) const { return program_.sets[set].contains(point); }
  bool word_at(size_t at) const {
    return at < text_.size() && program_.words.contains(decode_utf8(text_.substr(at)).point);
  }
  bool word_before(size_t at) const { return at > 0 && word_at(previous_place(at)); }

  // Follows steps until a match or a dead end.
  size_t advance(uint32_t i, size_t at) {
    for (;;) {
      if (budget_-- == 0) fail("regular expression: a text of {} bytes takes too many steps", text_.size());
      const RegexStep& step = program_.steps[i];
      switch (step.kind) {
        case RegexStep::match:
          return at;
        case RegexStep::character: {
          if (at == text_.size()) return kNoMatch;
          const Utf8Char c = decode_utf8(text_.substr(at));
          if (!in(step.a, c.point)) return kNoMatch;
          at += c.length;
          break;
        }
        case RegexStep::repeat:
        case RegexStep::repeat_lazy:
        case RegexStep::repeat_own: {
          size_t least = at;
          uint32_t count = 0;
          while (count < step.max && at < text_.size()) {
            const Utf8Char c = decode_utf8(text_.substr(at));
            if (!in(step.a, c.point)) break;
            at += c.length;
            if (++count == step.min) least = at;
          }
          if (count < step.min) return kNoMatch;
          if (step.kind == RegexStep::repeat && least < at)
            stack_.push_back({i + 1, previous_place(at), least, false});
          if (step.kind == RegexStep::repeat_lazy && least < at) {
            stack_.push_back({i + 1, next_place(least), at, true});
            at = least;
          }
          break;
        }
        case RegexStep::split:
          stack_.push_back({step.b, at, at, false});
          i = step.a;
          continue;
        case RegexStep::jump:
          i = step.a;
          continue;
        case RegexStep::look_ahead:
        case RegexStep::not_ahead:
          if ((run(i + 1, at) != kNoMatch) != (step.kind == RegexStep::look_ahead)) return kNoMatch;
          i = step.a;
          continue;
        case RegexStep::look_behind:
        case RegexStep::not_behind: {
          const bool there = at > 0 && in(step.b, decode_utf8(text_.substr(previous_place(at))).point);
          if (there != (step.kind == RegexStep::look_behind)) return kNoMatch;
          i = step.a;
          continue;
        }
        case RegexStep::atomic:
          at = run(i + 1, at);
          if (at == kNoMatch) return kNoMatch;
          i = step.a;
          continue;
        case RegexStep::text_begin:
          if (at != 0) return kNoMatch;
          break;
        case RegexStep::text_end:
          if (at != text_.size()) return kNoMatch;
          break;
        case RegexStep::line_begin:
          if (at != 0 && text_[at - 1] != '\n') return kNoMatch;
          break;
        case RegexStep::line_end:
          if (at != text_.size() && text_[at] != '\n') return kNoMatch;
          break;
        case RegexStep::word_border:
        case RegexStep::no_word_border:
          if ((word_before(at) != word_at(at)) != (step.kind == RegexStep::word_border)) return kNoMatch;
          break;
      }
      ++i;
    }
  }

  const RegexProgram& program_;
  std::string_view text_;
  uint64_t budget_;
  std::vector<Choice> stack_;
};

std::optional<ByteRange> find_with(Matcher& matcher, const RegexProgram& program, std::string_view text,
                                   size_t at) {
  for (;;) {
    if (at < text.size()) {
      const Utf8Char c = decode_utf8(text.substr(at));
      if (!program.any_first && !program.first.contains(c.point)) {
        at += c.length;
        continue;
      }
    }
    const size_t end = matcher.run(0, at);
    if (end != kNoMatch) return ByteRange{static_cast<uint32_t>(at), static_cast<uint32_t>(end)};
    if (at >= text.size()) return std::nullopt;
    at += decode_utf8(text.substr(at)).length;
  }
}

}  // namespace

Regex::Regex(std::string_view pattern)
    : program_(std::make_shared<const RegexProgram>(compile_regex(pattern))) {}

std::optional<ByteRange> Regex::find(std::string_view text, size_t from) const {
  Matcher matcher(*program_, text);
  return find_with(matcher, *program_, text, from);
}

std::vector<ByteRange> Regex::find_all(std::string_view text) const {
  Matcher matcher(*program_, text);
  std::vector<ByteRange> matches;
  for (size_t at = 0; at <= text.size();) {
    const auto match = find_with(matcher, *program_, text, at);
    if (!match) break;
    const bool empty = match->begin == match->end;
    if (empty && !matches.empty() && match->end == matches.back().end) {
      at += at < text.size() ? decode_utf8(text.substr(at)).length : 1;
      continue;
    }
    matches.push_back(*match);
    at = match->end;
  }
  return matches;
}

}  // namespace megatron::tokenizers
