#include "megatron/datasets/text/sentences.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace megatron {
namespace {

// Words that end with a period within sentences, in lower case and without it; sorted.
constexpr std::array<std::string_view, 62> kAbbreviations = {
    "adm", "al",   "apr",  "art", "aug", "ave", "bros", "capt", "cf",  "ch",   "co",  "col",  "corp",
    "dec", "dept", "dr",   "e.g", "ed",  "eds", "eq",   "est",  "etc", "feb",  "fig", "figs", "gen",
    "gov", "hon",  "i.e",  "inc", "jan", "jr",  "jul",  "jun",  "lt",  "ltd",  "maj", "mar",  "messrs",
    "mr",  "mrs",  "ms",   "mt",  "no",  "nov", "oct",  "p",    "pp",  "prof", "rep", "rev",  "sec",
    "sen", "sep",  "sept", "sgt", "sr",  "st",  "u.s",  "viz",  "vol", "vs"};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The length of a mark in `marks` at the front of `text`; 0 for none.
template <size_t N>
size_t mark_length(std::string_view text, const std::array<std::string_view, N>& marks) {
  for (std::string_view mark : marks)
    if (text.starts_with(mark)) return mark.size();
  return 0;
}
constexpr std::array<std::string_view, 4> kEnds = {".", "?", "!", "…"};
constexpr std::array<std::string_view, 3> kWideEnds = {"。", "！", "？"};
constexpr std::array<std::string_view, 10> kClosers = {"\"", "'", ")", "]", "}", "”", "’", "»", "」", "』"};

// Whether the period at `at` belongs to the word before it: an abbreviation, an initial.
bool is_abbreviation(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && !is_blank(text[begin - 1]) && text[begin - 1] != '(' && text[begin - 1] != '"') --begin;
  const std::string_view word = text.substr(begin, at - begin);
  if (word.size() == 1 && is_upper(word[0])) return true;
  std::string lower(word);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return is_upper(c) ? static_cast<char>(c + 32) : c; });
  return std::ranges::binary_search(kAbbreviations, std::string_view(lower));
}

// Whether what follows white space may begin a sentence: not a small letter, not a closing mark.
bool may_begin(std::string_view rest) {
  if (rest.empty()) return true;
  return !(rest[0] >= 'a' && rest[0] <= 'z') &&
         std::string_view(",;:)]}").find(rest[0]) == std::string_view::npos;
}

// Where the sentence that begins at `begin` ends, its closing marks included.
size_t sentence_end(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size();) {
    const size_t wide = mark_length(text.substr(at), kWideEnds);
    size_t length = wide ? wide : mark_length(text.substr(at), kEnds);
    if (length == 0) {
      ++at;
      continue;
    }
    size_t end = at + length;
    bool many = false;
    while ((length =
                std::max(mark_length(text.substr(end), kEnds), mark_length(text.substr(end), kWideEnds))) > 0)
      end += length, many = true;
    while ((length = mark_length(text.substr(end), kClosers)) > 0) end += length;
    if (wide) return end;
    size_t next = end;
    while (next < text.size() && is_blank(text[next])) ++next;
    const bool apart = next > end || next == text.size();
    const bool period = text[at] == '.' && !many;
    const bool list_number =
        period && at > begin && std::ranges::all_of(text.substr(begin, at - begin), is_digit);
    if (apart && may_begin(text.substr(next)) && !list_number && !(period && is_abbreviation(text, at)))
      return end;
    at = end;
  }
  return text.size();
}

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text, bool keep_newlines) {
  std::vector<std::string_view> sentences;
  size_t begin = 0;
  while (begin < text.size() && is_blank(text[begin])) ++begin;
  while (begin < text.size()) {
    size_t end = sentence_end(text, begin), next = end;
    while (next < text.size() && is_blank(text[next])) ++next;
    size_t last = keep_newlines ? next : end;
    if (!keep_newlines)
      while (last > begin && is_blank(text[last - 1])) --last;
    sentences.push_back(text.substr(begin, last - begin));
    begin = next;
  }
  return sentences;
}

}  // namespace megatron
