#include "megatron/cli/command.h"

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return megatron::run_cli(megatron::commands(), std::move(args), stdout, stderr);
}
