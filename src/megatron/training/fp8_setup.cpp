#include "megatron/training/fp8_setup.h"

#include <charconv>

namespace megatron {
namespace {

// The layer that a parameter belongs to by its name, "decoder.layers.7.…"; −1: none.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view word = "layers.";
  size_t at = name.find(word);
  int64_t layer = -1;
  if (at != std::string_view::npos)
    std::from_chars(name.data() + at + word.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

void choose_fp8(const Config& config, std::span<Parameter* const> parameters) {
  const PrecisionConfig& p = config.precision;
  if (p.fp8 == Fp8Format::none) return;
  int64_t first = p.first_last_layers_bf16 ? p.num_layers_at_start_in_bf16 : 0;
  int64_t last = config.model.num_layers - (p.first_last_layers_bf16 ? p.num_layers_at_end_in_bf16 : 0);
  for (Parameter* parameter : parameters) {
    int64_t layer = layer_of(parameter->name);
    bool linear = false;
    for (const char* name :
         {"linear_qkv.weight", "linear_proj.weight", "linear_fc1.weight", "linear_fc2.weight"})
      linear |= parameter->name.ends_with(name);
    if (!linear || parameter->expert || layer < first || layer >= last) continue;
    parameter->fp8 = std::make_unique<ops::Fp8Weight>();
    if (p.fp8 == Fp8Format::e4m3) parameter->fp8->gradient = DType::F8E4M3;
  }
}

}  // namespace megatron
