#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "megatron/base/float_types.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/convert.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/models/gpt.h"
#include "support/error_of.h"
#include "support/golden.h"
#include "support/temp_dir.h"

// Weights that files keep in fewer bits are read as the numbers that they stand for.
namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TempDir;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

void write_model(const std::string& directory, const Json& config, const Tensors& tensors) {
  fs::create_directories(directory);
  std::ofstream(directory + "/config.json") << config.dump();
  write_safetensors(directory + "/model.safetensors", tensors, {{"format", "pt"}});
}

// Both directories give the same model, to the bit, whole and in tensor-parallel shards.
void expect_same_numbers(const std::string& a, const std::string& b) {
  const AutoBridge first(a), second(b);
  const ModelConfig& config = first.model_config();
  RankContext ctx;
  GptModel model(config, {.first_layer = 0, .layers = config.num_layers}, {}, DType::F32);
  model.visit([&](Parameter& parameter) {
    const Shape& shape = parameter.shard.global_shape;
    for (int dim = 0; dim < shape.rank(); ++dim)
      for (int rank = 0; rank < 2; ++rank) {
        if (shape[dim] % 2 != 0) continue;
        const ShardSpec shard = ShardSpec::split(shape, dim, rank, 2);
        Tensor x = ctx.empty(shard.local_shape, DType::F32), y = ctx.empty(shard.local_shape, DType::F32);
        first.read(ctx, parameter.name, shard, x);
        second.read(ctx, parameter.name, shard, y);
        EXPECT_EQ(ctx.to_vector<float>(x), ctx.to_vector<float>(y)) << parameter.name;
      }
  });
}

// What comes out again is plain bf16, and so says its configuration.
void expect_plain_export(const std::string& source, const std::string& numbers) {
  TempDir folder;
  import_model(source, folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  import_model(numbers, folder / "plain", {.dtype = DType::BF16});
  export_model(folder / "plain", folder / "plain_hf", {.dtype = DType::BF16});
  EXPECT_FALSE(Json::read(folder / "hf/config.json").contains("quantization_config"));
  const SafetensorsDirectory out(folder / "hf"), expected(folder / "plain_hf");
  ASSERT_EQ(out.names(), expected.names());
  for (const std::string& name : out.names()) {
    if (out.at(name).stored != "BF16") continue;  // was not quantised
    const auto u = out.file_of(name).bytes(out.at(name)), v = expected.file_of(name).bytes(expected.at(name));
    EXPECT_TRUE(std::equal(u.begin(), u.end(), v.begin(), v.end())) << name;
  }
}

struct Fp8Model {
  Json config = Json::read(testing::golden_path("hf_models", "deepseek_v3/model/config.json"));
  SafetensorsFile source{testing::golden_path("hf_models", "deepseek_v3/model/model.safetensors")};
  Tensors quantized, plain;

  // Every projection in fp8 with a scale for each block of 16 x 16; sizes need not divide.
  Fp8Model() {
    for (const std::string& name : source.names()) {
      const Tensor tensor = source.tensor(name);
      if (!name.ends_with("proj.weight")) {
        quantized.emplace_back(name, tensor);
        plain.emplace_back(name, tensor);
        continue;
      }
      const int64_t rows = tensor.size(0), columns = tensor.size(1), wide = (columns + 15) / 16;
      Tensor values = host_tensor({rows, columns}, DType::F8E4M3),
             numbers = host_tensor({rows, columns}, DType::F32);
      Tensor scales = host_tensor({(rows + 15) / 16, wide}, DType::F32);
      for (int64_t i = 0; i < scales.numel(); ++i)
        scales.data<float>()[i] = 1e-2f * static_cast<float>(1 + i % 7);
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        const float scale = scales.data<float>()[i / columns / 16 * wide + i % columns / 16];
        values.data<fp8_e4m3>()[i] = fp8_e4m3(tensor.data<float>()[i] / scale);
        numbers.data<float>()[i] = static_cast<float>(values.data<fp8_e4m3>()[i]) * scale;
      }
      quantized.emplace_back(name, values);
      quantized.emplace_back(name + "_scale_inv", scales);
      plain.emplace_back(name, numbers);
    }
  }
  Json quantized_config() const {
    Json json = config;
    json["quantization_config"] = Json::parse(R"({"quant_method": "fp8", "weight_block_size": [16, 16]})");
    return json;
  }
};

