#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "megatron/cli/common/tokenizer_flags.h"
#include "megatron/datasets/gpt/fim.h"
#include "megatron/datasets/gpt/gpt_sample.h"

namespace megatron {

// What `megatron data` is asked for.
struct DataSettings {
  std::string action;
  std::vector<std::string> words;
  // inspect
  bool multimodal = false, json = false;
  // samples
  std::array<std::vector<std::string>, 4> paths;  // all splits, then each
  std::string args_path, per_split_args_path, split = "969,30,1", samples, kind = "gpt", out, cache_path;
  bool mock = false;
  int64_t seq_length = 0, decoder_length = 128, seed = 1234, count = 64;
  std::optional<int64_t> eod, pad;
  double surplus = 0.005, mask_prob = 0.15, short_prob = 0.1;
  bool ambiguous_pad = false, no_attention_mask = false, no_binary_head = false, no_mmap = false;
  bool no_extra_token = false, keep_partial = false;
  GptSampleOptions sample;
  // pack
  std::string packed_metadata;
  int64_t workers = 1;
  // fim, sft
  std::string chat_template, prompt_format;
  TokenizerArguments tokenizer;
  FimOptions fim;
  FimPieces fim_pieces;
  int64_t context_parallel = 1;
  bool all_learned = false;
};

// The flags that fill it.
std::vector<Flag> data_flags(DataSettings& settings);

}  // namespace megatron
