#include "megatron/tokenizers/normalizers/normal_forms.h"

#include <algorithm>

#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

struct Marked {
  TextChange change;
  uint8_t combining;
};

void decompose(char32_t point, bool compatible, int32_t change, std::vector<Marked>& out) {
  constexpr char32_t kSyllables = 0xAC00;
  if (point >= kSyllables && point < kSyllables + 11172) {
    const char32_t index = point - kSyllables;
    out.push_back({{0x1100 + index / 588, change}, 0});
    out.push_back({{0x1161 + index % 588 / 28, 1}, 0});
    if (index % 28 != 0) out.push_back({{0x11A7 + index % 28, 1}, 0});
    return;
  }
  const Decomposition parts = point < 0xA0 ? Decomposition{} : decomposition_of(point);
  if (parts.points.empty() || (parts.compatible && !compatible)) {
    out.push_back({{point, change}, point < 0x300 ? uint8_t{0} : combining_class(point)});
    return;
  }
  for (size_t i = 0; i < parts.points.size(); ++i)
    decompose(parts.points[i], compatible, i == 0 ? change : 1, out);
}

// Sorts every run of combining marks by class.
void order_marks(std::vector<Marked>& text) {
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && text[end].combining != 0) ++end;
    std::stable_sort(text.begin() + i, text.begin() + end,
                     [](const Marked& a, const Marked& b) { return a.combining < b.combining; });
    i = end + 1;
  }
}

// A mark joins the last starter unless one of its own or a higher class stands between them.
void compose_marks(std::vector<Marked>& text) {
  size_t out = 0, starter = static_cast<size_t>(-1);
  for (size_t i = 0; i < text.size(); ++i) {
    const Marked current = text[i];
    if (starter != static_cast<size_t>(-1)) {
      const bool next = out == starter + 1;
      const bool blocked = !next && text[out - 1].combining >= current.combining;
      if (!blocked) {
        if (const char32_t whole = compose(text[starter].change.point, current.change.point)) {
          text[starter].change = {whole, text[starter].change.change + current.change.change - 1};
          continue;
        }
      }
    }
    if (current.combining == 0) starter = out;
    text[out++] = current;
  }
  text.resize(out);
}

}  // namespace

std::vector<TextChange> normal_form(std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  std::vector<Marked> marked;
  marked.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text.substr(i));
    decompose(c.point, compatible, 0, marked);
    i += c.length;
  }
  order_marks(marked);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) compose_marks(marked);
  std::vector<TextChange> changes;
  changes.reserve(marked.size());
  for (const Marked& m : marked) changes.push_back(m.change);
  return changes;
}

bool surely_normal(std::string_view text, NormalForm form) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    if (form != NormalForm::nfc) return false;
    const Utf8Char c = decode_utf8(text.substr(i));
    if (!nfc_inert(c.point)) return false;
    i += c.length;
  }
  return true;
}

}  // namespace megatron::tokenizers
