#include "megatron/datasets/sft/packed_parquet.h"

#include "megatron/datasets/parquet/parquet_writer.h"

namespace megatron {

void write_packed_parquet(const PackedSftRows& rows, const std::string& path) {
  constexpr int64_t kGroup = 1000;  // rows that are in memory at once
  const ParquetKind list = ParquetKind::int32_list;
  ParquetWriter writer(path, {{"input_ids", list}, {"loss_mask", list}, {"seq_start_id", list}});
  for (int64_t begin = 0; begin < rows.bins(); begin += kGroup) {
    ParquetWriter::Lists ids, masks, starts;
    for (int64_t bin = begin; bin < std::min(rows.bins(), begin + kGroup); ++bin) {
      PackedRow row = rows.packed_row(bin);
      ids.push_back(std::move(row.input_ids));
      masks.emplace_back(row.loss_mask.begin(), row.loss_mask.end());
      starts.push_back(std::move(row.seq_start_id));
    }
    const std::vector<std::variant<ParquetWriter::Texts, ParquetWriter::Lists>> columns = {
        std::move(ids), std::move(masks), std::move(starts)};
    writer.write_rows(columns);
  }
  writer.commit();
}

}  // namespace megatron
