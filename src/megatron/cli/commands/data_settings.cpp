#include "megatron/cli/commands/data_settings.h"

#include <cstdlib>

#include "megatron/base/error.h"

namespace megatron {
namespace {

Flag optional_flag(std::string_view name, std::string_view help, std::optional<int64_t>& target) {
  return {name, "N", help, [name, &target](std::string_view command, const std::string& text) {
            target = parse_int(command, name, text);
          }};
}

Flag number_flag(std::string_view name, std::string_view help, double& target) {
  return {
      name, "X", help, [name, &target](std::string_view command, const std::string& text) {
        char* end = nullptr;
        target = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' || !(target >= 0))
          throw UsageError(fmt::format("{}: {} needs a number of at least 0, not '{}'", command, name, text));
      }};
}

}  // namespace

std::vector<Flag> data_flags(DataSettings& s) {
  std::vector<Flag> flags = tokenizer_flags(s.tokenizer);
  const std::initializer_list<Flag> own = {
      list_flag("--data-path", "LIST", "prefixes, or weights and prefixes in turn", "", s.paths[0]),
      list_flag("--train-data-path", "LIST", "the same, for training only", "", s.paths[1]),
      list_flag("--valid-data-path", "LIST", "the same, for validation only", "", s.paths[2]),
      list_flag("--test-data-path", "LIST", "the same, for testing only", "", s.paths[3]),
      text_flag("--data-args-path", "FILE", "file with the words of --data-path", s.args_path),
      text_flag("--per-split-data-args-path", "FILE", "JSON file with the words of each split",
                s.per_split_args_path),
      switch_flag("--mock-data", "Megatron's mock sequences", s.mock),
      text_flag("--split", "A,B,C", "shares of train, valid, test [969,30,1]", s.split),
      int_flag("--seq-length", "tokens of a sample", s.seq_length, 1),
      int_flag("--seed", "seed of the order [1234]", s.seed),
      text_flag("--samples", "A,B,C", "samples of each split; all: one epoch", s.samples),
      optional_flag("--eod-id", "end-of-document token", s.eod),
      optional_flag("--pad-id", "padding token [none]", s.pad),
      int_flag("--count", "samples written of each split [64]", s.count),
      text_flag("--out", "FILE", "safetensors file to write; merge: a prefix", s.out),
      text_flag("--kind", "KIND", "gpt, bert, t5, fim or sft [gpt]", s.kind),
      switch_flag("--reset-position-ids", "positions start again after --eod-id",
                  s.sample.reset_position_ids),
      switch_flag("--reset-attention-mask", "attention within documents; writes the masks",
                  s.sample.reset_attention_mask),
      switch_flag("--eod-mask-loss", "end-of-document tokens have no loss", s.sample.eod_mask_loss),
      switch_flag("--no-create-attention-mask-in-dataloader", "write no attention masks",
                  s.no_attention_mask),
      switch_flag("--inter-document-masking", "write cu_seqlens of documents",
                  s.sample.inter_document_masking),
      switch_flag("--no-add-extra-token", "samples hold no token for the last label", s.no_extra_token),
      switch_flag("--keep-last-partial-validation", "keep the validation rest", s.keep_partial),
      switch_flag("--allow-ambiguous-pad-tokens", "keep a pad id that is also --eod-id", s.ambiguous_pad),
      text_flag("--data-cache-path", "DIR", "read and write index caches here [none]", s.cache_path),
      number_flag("--mid-level-dataset-surplus", "samples beyond a blend's need [0.005]", s.surplus),
      switch_flag("--no-mmap-bin-files", "read .bin files instead of mapping them", s.no_mmap),
      int_flag("--decoder-seq-length", "t5: tokens of the decoder [128]", s.decoder_length, 1),
      number_flag("--mask-prob", "bert, t5: share of masked tokens [0.15]", s.mask_prob),
      number_flag("--short-seq-prob", "bert, t5: share of short samples [0.1]", s.short_prob),
      switch_flag("--bert-no-binary-head", "bert: samples of one part", s.no_binary_head),
      number_flag("--fim-rate", "fim: share of documents [0.5]", s.fim.rate),
      number_flag("--fim-spm-rate", "fim: share with the suffix first [0.5]", s.fim.spm_rate),
      number_flag("--fim-fragment-rate", "fim: share of fragments [0.5]", s.fim.fragment_rate),
      text_flag("--fim-split-sample", "TOKEN", "fim: token between fragments", s.fim_pieces.split),
      text_flag("--fim-no-prefix", "TEXT", "fim: documents that stay as they are", s.fim.no_prefix),
      text_flag("--fim-prefix-token", "TOKEN", "fim [<fim_prefix>]", s.fim_pieces.prefix),
      text_flag("--fim-middle-token", "TOKEN", "fim [<fim_middle>]", s.fim_pieces.middle),
      text_flag("--fim-suffix-token", "TOKEN", "fim [<fim_suffix>]", s.fim_pieces.suffix),
      text_flag("--fim-pad-token", "TOKEN", "fim [<fim_pad>]", s.fim_pieces.pad),
      text_flag("--fim-eod-token", "TOKEN", "fim [<|endoftext|>]", s.fim_pieces.eod),
      text_flag("--sft-tokenizer-prompt-format", "NAME", "sft: Megatron-LM's format of this name",
                s.prompt_format),
      text_flag("--chat-template", "FILE", "sft: template [the tokenizer's own]", s.chat_template),
      switch_flag("--no-answer-only-loss", "sft: everything is learned", s.all_learned),
      int_flag("--context-parallel-size", "sft: pad conversations for as many ranks [1]", s.context_parallel,
               1),
      text_flag("--packed-metadata", "FILE", "pack: JSON file to write about bins", s.packed_metadata),
      int_flag("--workers", "pack: threads that encode [1]", s.workers, 1),
      switch_flag("--multimodal", "inspect, merge: the index holds modes", s.multimodal),
      switch_flag("--json", "inspect: one JSON document", s.json)};
  flags.insert(flags.end(), own.begin(), own.end());
  return flags;
}

}  // namespace megatron
