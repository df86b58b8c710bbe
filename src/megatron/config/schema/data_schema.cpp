#include "megatron/config/schema/data_config.h"

namespace megatron {
namespace {

Schema dataset_config_schema() {
  using C = DatasetConfig;
  Schema s("dataset", "Data");
  s.field<&C::seq_length>("seq_length", "tokens in a sample").min(1).no_flag().when_unset("model.seq_length");
  s.field<&C::data_path>("data_path", "data prefixes, or weights and prefixes in turn");
  s.field<&C::train_data_path>("train_data_path", "the same, for training only");
  s.field<&C::valid_data_path>("valid_data_path", "the same, for validation only");
  s.field<&C::test_data_path>("test_data_path", "the same, for testing only");
  s.field<&C::data_args_path>("data_args_path", "file with the words of data_path");
  s.field<&C::per_split_data_args_path>("per_split_data_args_path",
                                        "JSON file with the words of the three splits");
  s.field<&C::split>("split", "shares of training, validation and test");
  s.field<&C::mock_data>("mock_data", "made-up data");
  s.field<&C::replay>("replay", "file.safetensors:key of the exact token rows to train on");
  s.field<&C::random_seed>("random_seed", "seed of the data order").no_flag().when_unset("rng.seed");
  s.field<&C::path_to_cache>("path_to_cache", "folder for index files").flag("--data-cache-path");
  s.field<&C::dataloader_type>("dataloader_type", "order of the samples; none means single");
  s.field<&C::num_workers>("num_workers", "threads that prepare batches").min(0);
  s.field<&C::num_dataset_builder_threads>("num_dataset_builder_threads", "threads that build indices")
      .min(1);
  s.field<&C::data_sharding>("data_sharding", "cyclic order: each rank keeps to its own part")
      .off_flag("--no-data-sharding");
  s.field<&C::mmap_bin_files>("mmap_bin_files", "data files are mapped into memory");
  s.field<&C::reset_position_ids>("reset_position_ids", "positions start again after each document");
  s.field<&C::reset_attention_mask>("reset_attention_mask", "attention ends at document borders");
  s.field<&C::eod_mask_loss>("eod_mask_loss", "end-of-document tokens have no loss");
  s.field<&C::create_attention_mask_in_dataloader>("create_attention_mask_in_dataloader",
                                                   "masks are made with the batch");
  s.field<&C::inter_document_masking>("inter_document_masking",
                                      "attention and positions stay within documents")
      .flag("--dataloader-inter-document-masking");
  s.field<&C::fast_cache_load>("fast_cache_load", "trust the index files without checks")
      .flag("--dataloader-fast-cache-load");
  s.field<&C::defer_npy_index_mmap>("defer_npy_index_mmap", "map index files when first used")
      .flag("--dataloader-defer-npy-index-mmap");
  s.field<&C::mid_level_dataset_surplus>("mid_level_dataset_surplus", "samples built beyond a blend's need")
      .min(0);
  s.field<&C::per_dataset_sequences_path>("per_dataset_sequences_path",
                                          "JSON file with sequence counts per prefix");
  s.field<&C::object_storage_cache_path>("object_storage_cache_path",
                                         "folder for index files of remote data");
  s.field<&C::allow_ambiguous_pad_tokens>("allow_ambiguous_pad_tokens",
                                          "the padding token may be another special token");
  s.field<&C::fim_data>("fim_data", "rearrange samples to fill in the middle");
  s.field<&C::fim_rate>("fim_rate", "part of the samples rearranged").min(0).max(1);
  s.field<&C::fim_spm_rate>("fim_spm_rate", "part of those that put the suffix first").min(0).max(1);
  s.field<&C::fim_split_sample>("fim_split_sample", "text that cuts a sample into fragments");
  s.field<&C::fim_fragment_rate>("fim_fragment_rate", "part of the fragments rearranged").min(0).max(1);
  s.field<&C::fim_no_prefix>("fim_no_prefix", "fragments with this prefix stay as they are");
  s.field<&C::fim_prefix_token>("fim_prefix_token", "token before a prefix");
  s.field<&C::fim_middle_token>("fim_middle_token", "token before a middle");
  s.field<&C::fim_suffix_token>("fim_suffix_token", "token before a suffix");
  s.field<&C::fim_pad_token>("fim_pad_token", "token that fills up");
  s.field<&C::fim_eod_token>("fim_eod_token", "token that ends a document");
  s.field<&C::sft>("sft", "data are conversations for fine-tuning");
  s.field<&C::sft_tokenizer_prompt_format>("sft_tokenizer_prompt_format", "how conversations become text");
  s.field<&C::dataset_root>("dataset_root", "folder with training.jsonl, validation.jsonl and test.jsonl");
  s.field<&C::max_train_samples>("max_train_samples", "conversations used at most").min(1);
  s.field<&C::enable_offline_packing>("enable_offline_packing",
                                      "short conversations are packed into full samples beforehand");
  s.field<&C::offline_packing_specs>("offline_packing_specs", "how they are packed");
  s.field<&C::enable_in_batch_packing>("enable_in_batch_packing",
                                       "sequences of a micro-batch are packed into one");
  s.field<&C::pad_to_max_length>("pad_to_max_length", "samples are padded to seq_length");
  s.field<&C::pad_to_multiple_of>("pad_to_multiple_of", "samples are padded to a multiple of this").min(1);
  s.field<&C::dataset_kwargs>("dataset_kwargs", "further options of the data set");
  s.field<&C::do_validation>("do_validation", "read the validation set");
  s.field<&C::do_test>("do_test", "read the test set");
  return s;
}

}  // namespace

template <>
const Schema& schema<DatasetConfig>() {
  static const Schema rows = dataset_config_schema();
  return rows;
}

}  // namespace megatron
