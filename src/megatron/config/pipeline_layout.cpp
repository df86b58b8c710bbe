#include "megatron/config/pipeline_layout.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr size_t longest = 1 << 20;

// The count after a '*' at text[at]; `at` moves behind it.
size_t read_count(std::string_view text, size_t& at) {
  size_t count = 0;
  const char* begin = text.data() + at + 1;
  const auto [stop, error] = std::from_chars(begin, text.data() + text.size(), count);
  require(error == std::errc(), "pipeline layout: '*' needs a whole number after it");
  at = static_cast<size_t>(stop - text.data());
  return count;
}

void append(std::string& result, std::string_view piece, size_t times) {
  require(piece.size() * times + result.size() <= longest, "pipeline layout: it has too many layers");
  for (size_t i = 0; i < times; ++i) result += piece;
}

std::string expand_groups(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '(') {
      require(text[at] != ')', "pipeline layout: ')' without '('");
      result += text[at++];
      continue;
    }
    const size_t close = text.find(')', at);
    require(close != std::string_view::npos, "pipeline layout: '(' is not closed");
    const std::string_view inner = text.substr(at + 1, close - at - 1);
    require(!inner.empty(), "pipeline layout: '()' is empty");
    require(inner.find('(') == std::string_view::npos, "pipeline layout: '(' within '('");
    require(close + 1 < text.size() && text[close + 1] == '*', "pipeline layout: (...) needs *N after it");
    at = close + 1;
    append(result, inner, read_count(text, at));
  }
  return result;
}

std::string expand_symbols(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const char symbol = text[at++];
    require(symbol != '*', "pipeline layout: '*' needs something before it");
    const size_t times = at < text.size() && text[at] == '*' ? read_count(text, at) : 1;
    append(result, std::string_view(&symbol, 1), times);
  }
  return result;
}

}  // namespace

std::vector<std::vector<StageItem>> parse_pipeline_layout(std::string_view text) {
  std::string plain;
  for (char c : text)
    if (c != ',' && c != ' ') plain += c;
  const std::string symbols = expand_symbols(expand_groups(plain));
  std::vector<std::vector<StageItem>> stages(1);
  for (char c : symbols) {
    if (c == '|') {
      stages.emplace_back();
      continue;
    }
    require(
        std::string_view("EtmL").find(c) != std::string_view::npos,
        "pipeline layout: '{}' is not one of E (embedding), t (layer), m (prediction layer), L (loss) and |",
        c);
    stages.back().push_back(static_cast<StageItem>(c));
  }
  return stages;
}

std::string check_pipeline_layout(const std::vector<std::vector<StageItem>>& stages, int64_t pipeline_size,
                                  int64_t num_layers, int64_t mtp_num_layers) {
  const int64_t count = static_cast<int64_t>(stages.size());
  if (count % pipeline_size != 0)
    return fmt::format("its {} stages cannot be dealt out to {} pipeline ranks", count, pipeline_size);
  std::vector<StageItem> all;
  for (const auto& stage : stages) all.insert(all.end(), stage.begin(), stage.end());
  const auto number_of = [&](StageItem item) { return std::count(all.begin(), all.end(), item); };
  if (number_of(StageItem::embedding) != 1 || all.front() != StageItem::embedding)
    return "it must begin with the only E";
  if (number_of(StageItem::loss) != 1 || all.back() != StageItem::loss) return "it must end with the only L";
  if (number_of(StageItem::decoder) != num_layers)
    return fmt::format("it has {} layers (t) and the model {}", number_of(StageItem::decoder), num_layers);
  if (number_of(StageItem::mtp) != mtp_num_layers)
    return fmt::format("it has {} prediction layers (m) and the model {}", number_of(StageItem::mtp),
                       mtp_num_layers);
  const auto first_mtp = std::find(all.begin(), all.end(), StageItem::mtp);
  if (std::find(first_mtp, all.end(), StageItem::decoder) != all.end())
    return "no layer (t) may follow a prediction layer (m)";
  int64_t mtp_stage = -1;
  for (int64_t k = 0; k < count; ++k) {
    const auto& stage = stages[static_cast<size_t>(k)];
    if (std::find(stage.begin(), stage.end(), StageItem::mtp) == stage.end()) continue;
    if (mtp_stage >= 0) return "all prediction layers (m) must be in one stage";
    mtp_stage = k;
  }
  if (mtp_stage >= 0 && mtp_stage < count - pipeline_size)
    return "prediction layers (m) must be in a rank's last chunk";
  return "";
}

}  // namespace megatron
