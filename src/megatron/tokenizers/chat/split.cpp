#include "megatron/tokenizers/chat/split.h"

#include <algorithm>

#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

std::vector<std::string_view> split_at(Budget& budget, std::string_view rest, std::string_view separator,
                                       int64_t limit, bool from_end) {
  std::vector<std::string_view> parts;
  for (; limit != 0; --limit) {
    budget.step();
    const size_t at = from_end ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(from_end ? rest.substr(at + separator.size()) : rest.substr(0, at));
    rest = from_end ? rest.substr(0, at) : rest.substr(at + separator.size());
  }
  parts.push_back(rest);
  return parts;
}

std::vector<std::string_view> split_words(Budget& budget, std::string_view rest, int64_t limit,
                                          bool from_end) {
  std::vector<std::string_view> parts;
  while (!(rest = strip(rest, nullptr, !from_end, from_end)).empty()) {
    budget.step();
    if (limit-- == 0) {
      parts.push_back(rest);
      break;
    }
    size_t end = from_end ? 0 : rest.size();
    for (size_t at = 0; at < rest.size();) {
      const size_t begin = at;
      if (!is_space(next_code_point(rest, at))) continue;
      if (from_end) {
        end = at;  // the last whitespace decides
      } else {
        end = begin;
        break;
      }
    }
    parts.push_back(from_end ? rest.substr(end) : rest.substr(0, end));
    rest = from_end ? rest.substr(0, end) : rest.substr(end);
    budget.step(static_cast<int64_t>(from_end ? rest.size() / 16 : 0));
  }
  return parts;
}

bool is_line_end(char32_t point) {
  return (point >= 10 && point <= 13) || (point >= 0x1c && point <= 0x1e) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

}  // namespace

std::vector<std::string_view> split(Budget& budget, std::string_view bytes, const std::string_view* separator,
                                    int64_t limit, bool from_end) {
  budget.step(static_cast<int64_t>(bytes.size() / 8));
  auto parts = separator ? split_at(budget, bytes, *separator, limit, from_end)
                         : split_words(budget, bytes, limit, from_end);
  if (from_end) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(Budget& budget, std::string_view bytes, bool keep_ends) {
  budget.step(static_cast<int64_t>(bytes.size() / 8));
  std::vector<std::string_view> lines;
  size_t line = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t point = next_code_point(bytes, at);
    if (!is_line_end(point)) continue;
    if (point == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(bytes.substr(line, (keep_ends ? at : begin) - line));
    line = at;
  }
  if (line < bytes.size()) lines.push_back(bytes.substr(line));
  return lines;
}

}  // namespace megatron::chat
