#pragma once

#include <string>
#include <string_view>

#include "megatron/cli/command.h"

// The parts of `megatron bench`.
namespace megatron {

std::string bench_ckpt_help();
int bench_ckpt(Invocation& invocation);

std::string bench_comm_help();
int bench_comm(Invocation& invocation);

std::string bench_data_help();
int bench_data(Invocation& invocation);

std::string bench_generate_help();
int bench_generate(Invocation& invocation);

std::string bench_ops_help();
int run_bench_ops(Invocation& invocation);

std::string bench_serve_help();
int bench_serve(Invocation& invocation);

std::string bench_train_help();
int bench_train(Invocation& invocation);  // args: the case and its options

}  // namespace megatron
