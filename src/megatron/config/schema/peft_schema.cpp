#include "megatron/config/schema/peft_config.h"

namespace megatron {
namespace {

Schema peft_config_schema() {
  using C = PeftConfig;
  Schema s("peft", "Adapters");
  s.field<&C::scheme>("scheme", "kind of adapter").flag("--peft");
  s.field<&C::target_modules>("target_modules", "linear layers that get an adapter")
      .no_flag()
      .when_unset("linear_qkv, linear_proj, linear_fc1, linear_fc2");
  s.field<&C::exclude_modules>("exclude_modules", "linear layers that get none").no_flag();
  s.field<&C::dim>("dim", "rank of the adapter").min(1).no_flag();
  s.field<&C::alpha>("alpha", "the adapter's output is multiplied by alpha / dim").above(0).no_flag();
  s.field<&C::dropout>("dropout", "dropout inside the adapter").min(0).max(1).no_flag();
  s.field<&C::dropout_position>("dropout_position", "before or after the adapter's matrices").no_flag();
  s.field<&C::lora_A_init_method>("lora_A_init_method", "initial values of the first matrix")
      .one_of({"xavier", "normal", "kaiming", "zero"})
      .no_flag();
  s.field<&C::lora_B_init_method>("lora_B_init_method", "initial values of the second matrix")
      .one_of({"xavier", "normal", "kaiming", "zero"})
      .no_flag();
  s.field<&C::normalize_moe_lora>("normalize_moe_lora",
                                  "rank of experts' adapters is divided by the experts per token")
      .no_flag();
  s.field<&C::share_expert_adapters>("share_expert_adapters", "experts of a rank share an adapter").no_flag();
  s.field<&C::use_rslora>("use_rslora", "multiply by alpha / sqrt(dim) instead").no_flag();
  return s;
}

}  // namespace

template <>
const Schema& schema<PeftConfig>() {
  static const Schema rows = peft_config_schema();
  return rows;
}

}  // namespace megatron
