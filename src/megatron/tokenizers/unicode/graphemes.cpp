#include "megatron/tokenizers/unicode/graphemes.h"

#include "megatron/tokenizers/unicode/packed_table.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

#include "megatron/tokenizers/unicode/grapheme_data.inc"

// Grapheme_Cluster_Break, with Indic_Conjunct_Break and Extended_Pictographic where the rules ask for them.
// The numbers up to Consonant are those of the table.
enum class GraphemeClass : uint8_t {
  Other,
  CR,
  LF,
  Control,
  ZWJ,
  Linker,          // Extend, and a linker of conjuncts
  ConjunctExtend,  // Extend within conjuncts
  Extend,          // the other Extend
  SpacingMark,
  Prepend,
  RegionalIndicator,
  L,
  V,
  T,
  Pictographic,
  Consonant,
  LV,
  LVT
};
using enum GraphemeClass;

GraphemeClass class_of(char32_t point) {
  static const TwoStageTable table{kGraphemeRuns};  // unpacked when first asked for
  if (point >= 0x20 && point < 0x7F) return Other;
  if (point >= 0xAC00 && point < 0xAC00 + 11172) return (point - 0xAC00) % 28 == 0 ? LV : LVT;
  return point < kPoints ? static_cast<GraphemeClass>(table[point]) : Other;
}

bool extends(GraphemeClass c) { return c >= ZWJ && c <= Extend; }

// What the rules that look further back than one character need to know of the cluster so far.
struct ClusterState {
  bool conjunct = false;      // consonant, then linkers and extenders
  bool linked = false;        // with a linker among them
  bool pictographic = false;  // pictograph, then extenders other than ZWJ
  bool joined = false;        // and one ZWJ behind them
  bool half_flag = false;     // the last is the first of two regional indicators

  void add(GraphemeClass c) {
    joined = pictographic && c == ZWJ;
    pictographic = c == Pictographic || (pictographic && extends(c) && c != ZWJ);
    linked = conjunct && (c == Linker || (linked && (c == ConjunctExtend || c == ZWJ)));
    conjunct = c == Consonant || (conjunct && (c == Linker || c == ConjunctExtend || c == ZWJ));
    half_flag = c == RegionalIndicator && !half_flag;
  }
};

// GB3 to GB999: whether a cluster ends between two characters.
bool breaks(GraphemeClass before, GraphemeClass after, const ClusterState& state) {
  if (before == CR && after == LF) return false;
  if ((before >= CR && before <= Control) || (after >= CR && after <= Control)) return true;
  if (before == L && (after == L || after == V || after == LV || after == LVT)) return false;
  if ((before == LV || before == V) && (after == V || after == T)) return false;
  if ((before == LVT || before == T) && after == T) return false;
  if (extends(after) || after == SpacingMark || before == Prepend) return false;
  if (after == Consonant) return !state.linked;
  if (after == Pictographic) return !state.joined;
  if (after == RegionalIndicator) return !state.half_flag;
  return true;
}

}  // namespace

size_t grapheme_length(std::string_view text) {
  ClusterState state;
  const Utf8Char first = decode_utf8(text);
  GraphemeClass before = class_of(first.point);
  state.add(before);
  size_t at = first.length;
  while (at < text.size()) {
    const Utf8Char next = decode_utf8(text.substr(at));
    const GraphemeClass after = class_of(next.point);
    if (breaks(before, after, state)) break;
    state.add(after);
    before = after;
    at += next.length;
  }
  return at;
}

}  // namespace megatron::tokenizers
