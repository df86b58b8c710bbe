#include "megatron/config/schema/catalog.h"

#include <gtest/gtest.h>

#include <set>

#include "megatron/config/help.h"
#include "megatron/config/rules/rules.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/presets.h"
#include "megatron/config/sources/shorthand.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/config/sources/value_parser.h"

namespace megatron {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t blank = std::min(text.find(' '), text.size());
    if (blank > 0) words.emplace_back(text.substr(0, blank));
    text.remove_prefix(std::min(blank + 1, text.size()));
  }
  return words;
}

TEST(Catalog, NamesAndFlagsAreUnique) {
  EXPECT_GT(Catalog::all().entries().size(), 300u);  // building it refuses doubles
  std::set<std::string> flags;
  for (const std::string& flag : Catalog::all().flags()) flags.insert(canonical_flag(flag));
  for (const Shorthand& row : shorthands())
    EXPECT_TRUE(flags.insert(std::string(row.flag)).second) << row.flag;
  for (const CompatRow& row : compat_rows())
    for (const std::string& flag : words_of(row.flags))
      EXPECT_TRUE(flags.insert(flag.substr(flag[0] == '!')).second) << flag;
}

TEST(Catalog, FindsByNameAliasAndFlag) {
  const Catalog& catalog = Catalog::all();
  EXPECT_EQ(catalog.find("model.bf16"), catalog.find("optimizer.bf16"));
  EXPECT_EQ(catalog.find("model.nothing"), nullptr);
  EXPECT_EQ(catalog.find_flag("--num_layers")->entry, catalog.find("model.num_layers"));
  EXPECT_FALSE(catalog.find_flag("--disable-bias-linear")->on);
  EXPECT_EQ(catalog.find_flag("--nothing"), nullptr);
  EXPECT_TRUE(catalog.is_section("model"));
  EXPECT_TRUE(catalog.is_section("mixed_precision"));
  EXPECT_FALSE(catalog.is_section("mod"));
}

TEST(Catalog, CompatKeysAreNoSettings) {
  EXPECT_GT(compat_rows().size(), 400u);
  for (const CompatRow& row : compat_rows()) {
    EXPECT_FALSE(row.text.empty());
    EXPECT_FALSE(row.keys.empty() && row.flags.empty());
    for (const std::string& key : words_of(row.keys)) EXPECT_EQ(Catalog::all().find(key), nullptr) << key;
    if (row.verdict == CompatRow::Verdict::planned) {
      EXPECT_FALSE(row.defaults.empty()) << row.keys << ": its default is not refused";
    }
  }
  EXPECT_NE(find_compat_key("tensor_inspect.enabled"), nullptr);
  EXPECT_EQ(find_compat_key("model.num_layers"), nullptr);
  EXPECT_EQ(find_compat_key("tokenizer.sp_tokenizer_kwargs")->name(), "tokenizer.sp_tokenizer_kwargs");
  EXPECT_EQ(find_compat_key("dataset.dataset_kwargs.a.b")->name(), "dataset.dataset_kwargs");
  EXPECT_TRUE(is_compat_section("rl"));
  EXPECT_FALSE(is_compat_section("r"));
}

TEST(Catalog, SwitchesOfCompatHaveTheirOppositeToo) {
  EXPECT_TRUE(find_compat_flag("--rl-persist-cuda-graphs").on);
  EXPECT_FALSE(find_compat_flag("--no-rl-persist-cuda-graphs").on);
  EXPECT_FALSE(find_compat_flag("--disable_rl_persist_cuda_graphs").on);
  EXPECT_FALSE(find_compat_flag("--no-initialization").on);
  EXPECT_EQ(find_compat_flag("--no-manual-gc").row, nullptr);  // a row without a default has its flags alone
}

TEST(Catalog, DefaultsOfCompatAreRecognised) {
  const auto is_default = [](const char* key, const Json& value) {
    return find_compat_key(key)->is_default(value);
  };
  EXPECT_TRUE(is_default("model.moe_paged_stash_buffer_size_factor_cuda", 1.1));
  EXPECT_FALSE(is_default("model.moe_paged_stash_buffer_size_factor_cuda", 1.2));
  EXPECT_TRUE(is_default("model.mlp_chunks_for_training", int64_t{1}));
  EXPECT_TRUE(is_default("inference.mamba_inference_conv_states_dtype", "torch.bfloat16"));
  EXPECT_TRUE(is_default("peft.target_modules", Json::array()));
  EXPECT_TRUE(is_default("rl.rl_profile", Json()));
  EXPECT_FALSE(is_default("model.masked_softmax_fusion", true));
}

TEST(Catalog, EverySettingHasHelpAndADefaultWithinItsBounds) {
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const Setting& setting = *entry.setting;
    EXPECT_FALSE(setting.help.empty()) << setting.name();
    EXPECT_LE(setting.help.size(), 60u) << setting.name();
    Config config, defaults;
    const Json value = read_value(setting, entry.section->object(defaults));
    const bool unset = value.is_null() || value == Json(0) || value == Json::array();
    if (!unset) {
      EXPECT_EQ(
          store_value(setting, entry.section->object(config), value, entry.section->object(defaults)).reason,
          "")
          << setting.name();
    }
    EXPECT_EQ(
        store_value(setting, entry.section->object(config), Json(), entry.section->object(defaults)).reason,
        "")
        << setting.name() << " cannot be null";
    EXPECT_EQ(read_value(setting, entry.section->object(config)), value)
        << setting.name() << ": null is not its default";
  }
}

