// SFT samples against those of Megatron-LM's SFTDataset, every value exact.
#include "megatron/datasets/sft/sft_dataset.h"

#include "golden/megatron_data/byte_level_bpe.h"
#include "golden/megatron_data/data_fixture.h"
#include "support/error_of.h"

namespace megatron::testing {
namespace {

std::string strip(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n\t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \n\t") - begin + 1);
}

// What the templates of the formats give.
std::string render(std::span<const ChatMessage> messages, const std::string& format) {
  std::string text = format == "default" ? "<s>" : "";
  for (const ChatMessage& m : messages) {
    if (format == "default") {
      text += "<|" + m.role + "|>" + m.content + "</s>";
    } else if (format == "identity") {
      text += m.content;
    } else if (m.role == "system") {
      text += "<SPECIAL_10>System\n" + strip(m.content) + "\n";
    } else if (format == "nemotron-h-aligned") {
      text += m.role == "user" ? "<SPECIAL_11>User\n" + strip(m.content) + "\n<SPECIAL_11>Assistant\n"
                               : strip(m.content) + "\n";
    } else {
      text += m.role == "user" ? "<SPECIAL_11>User\n" + strip(m.content) + "\n"
                               : "<SPECIAL_11>Assistant\n" + strip(m.content) + "\n<SPECIAL_12>\n";
    }
  }
  return text;
}

class SftGolden : public InGoldenFolder, public ::testing::WithParamInterface<std::string> {
 protected:
  SftGolden() : InGoldenFolder("megatron_data_masked") {}
};

TEST_P(SftGolden, Samples) {
  const Json meta = json(GetParam());
  const SafetensorsFile expected = tensors(GetParam());
  const std::string name = meta.at("prompt_format").as_string();
  const PromptFormat& format = find_prompt_format(name);
  EXPECT_EQ(format.assistant_prefix, meta.at("assistant_prefix_len").as_int());
  if (!format.chat_template.empty()) {
    EXPECT_EQ(format.chat_template, meta.at("chat_template").as_string());
  }
  auto bpe = std::make_shared<ByteLevelBpe>("data/sft_tokenizer/tokenizer.json");
  if (!format.pad_piece.empty()) {
    EXPECT_EQ(bpe->encode(std::string(format.pad_piece)), std::vector<int64_t>{meta.at("pad").as_int()});
  }
  auto encode = [&](std::span<const ChatMessage> messages) { return bpe->encode(render(messages, name)); };
  const SftOptions options{.seq_length = meta.at("seq_length").as_int(),
                           .pad = meta.at("pad").as_int(),
                           .context_parallel = meta.at("context_parallel_size").as_int(),
                           .format = format};
  auto rows = std::make_shared<const JsonRows>(meta.at("dataset").as_string());
  const SplitMatrix matrix = split_matrix(parse_split(meta.at("split").as_string()));
  const auto sizes = golden_sizes(meta.at("sizes"));
  for (Split split : kSplits) {
    const auto s = static_cast<size_t>(split);
    const std::string prefix = std::string(name_of(split)) + ".";
    const Json& info = meta.at("splits").at(name_of(split));
    const SftDataset dataset(rows, options, encode, *matrix[s], sizes[s]);
    EXPECT_EQ(dataset.size(), info.at("len").as_int());
    std::map<std::string, std::vector<double>> fields;
    for (int64_t i = dataset.rows().begin; i < dataset.rows().end; ++i)
      fields["indices"].push_back(static_cast<double>(i));
    for (int64_t i = 0; i < info.at("stored_samples").as_int(); ++i) {
      const GptSample sample = dataset.sample(i);
      auto add = [&](const std::string& field, const auto& values) {
        fields[field].insert(fields[field].end(), values.begin(), values.end());
      };
      add("tokens", sample.tokens);
      add("labels", sample.labels);
      add("loss_mask", sample.loss_mask);
      add("position_ids", sample.position_ids);
      add("cu_seqlens", sample.cu_seqlens);
      add("max_seqlen", std::array{sample.max_seqlen});
    }
    for (const auto& [field, values] : fields) EXPECT_TRUE(equals(expected, prefix + field, values));
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, SftGolden, ::testing::ValuesIn(golden_cases("megatron_data_masked", "sft_")),
                         [](const auto& info) { return info.param; });

TEST(SftRows, FaultsAreNamed) {
  const PromptFormat& format = find_prompt_format("identity");
  auto bytes = [](std::span<const ChatMessage> messages) {
    std::vector<int64_t> tokens;
    for (const ChatMessage& message : messages)
      tokens.insert(tokens.end(), message.content.begin(), message.content.end());
    return tokens;
  };
  auto error_with = [&](std::vector<ChatMessage> messages, const EncodeMessages& encode) {
    return error_of([&] { encode_conversation(messages, format, encode, "row"); });
  };
  EXPECT_EQ(error_with({{"user", "a"}, {"assistant", "b"}}, bytes), "no error");
  EXPECT_EQ(error_with({{"user", "a"}, {"assistant", ""}}, bytes), "row: message 1 is an empty answer");
  EXPECT_EQ(error_with({{"system", "a"}, {"assistant", "b"}}, bytes),
            "row: message 1 answers neither a user nor a tool");
  auto counting = [](std::span<const ChatMessage> messages) {
    return std::vector<int64_t>{static_cast<int64_t>(messages.size())};
  };
  EXPECT_NE(error_with({{"user", "a"}, {"assistant", "b"}}, counting).find("give other tokens"),
            std::string::npos);
  EXPECT_NE(error_of([] { find_prompt_format("other"); }).find("nemotron-nano-v2"), std::string::npos);
  EXPECT_NE(
      error_of([] { parse_messages(Json::parse("{\"messages\":[{\"role\":1}]}"), "row"); }).find("message 0"),
      std::string::npos);
}

}  // namespace
}  // namespace megatron::testing
