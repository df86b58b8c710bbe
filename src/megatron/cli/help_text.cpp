#include "megatron/cli/help_text.h"

#include <algorithm>
#include <vector>

namespace megatron {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Lines of a paragraph may be joined; usage, lists and headings stay as they are.
bool is_prose(const std::string& line) {
  return !line.empty() && line[0] != ' ' && !line.starts_with("usage:") && !line.ends_with(':') &&
         line.find("  ") == std::string::npos;
}

// Where the text beside a name begins, and with it the lines that it goes on in.
size_t hanging_indent(const std::string& line, size_t columns) {
  const size_t first = std::min(line.find_first_not_of(' '), line.size());
  if (line.starts_with("usage:")) return 7;
  const size_t gap = line.find("  ", first);
  if (gap == std::string::npos) return first;
  const size_t text = line.find_first_not_of(' ', gap);
  return text == std::string::npos || text > columns * 2 / 3 ? first + 2 : text;
}

std::string wrap(std::string line, size_t columns) {
  const std::string indent(hanging_indent(line, columns), ' ');
  std::string result;
  while (line.size() > columns) {
    size_t at = line.rfind(' ', columns);
    const size_t first = line.find_first_not_of(' ');
    if (at == std::string::npos || at <= std::max(first, indent.size())) at = line.find(' ', columns);
    if (at == std::string::npos) break;
    const size_t next = line.find_first_not_of(' ', at);
    if (next == std::string::npos) break;
    const size_t end = line.find_last_not_of(' ', at);
    result += line.substr(0, end + 1) + "\n";
    line = indent + line.substr(next);
  }
  return result + line + "\n";
}

}  // namespace

std::string fill_help(std::string_view text, size_t columns) {
  std::string result, paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) result += wrap(paragraph, columns);
    paragraph.clear();
  };
  for (const std::string& line : lines_of(text)) {
    if (is_prose(line)) {
      paragraph += (paragraph.empty() ? "" : " ") + line;
      continue;
    }
    end_paragraph();
    result += wrap(line, columns);
  }
  end_paragraph();
  return result;
}

}  // namespace megatron