TEST(Catalog, TunedValuesAreAllowed) {
  size_t tuned = 0;
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    for (const Json& value : entry.setting->search) {
      Config config, defaults;
      EXPECT_EQ(
          store_value(*entry.setting, entry.section->object(config), value, entry.section->object(defaults))
              .reason,
          "")
          << entry.setting->name();
      ++tuned;
    }
  }
  EXPECT_GT(tuned, 20u);
}

TEST(Catalog, LimitsNameChoices) {
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const Setting& setting = *entry.setting;
    if (!setting.limit) continue;
    for (std::string_view value : setting.limit->values)
      EXPECT_NE(std::find(setting.choices.begin(), setting.choices.end(), value), setting.choices.end())
          << setting.name() << ": " << value;
  }
}

TEST(Catalog, RulesNameSettings) {
  std::set<std::string> names;
  for (const Rule& rule : all_rules()) {
    EXPECT_TRUE(names.insert(std::string(rule.name)).second) << rule.name;
    for (const std::string& key : words_of(rule.keys)) {
      const std::vector<Catalog::Entry>& all = Catalog::all().entries();
      EXPECT_TRUE(
          std::any_of(all.begin(), all.end(),
                      [&](const Catalog::Entry& entry) { return covers_name(key, entry.setting->name()); }))
          << rule.name << ": " << key;
    }
  }
}

TEST(Catalog, ShorthandsAndPresetsSetSettings) {
  for (const Shorthand& row : shorthands()) {
    for (const std::string& word : words_of(row.settings)) {
      const Catalog::Entry* entry = Catalog::all().find(word.substr(0, word.find('=')));
      ASSERT_NE(entry, nullptr) << word;
      if (word.ends_with("={}")) continue;  // what the flag is given
      Config config;
      EXPECT_EQ(store_value(*entry->setting, entry->section->object(config),
                            parse_override_value(word.substr(word.find('=') + 1)).value,
                            entry->section->object(config))
                    .reason,
                "")
          << word;
    }
  }
  for (const std::string& name : precision_preset_names()) {
    const PrecisionPreset* preset = find_precision_preset(name);
    ASSERT_NE(preset, nullptr) << name;
    for (const auto& [key, value] : preset->settings) {
      const Catalog::Entry* entry = Catalog::all().find(key);
      ASSERT_NE(entry, nullptr) << key;
      Config config;
      EXPECT_EQ(
          store_value(*entry->setting, entry->section->object(config), value, entry->section->object(config))
              .reason,
          "")
          << key;
    }
  }
}

TEST(Catalog, ExplainsEverySettingAndFlag) {
  for (const Catalog::Entry& entry : Catalog::all().entries())
    EXPECT_NE(explain_setting(entry.setting->name()), "");
  for (const std::string& flag : Catalog::all().flags()) EXPECT_NE(explain_setting(flag), "");
  EXPECT_EQ(explain_setting("--swiglu").substr(0, 8), "--swiglu");
  EXPECT_NE(explain_setting("--manual-gc").find("no effect"), std::string::npos);
  EXPECT_EQ(explain_setting("hidden_size").find("model.hidden_size\n"), 0u);
  EXPECT_THROW(explain_setting("hiden_size"), ConfigError);
  Json json = explain_json("--hidden-size");
  EXPECT_EQ(json.at("name"), Json("model.hidden_size"));
  EXPECT_EQ(json.at("flags").dump(), "[\"--hidden-size\"]");
  EXPECT_GT(json.at("rules").size(), 0u);
  EXPECT_EQ(explain_json("--manual-gc").at("text"), Json(explain_setting("--manual-gc")));
  EXPECT_EQ(explain_setting("enabled").find("inprocess_restart.enabled"), 0u);
  for (const CompatRow& row : compat_rows())
    for (const std::string& flag : words_of(row.flags))
      EXPECT_NE(explain_setting(flag.substr(flag[0] == '!')), "") << flag;
  EXPECT_EQ(
      explain_setting("model.cpu_offloading_weights"),
      "model.cpu_offloading_weights\n  not available yet in this build: offloaded weights, offload by stage\n"
      "  default:  false\n");
  EXPECT_NE(explain_setting("rl").find("rl.grpo_group_size"), std::string::npos);
  EXPECT_NE(explain_setting("moe_router_topk").find("needs:    --num-experts"), std::string::npos);
}

TEST(Catalog, AMisspeltKeyIsToldTheNearest) {
  for (const std::string name : {"hiden_size", "model.hiden_size", "--hiden-size"}) {
    try {
      explain_setting(name);
      FAIL() << name;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(name[0] == '-' ? "'--hidden-size'" : "'model.hidden_size'"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Catalog, OverviewTellsTheUsualFlags) {
  const std::string text = settings_overview();
  for (const char* flag : {"--num-layers N", "--micro-batch-size N", "--lr X", "--ranks N", "--save TEXT",
                           "--tensor-model-parallel-size N", "megatron help settings"})
    EXPECT_NE(text.find(flag), std::string::npos) << flag << "\n" << text;
}

TEST(Catalog, HelpListsEveryFlag) {
  const std::string help = settings_help();
  for (const Section& section : sections())
    EXPECT_NE(help.find(std::string(section.schema->title())), std::string::npos);
  for (const char* flag : {"--num-layers N", "--disable-bias-linear", "--normalization {LayerNorm,RMSNorm}",
                           "--swiglu", "--profile-ranks N..."})
    EXPECT_NE(help.find(flag), std::string::npos) << flag;
}

}  // namespace
}  // namespace megatron
