#include "megatron/tokenizers/chat/unicode.h"

#include <algorithm>

#include "megatron/tokenizers/chat/unicode_tables.h"

namespace megatron::chat {
namespace {

bool in_ranges(std::span<const CodeRange> ranges, char32_t point) {
  auto range = std::upper_bound(ranges.begin(), ranges.end(), point,
                                [](char32_t p, const CodeRange& r) { return p < r.first; });
  if (range == ranges.begin()) return false;
  --range;
  return point <= range->last && (point - range->first) % range->step == 0;
}

// Appends the image of `point` and says whether the mapping has one. Ranges of different steps may
// interleave, so that a few of them before the last candidate are looked at, too.
bool append_mapped(std::string& out, const CaseMapping& mapping, char32_t point) {
  auto special = std::lower_bound(mapping.special.begin(), mapping.special.end(), point,
                                  [](const CaseSpecial& s, char32_t p) { return s.point < p; });
  if (special != mapping.special.end() && special->point == point) {
    for (uint32_t image : special->image)
      if (image) append_code_point(out, image);
    return true;
  }
  auto range = std::upper_bound(mapping.simple.begin(), mapping.simple.end(), point,
                                [](char32_t p, const CaseRange& r) { return p < r.first; });
  for (int looked = 0; range != mapping.simple.begin() && looked < 8; ++looked) {
    --range;
    if (point <= range->last && (point - range->first) % range->step == 0) {
      append_code_point(out, point + static_cast<char32_t>(range->delta));
      return true;
    }
  }
  return false;
}

void append_lower(std::string& out, char32_t point) {
  if (!append_mapped(out, unicode_case().lower, point)) append_code_point(out, point);
}
void append_upper(std::string& out, char32_t point) {
  if (!append_mapped(out, unicode_case().upper, point)) append_code_point(out, point);
}
void append_title(std::string& out, char32_t point) {
  if (!append_mapped(out, unicode_case().title, point)) append_upper(out, point);
}

bool is_cased(char32_t point) { return is_lower(point) || is_upper(point) || is_title(point); }

// A capital sigma at the end of a word has a lower form of its own.
bool is_final_sigma(const std::vector<char32_t>& points, size_t at) {
  if (points[at] != 0x3a3) return false;
  return at > 0 && is_cased(points[at - 1]) && !(at + 1 < points.size() && is_cased(points[at + 1]));
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >> 4 == 0xe ? 3 : 4;
    if (lead >= 0x80 && (lead < 0xc2 || lead > 0xf4)) return false;
    if (i + length > bytes.size()) return false;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xc0) != 0x80) return false;
    size_t at = i;
    const char32_t point = next_code_point(bytes, at);
    if ((length == 3 && (point < 0x800 || (point >= 0xd800 && point < 0xe000))) ||
        (length == 4 && (point < 0x10000 || point > 0x10ffff)))
      return false;
    i += length;
  }
  return true;
}

char32_t next_code_point(std::string_view bytes, size_t& at) {
  auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(bytes[i])); };
  const char32_t lead = byte(at);
  if (lead < 0x80) return ++at, lead;
  if (lead < 0xe0) return at += 2, ((lead & 0x1f) << 6) | (byte(at - 1) & 0x3f);
  if (lead < 0xf0)
    return at += 3, ((lead & 0xf) << 12) | ((byte(at - 2) & 0x3f) << 6) | (byte(at - 1) & 0x3f);
  return at += 4, ((lead & 7) << 18) | ((byte(at - 3) & 0x3f) << 12) | ((byte(at - 2) & 0x3f) << 6) |
                      (byte(at - 1) & 0x3f);
}

void append_code_point(std::string& out, char32_t point) {
  auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) return add(point);
  if (point < 0x800) return add(0xc0 | point >> 6), add(0x80 | (point & 0x3f));
  if (point < 0x10000)
    return add(0xe0 | point >> 12), add(0x80 | (point >> 6 & 0x3f)), add(0x80 | (point & 0x3f));
  add(0xf0 | point >> 18), add(0x80 | (point >> 12 & 0x3f)), add(0x80 | (point >> 6 & 0x3f));
  add(0x80 | (point & 0x3f));
}

std::vector<char32_t> to_code_points(std::string_view bytes) {
  std::vector<char32_t> points;
  points.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) points.push_back(next_code_point(bytes, at));
  return points;
}

int64_t count_code_points(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

size_t byte_offset(std::string_view bytes, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < bytes.size(); --index) next_code_point(bytes, at);
  return at;
}

bool is_space(char32_t point) {
  if (point < 0x80) return point == ' ' || (point >= 9 && point <= 13) || (point >= 0x1c && point <= 0x1f);
  return point == 0x85 || point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
         point == 0x2028 || point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}
bool is_alpha(char32_t point) { return in_ranges(unicode_properties().alpha, point); }
bool is_decimal(char32_t point) { return in_ranges(unicode_properties().decimal, point); }
bool is_digit(char32_t point) { return in_ranges(unicode_properties().digit, point); }
bool is_numeric(char32_t point) { return in_ranges(unicode_properties().numeric, point); }
bool is_printable(char32_t point) { return !in_ranges(unicode_properties().unprintable, point); }
bool is_lower(char32_t point) { return in_ranges(unicode_properties().lower, point); }
bool is_upper(char32_t point) { return in_ranges(unicode_properties().upper, point); }
bool is_title(char32_t point) { return in_ranges(unicode_properties().title, point); }

std::string change_case(std::string_view bytes, Case to) {
  const std::vector<char32_t> points = to_code_points(bytes);
  std::string out;
  out.reserve(bytes.size());
  bool word = false;  // whether the character before belongs to a word
  for (size_t i = 0; i < points.size(); ++i) {
    const char32_t point = points[i];
    const bool first = to == Case::title ? !word : i == 0;
    const bool lowers = to == Case::lower || ((to == Case::title || to == Case::capitalize) && !first) ||
                        (to == Case::swap && is_upper(point));
    if (to == Case::fold) {
      if (!append_mapped(out, unicode_case().fold, point)) append_lower(out, point);
    } else if (lowers) {
      is_final_sigma(points, i) ? append_code_point(out, 0x3c2) : append_lower(out, point);
    } else if (to == Case::title || to == Case::capitalize) {
      append_title(out, point);
    } else if (to == Case::upper || is_lower(point)) {
      append_upper(out, point);
    } else {
      append_code_point(out, point);
    }
    word = is_cased(point);
  }
  return out;
}

std::string_view strip(std::string_view bytes, const std::string_view* chars, bool left, bool right) {
  std::vector<char32_t> set;
  if (chars) set = to_code_points(*chars);
  auto goes = [&](char32_t point) {
    return chars ? std::find(set.begin(), set.end(), point) != set.end() : is_space(point);
  };
  while (left && !bytes.empty()) {
    size_t at = 0;
    if (!goes(next_code_point(bytes, at))) break;
    bytes.remove_prefix(at);
  }
  while (right && !bytes.empty()) {
    size_t begin = bytes.size() - 1;
    while ((bytes[begin] & 0xc0) == 0x80) --begin;
    size_t at = begin;
    if (!goes(next_code_point(bytes, at))) break;
    bytes.remove_suffix(bytes.size() - begin);
  }
  return bytes;
}

}  // namespace megatron::chat
