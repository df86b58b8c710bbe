#pragma once

#include "megatron/datasets/text/json_fields.h"
#include "megatron/datasets/text/preprocess.h"

namespace megatron {

// Encoded documents of one key, ready to be written.
struct EncodedDocuments {
  std::vector<std::byte> bytes;
  std::vector<int32_t> lengths;    // of sequences
  std::vector<int32_t> sequences;  // of documents
};

struct EncodedBlock {
  std::vector<EncodedDocuments> keys;
  int64_t documents = 0, bad_lines = 0, tokens = 0, input_bytes = 0;
  std::string first_bad;  // what is wrong with the first malformed document
};

// Parses and encodes blocks of documents; one for each worker.
class BlockEncoder {
 public:
  BlockEncoder(const PreprocessOptions& options, EncodeText encode)
      : options_(options), encode_(std::move(encode)), fields_(options.keys) {}

  EncodedBlock run(const DocumentBlock& block);

 private:
  void add_document(EncodedDocuments& out, std::string_view text);
  // As Megatron-LM, takes the strings of a list for the sentences of a document.
  void add_document(EncodedDocuments& out, const JsonText& text);
  void add_sentence(EncodedDocuments& out, std::string_view sentence);
  void end_document(EncodedDocuments& out, size_t first);

  const PreprocessOptions& options_;
  EncodeText encode_;
  JsonFields fields_;
  std::vector<int32_t> tokens_;
  int64_t token_count_ = 0;
};

}  // namespace megatron
