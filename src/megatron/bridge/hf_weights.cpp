#include "megatron/bridge/hf_weights.h"

#include <array>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/float_types.h"
#include "megatron/checkpoint/host_tensor.h"

namespace megatron {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales", kInverseScale = "_scale_inv";

std::string with(std::string_view name, std::string_view end) { return std::string(name) + std::string(end); }

// The numbers that four bits stand for; the highest is the sign.
constexpr std::array<float, 16> kFourBits = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                             -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr int64_t kGroup = 32;        // numbers with one scale, two in a byte
constexpr int kExponentOffset = 127;  // of MXFP4's scales, powers of two

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace

HfWeights::HfWeights(const std::string& directory, const HfConfig& config)
    : files_(std::make_shared<const SafetensorsDirectory>(directory)) {
  const Json* settings = config.find({"quantization_config"});
  if (!settings) return;
  const HfConfig quantization(*settings);
  const std::string method = quantization.text({"quant_method"}, "");
  if (method != "fp8" && method != "mxfp4")
    throw ConfigError(fmt::format(
        "config.json: weights quantised by '{}' cannot be read here; fp8 in blocks and mxfp4 can", method));
  if (const Json* block = quantization.find({"weight_block_size"})) {
    if (!block->is_array() || block->size() != 2 || (*block)[0].as_int() < 1 || (*block)[1].as_int() < 1)
      throw ConfigError("config.json: weight_block_size must be two positive numbers");
    block_rows_ = (*block)[0].as_int();
    block_columns_ = (*block)[1].as_int();
  }
}

bool HfWeights::is_mxfp4(std::string_view name) const {
  return !files_->contains(name) && files_->contains(with(name, kBlocks)) &&
         files_->contains(with(name, kScales)) && files_->at(with(name, kBlocks)).shape.rank() >= 3;
}

bool HfWeights::is_fp8(std::string_view name) const {
  return files_->contains(name) && files_->at(name).dtype == DType::F8E4M3 &&
         files_->at(name).shape.rank() == 2 && files_->contains(with(name, kInverseScale));
}

bool HfWeights::quantized(std::string_view name) const { return is_fp8(name) || is_mxfp4(name); }

bool HfWeights::contains(std::string_view name) const { return files_->contains(name) || is_mxfp4(name); }

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> result;
  for (const std::string& name : files_->names()) {
    const auto base = [&](std::string_view end) { return name.substr(0, name.size() - end.size()); };
    if (name.ends_with(kInverseScale) && is_fp8(base(kInverseScale))) continue;
    if (name.ends_with(kScales) && is_mxfp4(base(kScales))) continue;
    result.push_back(name.ends_with(kBlocks) && is_mxfp4(base(kBlocks)) ? base(kBlocks) : name);
  }
  return result;
}

Shape HfWeights::shape(std::string_view name) const {
  if (!is_mxfp4(name)) return files_->at(name).shape;
  const Shape& blocks = files_->at(with(name, kBlocks)).shape;  // …, rows, groups, bytes of a group
  const int rank = blocks.rank();
  Shape shape;
  for (int d = 0; d + 3 < rank; ++d) shape.push_back(blocks[d]);
  shape.push_back(blocks[rank - 2] * blocks[rank - 1] * 2);
  shape.push_back(blocks[rank - 3]);
  return shape;
}

DType HfWeights::dtype(std::string_view name) const {
  return quantized(name) ? DType::BF16 : files_->at(name).dtype;
}

Tensor HfWeights::dequantized(std::string_view name, int64_t begin, int64_t end) const {
  return is_fp8(name) ? from_fp8(name, begin, end) : from_mxfp4(name, begin, end);
}

Tensor HfWeights::from_fp8(std::string_view name, int64_t begin, int64_t end) const {
  const Tensor values = files_->tensor(name), scales = files_->tensor(with(name, kInverseScale));
  const int64_t columns = values.size(1);
  const Shape wanted{blocks_of(values.size(0), block_rows_), blocks_of(columns, block_columns_)};
  if (!(scales.shape() == wanted) || scales.dtype() != DType::F32)
    throw ConfigError(fmt::format("{}{}: the file has {} {}, blocks of {} x {} need fp32 {}", name,
                                  kInverseScale, scales.dtype(), scales.shape(), block_rows_, block_columns_,
                                  wanted));
  Tensor result = host_tensor({end - begin, columns}, DType::F32);
  const auto* in = values.data<fp8_e4m3>();
  const float* factors = scales.data<float>();
  float* out = result.data<float>();
  for (int64_t row = begin; row < end; ++row) {
    const float* of_row = factors + row / block_rows_ * wanted[1];
    for (int64_t column = 0; column < columns; ++column)
      *out++ = static_cast<float>(in[row * columns + column]) * of_row[column / block_columns_];
  }
  return result;
}

Tensor HfWeights::from_mxfp4(std::string_view name, int64_t begin, int64_t end) const {
  const Tensor blocks = files_->tensor(with(name, kBlocks)), scales = files_->tensor(with(name, kScales));
  const Shape& shape = blocks.shape();
  Shape wanted = shape;
  wanted.erase(wanted.rank() - 1);
  if (shape.rank() != 4 || shape[3] * 2 != kGroup || blocks.dtype() != DType::U8 ||
      scales.dtype() != DType::U8 || !(scales.shape() == wanted))
    throw ConfigError(
        fmt::format("{}: MXFP4 is bytes [experts, rows, groups, {}] with scales [experts, rows, groups], not "
                    "{} {} with {} {}",
                    name, kGroup / 2, blocks.dtype(), shape, scales.dtype(), scales.shape()));
  const int64_t rows = shape[1], groups = shape[2];
  Tensor result = host_tensor({end - begin, rows, groups * kGroup}, DType::F32);
  const int64_t first = begin * rows * groups, last = end * rows * groups;
  const uint8_t *bytes = blocks.data<uint8_t>(), *exponents = scales.data<uint8_t>();
  float* out = result.data<float>();
  for (int64_t group = first; group < last; ++group) {
    const float scale = std::ldexp(1.0f, exponents[group] - kExponentOffset);
    for (int64_t i = 0; i < kGroup / 2; ++i) {
      const uint8_t both = bytes[group * (kGroup / 2) + i];
      *out++ = kFourBits[both & 15] * scale;
      *out++ = kFourBits[both >> 4] * scale;
    }
  }
  return result.transpose(1, 2);
}

}  // namespace megatron
