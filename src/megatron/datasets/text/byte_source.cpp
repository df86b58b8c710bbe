#include "megatron/datasets/text/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "megatron/base/refuse.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {
namespace {

constexpr size_t kBuffer = size_t{1} << 18;

class FileSource final : public ByteSource {
 public:
  explicit FileSource(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    require_input(fd_ >= 0, "cannot open {}: {}", path_, std::strerror(errno));
  }
  ~FileSource() override { ::close(fd_); }

  size_t read(std::span<char> out) override {
    size_t total = 0;
    while (total < out.size()) {
      const ssize_t count = ::read(fd_, out.data() + total, out.size() - total);
      if (count < 0 && errno == EINTR) continue;
      require_input(count >= 0, "cannot read {} at byte {}: {}", path_, consumed_, std::strerror(errno));
      if (count == 0) break;
      total += static_cast<size_t>(count);
      consumed_ += count;
    }
    return total;
  }
  int64_t consumed() const override { return consumed_; }

 private:
  std::string path_;
  int fd_;
  int64_t consumed_ = 0;
};

// Bytes that were already taken from a source, then the rest of it.
class ReplayedSource final : public ByteSource {
 public:
  ReplayedSource(std::string head, std::unique_ptr<ByteSource> rest)
      : head_(std::move(head)), rest_(std::move(rest)) {}

  size_t read(std::span<char> out) override {
    if (at_ == head_.size()) return rest_->read(out);
    const size_t count = std::min(out.size(), head_.size() - at_);
    std::memcpy(out.data(), head_.data() + at_, count);
    at_ += count;
    return count;
  }
  int64_t consumed() const override { return rest_->consumed(); }

 private:
  std::string head_;
  size_t at_ = 0;
  std::unique_ptr<ByteSource> rest_;
};

class DecodedSource final : public ByteSource {
 public:
  DecodedSource(std::unique_ptr<ByteSource> source, std::unique_ptr<Decompressor> decoder, std::string path)
      : source_(std::move(source)), decoder_(std::move(decoder)), path_(std::move(path)), buffer_(kBuffer) {}

  size_t read(std::span<char> out) override {
    std::span<std::byte> room = std::as_writable_bytes(out);
    while (room.size() == out.size()) {
      if (in_.empty()) {
        const size_t count = source_->read(buffer_);
        in_ = std::as_bytes(std::span(buffer_).first(count));
        if (count == 0) {
          require(!within_, "{}: the compressed data ends too early", path_);
          return 0;
        }
      }
      within_ = decoder_->decode(in_, room);
    }
    return out.size() - room.size();
  }
  int64_t consumed() const override { return source_->consumed(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<Decompressor> decoder_;
  std::string path_;
  std::vector<char> buffer_;
  std::span<const std::byte> in_;
  bool within_ = false;
};

class ArraySource final : public ByteSource {
 public:
  ArraySource(std::unique_ptr<ByteSource> source, std::string origin)
      : source_(std::move(source)), origin_(std::move(origin)), buffer_(kBuffer) {}

  size_t read(std::span<char> out) override {
    size_t written = 0;
    while (written < out.size()) {
      if (at_ == count_) {
        count_ = source_->read(buffer_);
        at_ = 0;
        if (count_ == 0) {
          require(state_ == State::after, "{}: the JSON array ends within element {}", origin_, element_ + 1);
          break;
        }
      }
      const char c = buffer_[at_++];
      if (char kept = next(c)) out[written++] = kept;
    }
    return written;
  }
  int64_t consumed() const override { return source_->consumed(); }

 private:
  enum class State { before, between, element, string, escape, after };

  // The byte that follows in the lines, or 0 for none.
  char next(char c) {
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    switch (state_) {
      case State::before:
        require(blank || c == '[', "{}: a JSON array begins with [, not with '{}'", origin_, c);
        if (c == '[') state_ = State::between;
        return 0;
      case State::after:
        require(blank, "{}: '{}' stands behind the JSON array", origin_, c);
        return 0;
      case State::between:
        if (blank) return 0;
        require(depth_ == 0 && c != ',', "{}: element {} of the JSON array is empty", origin_, element_ + 1);
        if (c == ']') {
          require(element_ == 0, "{}: the JSON array ends with a comma", origin_);
          state_ = State::after;
          return 0;
        }
        state_ = State::element;
        return inside(c);
      case State::element:
        return inside(c);
      case State::string:
        if (c == '"') state_ = State::element;
        if (c == '\\') state_ = State::escape;
        // A raw line break must not end the line; as another control character it is still refused.
        return c == '\n' || c == '\0' ? '\x01' : c;
      default:
        state_ = State::string;
        return c == '\n' || c == '\0' ? '\x01' : c;
    }
  }

  char inside(char c) {
    if (depth_ == 0 && (c == ',' || c == ']')) {
      state_ = c == ',' ? State::between : State::after;
      ++element_;
      return '\n';
    }
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') {
      require(depth_ > 0, "{}: element {} of the JSON array closes what is not open", origin_, element_ + 1);
      --depth_;
    }
    if (c == '"') state_ = State::string;
    return c == '\n' || c == '\r' || c == '\0' ? (c == '\0' ? '\x01' : ' ') : c;
  }

  std::unique_ptr<ByteSource> source_;
  std::string origin_;
  std::vector<char> buffer_;
  size_t at_ = 0, count_ = 0;
  State state_ = State::before;
  int64_t depth_ = 0, element_ = 0;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  using std::string_view_literals::operator""sv;
  std::unique_ptr<ByteSource> file = std::make_unique<FileSource>(path);
  std::string head(6, '\0');
  head.resize(file->read(head));
  std::unique_ptr<ByteSource> whole = std::make_unique<ReplayedSource>(head, std::move(file));
  std::unique_ptr<Decompressor> decoder;
  if (head.starts_with("\x1f\x8b"sv)) decoder = make_gzip_decompressor(path);
  if (head.starts_with("\x28\xb5\x2f\xfd"sv)) decoder = make_zstd_decompressor(path);
  if (head.starts_with("\xfd\x37zXZ\x00"sv)) decoder = make_xz_decompressor(path);
  if (!decoder) return whole;
  return std::make_unique<DecodedSource>(std::move(whole), std::move(decoder), path);
}

std::unique_ptr<ByteSource> array_to_lines(std::unique_ptr<ByteSource> source, std::string origin) {
  return std::make_unique<ArraySource>(std::move(source), std::move(origin));
}

}  // namespace megatron
