#include "megatron/config/resolve/pipeline_layout.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr size_t longest = 1 << 20;

template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ConfigError("pipeline layout: " + fmt::format(format, std::forward<Args>(args)...));
}

// The count after a '*' at text[at]; `at` moves behind it.
size_t read_count(std::string_view text, size_t& at) {
  size_t count = 0;
  const char* begin = text.data() + at + 1;
  const auto [stop, error] = std::from_chars(begin, text.data() + text.size(), count);
  check(error == std::errc(), "'*' needs a whole number after it");
  at = static_cast<size_t>(stop - text.data());
  return count;
}

void append(std::string& result, std::string_view piece, size_t times) {
  check(piece.size() * times + result.size() <= longest, "it has too many layers");
  for (size_t i = 0; i < times; ++i) result += piece;
}

std::string expand_groups(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '(') {
      check(text[at] != ')', "')' without '('");
      result += text[at++];
      continue;
    }
    const size_t close = text.find(')', at);
    check(close != std::string_view::npos, "'(' is not closed");
    const std::string_view inner = text.substr(at + 1, close - at - 1);
    check(!inner.empty(), "'()' is empty");
    check(inner.find('(') == std::string_view::npos, "'(' within '('");
    check(close + 1 < text.size() && text[close + 1] == '*', "(...) needs *N after it");
    at = close + 1;
    append(result, inner, read_count(text, at));
  }
  return result;
}

std::string expand_symbols(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const char symbol = text[at++];
    check(symbol != '*', "'*' needs something before it");
    const size_t times = at < text.size() && text[at] == '*' ? read_count(text, at) : 1;
    append(result, std::string_view(&symbol, 1), times);
  }
  return result;
}

}  // namespace

std::string_view layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::embedding:
      return "embedding";
    case LayerKind::decoder:
      return "decoder";
    case LayerKind::mtp:
      return "mtp";
    case LayerKind::loss:
      return "loss";
  }
  fail("layer_kind_name: {} is not a layer kind", static_cast<int>(kind));
}

std::vector<StageLayers> parse_pipeline_layout(std::string_view text) {
  std::string plain;
  for (char c : text)
    if (c != ',') plain += c;
  const std::string symbols = expand_symbols(expand_groups(plain));
  std::vector<StageLayers> stages(1);
  for (char c : symbols) {
    if (c == '|') {
      stages.emplace_back();
      continue;
    }
    check(std::string_view("EtmL").find(c) != std::string_view::npos,
          "'{}' is not one of E (embedding), t (layer), m (MTP layer), L (loss) and |", c);
    stages.back().push_back(static_cast<LayerKind>(c));
  }
  return stages;
}

std::string check_pipeline_layout(const std::vector<StageLayers>& stages, int64_t pipeline_size,
                                  int64_t num_layers, int64_t mtp_num_layers) {
  const int64_t count = static_cast<int64_t>(stages.size());
  if (count % pipeline_size != 0)
    return fmt::format("its {} stages cannot be dealt out to {} pipeline ranks", count, pipeline_size);
  StageLayers all;
  for (const auto& stage : stages) all.insert(all.end(), stage.begin(), stage.end());
  const auto number_of = [&](LayerKind item) { return std::count(all.begin(), all.end(), item); };
  if (number_of(LayerKind::embedding) != 1 || all.front() != LayerKind::embedding)
    return "it must begin with the only E";
  if (number_of(LayerKind::loss) != 1 || all.back() != LayerKind::loss) return "it must end with the only L";
  if (number_of(LayerKind::decoder) != num_layers)
    return fmt::format("it has {} layers (t) and the model {}", number_of(LayerKind::decoder), num_layers);
  if (number_of(LayerKind::mtp) != mtp_num_layers)
    return fmt::format("it has {} MTP layers (m) and the model {}", number_of(LayerKind::mtp),
                       mtp_num_layers);
  const auto first_mtp = std::find(all.begin(), all.end(), LayerKind::mtp);
  if (std::find(first_mtp, all.end(), LayerKind::decoder) != all.end())
    return "no layer (t) may follow an MTP layer (m)";
  int64_t mtp_stage = -1;
  for (int64_t k = 0; k < count; ++k) {
    const auto& stage = stages[static_cast<size_t>(k)];
    if (std::find(stage.begin(), stage.end(), LayerKind::mtp) == stage.end()) continue;
    if (mtp_stage >= 0) return "all MTP layers (m) must be in one stage";
    mtp_stage = k;
  }
  if (mtp_stage >= 0 && mtp_stage < count - pipeline_size)
    return "MTP layers (m) must be in a rank's last chunk";
  return "";
}

}  // namespace megatron
