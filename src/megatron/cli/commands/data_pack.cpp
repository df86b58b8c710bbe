#include "megatron/cli/commands/data_pack.h"

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/datasets/sft/packed_parquet.h"
#include "megatron/datasets/sft/sft_templates.h"

namespace megatron {

SftEncoder sft_encoder_of(const DataSettings& settings, const Tokenizer& tokenizer,
                          const chat::ChatTemplates& templates) {
  return make_sft_encoder(tokenizer, {.loss = settings.all_learned ? LossMode::full : LossMode::assistant,
                                      .chat_template = chat_template_of(templates),
                                      .special_tokens = templates.special_tokens,
                                      .max_length = settings.seq_length + 1});
}

int pack_data(Invocation& invocation, const DataSettings& settings) {
  const std::vector<std::string>& paths = settings.paths[0];
  if (paths.size() != 1) throw UsageError("data pack: give one file (--data-path FILE.jsonl)");
  if (settings.seq_length == 0) throw UsageError("data pack: --seq-length N is missing");
  if (!settings.out.ends_with(".parquet"))
    throw UsageError("data pack: give the file to write (--out FILE.parquet)");
  const Tokenizer tokenizer = settings.tokenizer.open("data pack");
  const chat::ChatTemplates templates = find_chat_templates(settings.tokenizer.model, settings.chat_template,
                                                            settings.tokenizer.options.metadata);
  const int64_t context = settings.context_parallel;
  const PackingOptions packing{.length = settings.seq_length,
                               .multiple = context > 1 ? 2 * context : 1,
                               .pad = sft_pad_of(tokenizer),
                               .seed = static_cast<uint32_t>(settings.seed),
                               .threads = static_cast<int>(settings.workers)};
  SftRows rows(paths[0], sft_encoder_of(settings, tokenizer, templates), {0, 1}, 0, std::nullopt);
  const int64_t conversations = rows.rows();
  const PackedSftRows packed(std::move(rows), packing, std::nullopt);
  write_packed_parquet(packed, settings.out);
  if (!settings.packed_metadata.empty())
    write_file_atomically(settings.packed_metadata, Json(Json::Array{packed.metadata()}).dump(2));
  invocation.log.info("{} rows in {} bins of {} tokens, {}% full", conversations, packed.bins(),
                      settings.seq_length, packed.metadata().at("packing_efficiency").dump());
  print_path(invocation, settings.out, settings.json);
  return 0;
}

}  // namespace megatron
