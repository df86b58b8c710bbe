#include "megatron/datasets/indexed/indexed_dataset.h"

#include <cstring>
#include <filesystem>

#include "megatron/base/refuse.h"
#include "megatron/datasets/indexed/idx_format.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// What was probably meant by a prefix without an index.
std::string advice_of(const std::string& prefix) {
  for (const std::string_view end : {".bin", ".idx"})
    if (prefix.ends_with(end)) return fmt::format("leave {} out of the name", end);
  std::error_code ignored;
  if (fs::is_regular_file(prefix, ignored))
    return "it is another kind of file; megatron preprocess makes a token dataset of text";
  const fs::path path = prefix, folder = path.has_parent_path() ? path.parent_path() : ".";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".idx" && name.string().starts_with(path.filename().string() + "_"))
      return fmt::format("did you mean {}?", (path.parent_path() / name.stem()).string());
  }
  return "name the path of a .bin and an .idx file without these endings";
}

std::string index_of(const std::string& prefix) {
  std::string path = prefix + ".idx";
  std::error_code fault;
  if (fs::status(path, fault).type() == fs::file_type::not_found)
    refuse("token dataset {}: there is no {}; {}", prefix, path, advice_of(prefix));
  return path;
}

}  // namespace

IndexedDataset::IndexedDataset(std::string prefix, IndexedDatasetOptions options)
    : prefix_(std::move(prefix)), index_(index_of(prefix_)) {
  const std::string& path = index_.path();
  const std::span<const std::byte> bytes = index_.bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  require_input(size >= kIdxHeaderBytes, "{}: {} bytes, expected at least {}; it is no index, or was cut",
                path, size, kIdxHeaderBytes);
  require_input(std::memcmp(bytes.data(), kIdxMagic.data(), kIdxMagic.size()) == 0,
                "{}: does not begin with MMIDIDX; it is no index of a token dataset", path);
  uint64_t version, sequences, entries;
  std::memcpy(&version, bytes.data() + 9, 8);
  const auto code = static_cast<uint8_t>(bytes[17]);
  std::memcpy(&sequences, bytes.data() + 18, 8);
  std::memcpy(&entries, bytes.data() + 26, 8);
  require_input(version == kIdxVersion, "{}: version {}, expected {}", path, version, kIdxVersion);
  require_input(is_token_type(code), "{}: dtype code {}, expected 1 to 8", path, code);
  const auto room = static_cast<uint64_t>(size - kIdxHeaderBytes);
  require_input(sequences <= room / 12 && entries <= room / 8 && entries >= 1,
                "{}: {} sequences and {} document entries do not fit into {} bytes", path, sequences, entries,
                size);
  const auto count = static_cast<int64_t>(sequences), ends = static_cast<int64_t>(entries);
  const int64_t expected = kIdxHeaderBytes + 12 * count + 8 * ends + (options.multimodal ? count : 0);
  require_input(
      size == expected, "{}: {} bytes, expected {} for {} sequences and {} document entries{}", path, size,
      expected, count, ends,
      !options.multimodal && size == expected + count ? "; it has modes: open it as multimodal" : "");
  type_ = static_cast<TokenType>(code);
  const std::byte* data = bytes.data() + kIdxHeaderBytes;
  lengths_ = {data, count};
  offsets_ = {data + 4 * count, count};
  document_index_ = {data + 12 * count, ends};
  if (options.multimodal) modes_ = {data + 12 * count + 8 * ends, count};
  require_input(document_index_[ends - 1] == count,
                "{}: the document index ends at {}, expected {} sequences", path, document_index_[ends - 1],
                count);
  tokens_ = open_token_bytes(prefix_ + ".bin", options.mmap);
}

// By the offsets of a sound index; verify() tells of others.
int64_t IndexedDataset::tokens_between(int64_t begin, int64_t end) const {
  const auto byte_of = [&](int64_t i) { return i < sequences() ? offsets_[i] : bin_bytes(); };
  return (byte_of(end) - byte_of(begin)) / static_cast<int64_t>(size_of(type_));
}

void IndexedDataset::read_bytes(int64_t sequence, int64_t offset, std::span<std::byte> out) const {
  require(sequence >= 0 && sequence < sequences(), "{}: sequence {} of {}", prefix_, sequence, sequences());
  const auto item = static_cast<int64_t>(size_of(type_));
  const int64_t start = offsets_[sequence], total = tokens_->size();
  const auto wanted = static_cast<int64_t>(out.size());
  const bool inside = start >= 0 && start <= total && offset >= 0 && offset <= (total - start) / item &&
                      wanted <= total - start - offset * item;
  require_input(inside,
                "{}.bin: {} bytes from element {} of sequence {} (byte {}) leave the file of {} bytes",
                prefix_, wanted, offset, sequence, start, total);
  tokens_->read(start + offset * item, out);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  visit_type(type_, [&]<class T>(T*) {
    if constexpr (sizeof(T) == sizeof(int64_t) && std::is_integral_v<T>) {
      read_bytes(sequence, offset, std::as_writable_bytes(out));
    } else {
      // The narrow elements go to the end of `out`, and are widened from its front: none is overwritten
      // before it is read.
      std::byte* raw = reinterpret_cast<std::byte*>(out.data() + out.size()) - out.size() * sizeof(T);
      read_bytes(sequence, offset, {raw, out.size() * sizeof(T)});
      for (size_t i = 0; i < out.size(); ++i) {
        T value;
        std::memcpy(&value, raw + i * sizeof(T), sizeof(T));
        if constexpr (std::is_floating_point_v<T>)
          require_input(value >= -9.2e18 && value <= 9.2e18, "{}.bin: {} in sequence {} is no token", prefix_,
                        value, sequence);
        out[i] = static_cast<int64_t>(value);
      }
    }
  });
}

void IndexedDataset::verify() const {
  const std::string& path = index_.path();
  const auto item = static_cast<int64_t>(size_of(type_));
  int64_t begin = 0;
  for (int64_t i = 0; i < sequences(); ++i) {
    require_input(lengths_[i] >= 0, "{}: sequence {} has {} tokens", path, i, lengths_[i]);
    require_input(offsets_[i] == begin, "{}: sequence {} begins at byte {}, expected {}", path, i,
                  offsets_[i], begin);
    begin += lengths_[i] * item;
  }
  require_input(begin == tokens_->size(), "{}.bin: {} bytes, expected {} by its index", prefix_,
                tokens_->size(), begin);
  require_input(document_index_[0] == 0, "{}: the document index begins at {}, expected 0", path,
                document_index_[0]);
  for (int64_t i = 1; i < document_index_.size(); ++i) {
    require_input(document_index_[i] >= document_index_[i - 1],
                  "{}: document {} ends at {}, before its begin {}", path, i - 1, document_index_[i],
                  document_index_[i - 1]);
  }
}

}  // namespace megatron
