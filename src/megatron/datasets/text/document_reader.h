#pragma once

#include <memory>
#include <string>
#include <vector>

namespace megatron {

enum class TextFormat { automatic, jsonl, json_array, text, parquet };

// A run of documents as they stand in a file.
struct DocumentBlock {
  std::string file;
  int64_t first_line = 1;  // number of its first document in the file
  std::string lines;       // of JSON or text files: whole lines
  bool json = true;        // whether lines are JSON objects; otherwise each is a document
  std::vector<std::vector<std::string>> values;  // of columns: by key, then by row
  int64_t input_bytes = 0;                       // read of the file for this block
};

// Documents of several files in their order, block by block.
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // False at the end.
  virtual bool next(DocumentBlock& block) = 0;
};

// Opens files of any format; `automatic` goes by the name's ending (.jsonl, .json, .txt, .parquet, each also
// .gz, .zst or .xz) and, for .json, by the first byte. `keys` are columns to read of Parquet files.
std::unique_ptr<DocumentReader> open_documents(std::vector<std::string> files, TextFormat format,
                                               std::vector<std::string> keys,
                                               size_t block_bytes = size_t{1} << 20);

}  // namespace megatron