TEST(Quantized, Fp8InBlocks) {
  const Fp8Model model;
  TempDir folder;
  write_model(folder / "plain", model.config, model.plain);
  write_model(folder / "fp8", model.quantized_config(), model.quantized);
  expect_same_numbers(folder / "fp8", folder / "plain");
  expect_plain_export(folder / "fp8", folder / "plain");
}

TEST(Quantized, WhatCannotBeReadIsRefused) {
  Fp8Model model;
  TempDir folder;
  Json config = model.quantized_config();
  config["quantization_config"]["quant_method"] = "gptq";
  write_model(folder / "gptq", config, model.quantized);
  EXPECT_NE(error_of([&] { AutoBridge{folder / "gptq"}; }).find("gptq"), std::string::npos);

  std::erase_if(model.quantized,
                [](const auto& t) { return t.first.ends_with("0.self_attn.o_proj.weight_scale_inv"); });
  write_model(folder / "scales", model.quantized_config(), model.quantized);
  const std::string error = error_of([&] { AutoBridge{folder / "scales"}; });
  EXPECT_NE(error.find("o_proj.weight: the file has F8_E4M3 without its scales"), std::string::npos) << error;
}

TEST(Quantized, Mxfp4Experts) {
  Json config = Json::read(testing::golden_path("hf_models", "gpt_oss/model/config.json"));
  config["hidden_size"] = 64;
  const Family& family = find_family("GptOssForCausalLM");
  const HfConfig hf(config);
  const ModelConfig model = family.configure({hf, {}});
  std::map<std::string, Shape> shapes;
  GptModel whole(model, {.first_layer = 0, .layers = model.num_layers}, {}, DType::F32);
  whole.visit([&](Parameter& p) {
    for (const HfPart& part : hf_parts(family.rules, model, p.name, p.shard.global_shape))
      shapes[part.name] = stored_shape(part.shard.local_shape, part.view);
  });

  Tensors quantized, plain;
  uint32_t state = 1;
  const auto random = [&] { return (state = state * 1664525 + 1013904223) >> 16; };
  for (const auto& [name, shape] : shapes) {
    Tensor numbers = host_tensor(shape, DType::F32);
    float* out = numbers.data<float>();
    plain.emplace_back(name, numbers);
    if (!name.ends_with("gate_up_proj") && !name.ends_with("down_proj")) {
      for (int64_t i = 0; i < numbers.numel(); ++i) out[i] = static_cast<float>(random() % 256) / 256;
      quantized.emplace_back(name, numbers);
      continue;
    }
    // In the files the rows are outputs.
    const int64_t in = shape[1], rows = shape[2], groups = in / 32;
    Tensor blocks = host_tensor({shape[0], rows, groups, 16}, DType::U8),
           scales = host_tensor({shape[0], rows, groups}, DType::U8);
    for (int64_t i = 0; i < scales.numel(); ++i)
      scales.data<uint8_t>()[i] = static_cast<uint8_t>(118 + random() % 12);
    for (int64_t i = 0; i < blocks.numel(); ++i) blocks.data<uint8_t>()[i] = static_cast<uint8_t>(random());
    for (int64_t e = 0; e < shape[0]; ++e)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < in; ++c) {
          const int64_t group = (e * rows + row) * groups + c / 32;
          const uint8_t byte = blocks.data<uint8_t>()[group * 16 + c % 32 / 2];
          const int bits = c % 2 == 0 ? byte & 15 : byte >> 4, exponent = bits >> 1 & 3, mantissa = bits & 1;
          const double magnitude =
              exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, exponent - 1);
          out[(e * in + c) * rows + row] = static_cast<float>(
              (bits & 8 ? -magnitude : magnitude) * std::ldexp(1.0, scales.data<uint8_t>()[group] - 127));
        }
    quantized.emplace_back(name + "_blocks", blocks);
    quantized.emplace_back(name + "_scales", scales);
  }
  TempDir folder;
  write_model(folder / "plain", config, plain);
  config["quantization_config"] = Json::parse(R"({"quant_method": "mxfp4"})");
  write_model(folder / "mxfp4", config, quantized);
  expect_same_numbers(folder / "mxfp4", folder / "plain");
  expect_plain_export(folder / "mxfp4", folder / "plain");
}

}  // namespace
}  // namespace megatron
