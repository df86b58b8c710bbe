#pragma once

#include <cstdint>
#include <string_view>

namespace megatron {

// Numbers of the Parquet format that are read and written here.
inline constexpr std::string_view kParquetMagic = "PAR1";
enum class ParquetType : int64_t { int32 = 1, int64 = 2, bytes = 6 };
enum class ParquetCodec : int64_t { none = 0, snappy = 1, gzip = 2, zstd = 6 };
enum class ParquetRepetition : int64_t { required = 0, optional = 1, repeated = 2 };
enum class ParquetPage : int64_t { data = 0, index = 1, dictionary = 2, data_v2 = 3 };
enum class ParquetEncoding : int64_t { plain = 0, plain_dictionary = 2, rle = 3, rle_dictionary = 8 };

}  // namespace megatron
