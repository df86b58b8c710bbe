#pragma once

#include <string>
#include <string_view>

#include "megatron/cli/command.h"

// What the table of commands calls: the help of each, and what runs it with the words behind its name.
namespace megatron {

std::string quickstart_help();
int quickstart_command(Invocation& invocation);

std::string pretrain_help();
int run_pretrain(Invocation& invocation);
std::string finetune_help();
int run_finetune(Invocation& invocation);

std::string launch_help();
int run_launch(Invocation& invocation);

std::string bench_help();
std::string bench_part_help(std::string_view part);
int run_bench(Invocation& invocation);

std::string checkpoint_help();
int run_checkpoint(Invocation& invocation);

std::string preprocess_help();
int run_preprocess(Invocation& invocation);

std::string data_help();
int run_data(Invocation& invocation);

std::string convert_help();
int run_convert(Invocation& invocation);

std::string compare_help();
int run_compare(Invocation& invocation);

std::string logits_help();
int run_logits(Invocation& invocation);

std::string generate_help();
int run_generate(Invocation& invocation);

std::string serve_help();
int run_serve(Invocation& invocation);

std::string chat_help();
int run_chat(Invocation& invocation);

std::string tokenizer_help();
std::string tokenizer_part_help(std::string_view part);  // of `tokenizer chat`
int run_tokenizer(Invocation& invocation);

std::string recipes_help();
int run_recipes(Invocation& invocation);

std::string report_help();
int run_report(Invocation& invocation);

std::string config_help();
int run_config(Invocation& invocation);  // megatron config show

std::string explain_help();
int run_explain(Invocation& invocation);  // megatron explain KEY...

std::string groups_help();
int run_groups(Invocation& invocation);

std::string parity_help();
int run_parity(Invocation& invocation);

std::string plan_help();
int run_plan(Invocation& invocation);

std::string autotune_help();
std::string autotune_part_help(std::string_view part);
int run_autotune(Invocation& invocation);

std::string resilience_help();
int run_resilience(Invocation& invocation);

std::string doctor_help();
int run_doctor(Invocation& invocation);

}  // namespace megatron
