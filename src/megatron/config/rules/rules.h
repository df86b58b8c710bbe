#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// Something that settings must fulfil together.
struct Rule {
  std::string_view name;  // "heads_divide_by_tp"
  std::string_view keys;  // the settings it looks at, separated by blanks
  std::string_view says;  // the rule as a sentence, for megatron explain
  void (*check)(ConfigBuilder&);
};

std::span<const Rule> parallel_rules();
std::span<const Rule> nonuniform_rules();
std::span<const Rule> pipeline_rules();
std::span<const Rule> model_rules();
std::span<const Rule> moe_rules();
std::span<const Rule> batch_rules();
std::span<const Rule> precision_rules();
std::span<const Rule> run_rules();
std::span<const Rule> data_rules();
std::span<const Rule> masked_rules();
std::span<const Rule> vision_rules();
std::span<const Rule> distill_rules();
std::span<const Rule> rl_rules();
std::span<const Rule> elastic_rules();

std::vector<Rule> all_rules();

// Runs every rule whose settings have values of the right kind.
void check_rules(ConfigBuilder& builder);

// Whether a hybrid model has layers of this kind, and any model gated delta nets.
bool has_layers(const ModelConfig& model, char symbol);
bool has_delta_nets(const ModelConfig& model);

// An error's message without the subject that it begins with.
std::string reason_of(const Error& error);

// "1, 2, 4 or 8": what a size may be so that it divides all of `numbers` and `fits`.
std::string common_divisors(std::span<const int64_t> numbers,
                            const std::function<bool(int64_t)>& fits = nullptr);

// "a, b or c".
std::string joined(std::span<const std::string> words, std::string_view last = " or ");

}  // namespace megatron
