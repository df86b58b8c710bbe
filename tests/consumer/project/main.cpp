#include "megatron/base/error.h"
#include "megatron/base/log.h"
#include "megatron/base/nearest.h"

int main() {
  const std::vector<std::string> names = {"base", "tensor"};
  const std::vector<std::string> found = megatron::nearest("tensro", names);
  megatron::require(found.size() == 1 && found[0] == "tensor", "consumer: nearest() found {} names",
                    found.size());
  megatron::Log().info("megatron {} is found and linked", found[0]);
}
