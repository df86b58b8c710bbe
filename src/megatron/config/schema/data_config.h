#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

enum class DataloaderType { none, single, cyclic, batch, external };
constexpr auto names(DataloaderType) { return std::array{"none", "single", "cyclic", "batch", "external"}; }

struct DatasetConfig {
  int64_t seq_length = 0;
  std::vector<std::string> data_path;
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string data_args_path;
  std::string per_split_data_args_path;
  std::string split = "969,30,1";
  bool mock_data = false;
  std::string replay;
  int64_t random_seed = 1234;
  std::string path_to_cache;
  DataloaderType dataloader_type = DataloaderType::none;
  int64_t num_workers = 2;
  int64_t num_dataset_builder_threads = 1;
  bool data_sharding = true;
  bool mmap_bin_files = true;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  bool create_attention_mask_in_dataloader = true;
  bool inter_document_masking = false;
  bool fast_cache_load = false;
  bool defer_npy_index_mmap = false;
  double mid_level_dataset_surplus = 0.005;
  std::string per_dataset_sequences_path;
  std::string object_storage_cache_path;
  bool allow_ambiguous_pad_tokens = false;
  bool fim_data = false;
  double fim_rate = 0.5;
  double fim_spm_rate = 0.5;
  std::string fim_split_sample;
  std::optional<double> fim_fragment_rate;
  std::string fim_no_prefix;
  std::string fim_prefix_token = "<fim_prefix>";
  std::string fim_middle_token = "<fim_middle>";
  std::string fim_suffix_token = "<fim_suffix>";
  std::string fim_pad_token = "<fim_pad>";
  std::string fim_eod_token = "<|endoftext|>";
  bool sft = false;
  std::string sft_tokenizer_prompt_format = "nemotron-h-aligned";
  std::string dataset_root;
  int64_t max_train_samples = 0;
  bool enable_offline_packing = false;
  Json offline_packing_specs;
  bool enable_in_batch_packing = false;
  bool pad_to_max_length = false;
  int64_t pad_to_multiple_of = 0;
  Json dataset_kwargs;
  bool do_validation = true;
  bool do_test = true;
};

template <>
const Schema& schema<DatasetConfig>();

}  // namespace megatron
