#include "megatron/tokenizers/unicode/unicode.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "megatron/tokenizers/unicode/packed_table.h"

namespace megatron::tokenizers {
namespace {

#include "megatron/tokenizers/unicode/unicode_data.inc"

constexpr std::string_view kCategoryNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                               "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                               "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// Sequences of points by the point that they stand for.
class SequenceTable {
 public:
  void add(char32_t key, std::span<const char32_t> points, bool flag) {
    keys_.push_back(key);
    starts_.push_back(static_cast<uint32_t>(points_.size()) << 1 | flag);
    points_.insert(points_.end(), points.begin(), points.end());
  }
  Decomposition find(char32_t key) const {
    const auto found = std::lower_bound(keys_.begin(), keys_.end(), key);
    if (found == keys_.end() || *found != key) return {};
    const size_t i = found - keys_.begin();
    const size_t begin = starts_[i] >> 1, end = i + 1 < keys_.size() ? starts_[i + 1] >> 1 : points_.size();
    return {{points_.data() + begin, end - begin}, (starts_[i] & 1) != 0};
  }

 private:
  std::vector<char32_t> keys_, points_;
  std::vector<uint32_t> starts_;  // place in points_, and a flag
};

struct Tables {
  TwoStageTable kinds{kKindRuns}, combining{kCombiningRuns};
  SequenceTable decompositions, lower;
  std::unordered_map<uint64_t, char32_t> composites;
  std::vector<bool> nfc_active = std::vector<bool>(kPoints);

  Tables() {
    PackedNumbers numbers(kDecompositions);
    std::vector<char32_t> points;
    for (char32_t key = 0; numbers.more();) {
      key += numbers.next();
      const uint32_t head = numbers.next();
      points.clear();
      char32_t last = key;
      for (uint32_t i = 0; i < head >> 2; ++i) points.push_back(last += numbers.next_signed());
      decompositions.add(key, points, head & 2);
      if (head & 1) {
        composites[uint64_t{points[0]} << 32 | points[1]] = key;
        nfc_active[points[1]] = true;
      }
      if ((head & 3) == 0) nfc_active[key] = true;
    }
    for (char32_t c = 0; c < kPoints; ++c)
      if (combining[c] != 0) nfc_active[c] = true;
    for (char32_t c = 0x1161; c < 0x11C3; ++c) nfc_active[c] = true;  // vowels and tails of Hangul
    PackedNumbers lower_numbers(kLowerCase);
    for (char32_t key = 0; lower_numbers.more();) {
      key += lower_numbers.next();
      const uint32_t count = lower_numbers.next();
      points.clear();
      for (uint32_t i = 0; i < count; ++i) points.push_back(key + lower_numbers.next_signed());
      lower.add(key, points, false);
    }
  }
};

const Tables& tables() {
  static const Tables tables;  // unpacked when first asked for
  return tables;
}

constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;

}  // namespace

CharProperties properties_of(char32_t point) {
  return CharProperties(point < kPoints ? kKinds[tables().kinds[point]] : uint16_t{0});
}

uint8_t combining_class(char32_t point) { return point < kPoints ? tables().combining[point] : 0; }

LowerCase lower_case(char32_t point) {
  if (point < 128) return {{point >= 'A' && point <= 'Z' ? point + 32 : point}, 1};
  const auto points = tables().lower.find(point).points;
  if (points.empty()) return {{point}, 1};
  return {{points[0], points.size() > 1 ? points[1] : 0}, static_cast<uint32_t>(points.size())};
}

char32_t fold_case(char32_t point) {
  if (point < 128) return point >= 'A' && point <= 'Z' ? point + 32 : point;
  if (point == 0x17F) return 's';
  if (point == 0x3C2) return 0x3C3;
  const LowerCase lower = lower_case(point);
  return lower.size == 1 ? lower.points[0] : point;
}

Decomposition decomposition_of(char32_t point) { return tables().decompositions.find(point); }

char32_t compose(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + 19 && second >= kVowels && second < kVowels + 21)
    return kSyllables + ((first - kLeads) * 21 + (second - kVowels)) * 28;
  if (first >= kSyllables && first < kSyllables + 11172 && (first - kSyllables) % 28 == 0 &&
      second > kTails && second < kTails + 28)
    return first + (second - kTails);
  const auto& composites = tables().composites;
  const auto found = composites.find(uint64_t{first} << 32 | second);
  return found == composites.end() ? 0 : found->second;
}

bool nfc_inert(char32_t point) {
  if (point < 0x300) return true;
  if (point >= kPoints) return false;
  return !tables().nfc_active[point];
}

uint32_t category_mask(std::string_view name) {
  uint32_t mask = 0;
  for (size_t i = 0; i < std::size(kCategoryNames); ++i)
    if (!name.empty() && name.size() <= 2 && kCategoryNames[i].starts_with(name)) mask |= 1u << i;
  return mask;
}

}  // namespace megatron::tokenizers
