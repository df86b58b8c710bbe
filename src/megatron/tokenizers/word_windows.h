#pragma once

#include "megatron/tokenizers/byte_classes.h"

namespace megatron::tokenizers {

// Finds where words begin, 64 bytes at a time: a word's begin depends on its neighbours' classes alone, so
// that all of a window follow from a few operations on masks, without a branch for each word. The rules of
// GPT-2, cl100k, Llama 3 and Qwen 2; scan_word() says the same word by word.
template <class Rules>
class WordWindows {
 public:
  static bool knows(const WordRules& rules) {
    return rules.letters != WordRules::Letters::cased && !rules.slashes;
  }

  // Begins at the text's begin, or at another place where a word begins.
  WordWindows(Rules rules, const ScannedText& text) : rules_(rules), text_(text) {}

  // Whether a window is left. What is behind the last one is for scan_word(), from the last begin on.
  bool more() const { return at_ + 64 < text_.size; }

  // Writes the begins of the words of the next window, at most 64, and returns how many there are.
  size_t next(size_t* begins) {
    unsigned count;
    const ByteClasses c = byte_classes(text_, at_, count);
    const uint64_t whole = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    const uint64_t symbol = ~(c.letter | c.number | c.space) & whole;
    const ClassedChar behind = classed_char(text_, at_ + count);
    const WordRules& rules = rules_;

    // Classes of the byte before each.
    const uint64_t after_letter = c.letter << 1 | before_.letter,
                   after_number = c.number << 1 | before_.number, after_symbol = symbol << 1 | before_.symbol,
                   after_space = c.space << 1 | before_.space,
                   after_line_end = c.line_end << 1 | before_.line_end,
                   after_blank = c.blank << 1 | before_.blank;

    // Symbols begin a word unless one or a blank stands before; a lone one takes letters behind it.
    const uint64_t symbol_begins = symbol & ~after_symbol & ~after_blank;
    uint64_t begins_here = symbol_begins, lone = symbol_begins;
    if (c.trail & symbol)
      for (int i = 0; i < 3; ++i) lone |= lone << 1 & c.trail;
    const bool prefixed = rules.letters == WordRules::Letters::prefixed;
    begins_here |= c.letter & ~after_letter &
                   ~(prefixed ? (after_space & ~after_line_end) | lone << 1 | before_.lone : after_blank);

    // Numbers.
    if (rules.digits == 0)
      begins_here |= c.number & ~after_number & ~after_blank;
    else if (rules.digits == 1)
      begins_here |= c.number & ~c.trail;
    else
      begins_here |= number_begins(c, after_number);

    // Ends of lines that belong to the symbols before them.
    uint64_t taken = 0;
    if (rules.line_ends) taken = c.line_end & ~(c.line_end + (c.line_end & (after_symbol | before_.taken)));
    const uint64_t after_taken = taken << 1 | before_.taken;
    // White space begins where it does not go on, and again at its last character before something else.
    begins_here |= c.space & ~taken & (~after_space | after_taken);
    const uint64_t before_space = c.space >> 1 | uint64_t{(behind.classes & kSpace) != 0} << (count - 1);
    uint64_t last = (rules.line_ends ? c.space & ~c.line_end : c.space) & ~before_space;
    for (uint64_t inner; (inner = last & c.trail) != 0;) last = (last & ~inner) | inner >> 1;
    begins_here |= last;
    // Behind the last end of a line of white space a word begins.
    if (rules.line_ends) {
      const uint64_t inside = c.space & ~c.line_end;
      for (uint64_t first = inside & after_line_end & ~after_taken; first != 0; first &= first - 1)
        if (!line_end_follows(inside, c.line_end, first & -first, count)) begins_here |= first & -first;
    }

    if (rules.contractions != WordRules::Contractions::none) {
      if (forced_ >= at_ && forced_ < at_ + count) begins_here |= uint64_t{1} << (forced_ - at_);
      if (joined_ >= at_ && joined_ < at_ + count) begins_here &= ~(uint64_t{1} << (joined_ - at_));
      for (uint64_t quotes = c.apostrophe & symbol_begins; quotes != 0; quotes &= quotes - 1)
        split_contraction(static_cast<unsigned>(__builtin_ctzll(quotes)), count, begins_here);
    }

    const unsigned top = count - 1;
    before_ = {c.letter >> top & 1,   c.number >> top & 1, symbol >> top & 1, c.space >> top & 1,
               c.line_end >> top & 1, c.blank >> top & 1,  lone >> top & 1,   taken >> top & 1};
    size_t* out = begins;
    for (; begins_here != 0; begins_here &= begins_here - 1)
      *out++ = at_ + static_cast<unsigned>(__builtin_ctzll(begins_here));
    at_ += count;
    return static_cast<size_t>(out - begins);
  }

 private:
  // Numbers are cut after so many characters from where they begin.
  uint64_t number_begins(const ByteClasses& c, uint64_t after_number) {
    uint64_t begins = 0;
    if (c.number == 0) return 0;
    const WordRules& rules = rules_;
    for (uint64_t rest = c.number & ~c.trail; rest != 0; rest &= rest - 1) {
      const uint64_t bit = rest & -rest;
      if (!(after_number & bit)) digits_ = 0;
      if (digits_ == 0) begins |= bit;
      digits_ = digits_ + 1 == rules.digits ? 0 : digits_ + 1;
    }
    return begins;
  }

  // Whether the white space from a place on goes on to an end of a line, or to the end of the text.
  bool line_end_follows(uint64_t inside, uint64_t line_end, uint64_t place, unsigned count) const {
    const uint64_t end = (inside + place) & ~inside & -place;
    const uint64_t whole = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    if (end & whole) return (end & line_end) != 0;
    for (size_t at = at_ + count; at < text_.size;) {
      const ClassedChar c = classed_char(text_, at);
      if (!(c.classes & kSpace)) return false;
      if (c.classes & kLineEnd) return true;
      at += c.length;
    }
    return true;  // scan_word() knows what is at the end of the text
  }

  void split_contraction(unsigned place, unsigned count, uint64_t& begins) {
    const WordRules& rules = rules_;
    const bool any_case = rules.contractions != WordRules::Contractions::lower;
    const size_t length = contraction_length(any_case, text_, at_ + place);
    if (length == 0) return;
    const size_t end = place + length;
    if (end < count)
      begins |= uint64_t{1} << end;
    else
      forced_ = at_ + end;
    if (rules.letters == WordRules::Letters::prefixed) return;  // an apostrophe takes the letter in any case
    if (place + 1 < count)
      begins &= ~(uint64_t{1} << (place + 1));
    else
      joined_ = at_ + place + 1;
  }

  // Of the last character of the window before, as the lowest bit.
  struct Before {
    uint64_t letter = 0, number = 0, symbol = 0, space = 0, line_end = 0, blank = 0;
    uint64_t lone = 0;   // a symbol that begins a word
    uint64_t taken = 0;  // an end of a line that belongs to symbols
  };

  Rules rules_;
  const ScannedText& text_;
  size_t at_ = 0;
  Before before_;
  int digits_ = 0;
  size_t forced_ = ~size_t{0},
         joined_ = ~size_t{0};  // a begin, and none, by a contraction of the window before
};

}  // namespace megatron::tokenizers
