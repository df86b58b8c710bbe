#include "megatron/config/rules/rules.h"

#include <algorithm>
#include <numeric>

#include "megatron/config/sources/string_list.h"

namespace megatron {

std::vector<Rule> all_rules() {
  std::vector<Rule> all;
  for (std::span<const Rule> rules :
       {parallel_rules(), nonuniform_rules(), pipeline_rules(), model_rules(), moe_rules(), batch_rules(),
        precision_rules(), run_rules(), data_rules(), masked_rules(), vision_rules(), distill_rules(),
        rl_rules(), elastic_rules()})
    all.insert(all.end(), rules.begin(), rules.end());
  return all;
}

void check_rules(ConfigBuilder& builder) {
  const std::set<std::string>& broken = builder.broken();
  for (const Rule& rule : all_rules())
    if (std::none_of(broken.begin(), broken.end(),
                     [&](const std::string& name) { return covers_name(rule.keys, name); }))
      rule.check(builder);
}

bool has_layers(const ModelConfig& model, char symbol) {
  return model.is_hybrid_model && model.hybrid_layer_pattern.find(symbol) != std::string::npos;
}

bool has_delta_nets(const ModelConfig& model) {
  return model.is_hybrid_model ? has_layers(model, 'G') : model.attends_linearly();
}

std::string reason_of(const Error& error) {
  const std::string text = error.what();
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::string common_divisors(std::span<const int64_t> numbers, const std::function<bool(int64_t)>& fits) {
  int64_t common = 0;
  for (int64_t number : numbers) common = std::gcd(common, number);
  std::vector<std::string> divisors;
  for (int64_t d = 1; d <= common && divisors.size() < 12; ++d)
    if (common % d == 0 && (!fits || fits(d))) divisors.push_back(std::to_string(d));
  return joined(divisors);
}

std::string joined(std::span<const std::string> words, std::string_view last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += std::string(i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  return text;
}

}  // namespace megatron
