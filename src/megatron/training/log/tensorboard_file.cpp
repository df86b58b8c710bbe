#include "megatron/training/log/tensorboard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "megatron/base/crc32c.h"

namespace megatron {
namespace {

// Fields of a protobuf message, appended to `bytes`.
class ProtoMessage {
 public:
  ProtoMessage& varint(int field, uint64_t value) {
    key(field, 0);
    raw_varint(value);
    return *this;
  }
  ProtoMessage& fixed64(int field, double value) {
    key(field, 1);
    little_endian(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  ProtoMessage& fixed32(int field, float value) {
    key(field, 5);
    little_endian(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  ProtoMessage& bytes(int field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& message(int field, const ProtoMessage& value) { return bytes(field, value.bytes_); }

  void little_endian(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }
  const std::string& encoded() const { return bytes_; }

 private:
  void key(int field, int wire_type) { raw_varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(crc, 15) + 0xa282ead8u;
}

// Length, its checksum, the bytes, their checksum.
std::string tf_record(std::string_view bytes) {
  ProtoMessage length, record;
  length.little_endian(bytes.size(), 8);
  ProtoMessage length_sum, sum;
  length_sum.little_endian(masked_crc(length.encoded()), 4);
  sum.little_endian(masked_crc(bytes), 4);
  return length.encoded() + length_sum.encoded() + std::string(bytes) + sum.encoded();
}

double event_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// An Event of one Summary value.
std::string summary_event(const ProtoMessage& value, int64_t step) {
  return ProtoMessage()
      .fixed64(1, event_time())
      .varint(2, static_cast<uint64_t>(step))
      .message(5, ProtoMessage().message(1, value))
      .encoded();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

TensorBoardFile::TensorBoardFile(std::string folder, const Log& log, const Options& options)
    : log_(log), options_(options), path_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  const std::string stem =
      fmt::format("{}/events.out.tfevents.{:010}.{}.{}", path_, std::time(nullptr), host_name(), ::getpid());
  for (int count = 0; fd_ < 0; ++count) {
    const std::string path = fmt::format("{}.{}", stem, count);
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ >= 0) {
      path_ = path;
    } else if (errno != EEXIST) {
      warn(std::strerror(errno));
      return;
    }
  }
  add(ProtoMessage().fixed64(1, event_time()).bytes(3, "brain.Event:2").encoded());
  flush();
}

TensorBoardFile::~TensorBoardFile() {
  flush();
  if (fd_ >= 0) ::close(fd_);
}

void TensorBoardFile::scalar(std::string_view tag, double value, int64_t step) {
  add(summary_event(ProtoMessage().bytes(1, tag).fixed32(2, static_cast<float>(value)), step));
}

void TensorBoardFile::text(std::string_view tag, std::string_view markdown, int64_t step) {
  constexpr int string_type = 7, tensor_class = 2;
  const ProtoMessage plugin = ProtoMessage().bytes(1, "text");
  const ProtoMessage metadata = ProtoMessage().message(1, plugin).varint(4, tensor_class);
  const ProtoMessage tensor =
      ProtoMessage()
          .varint(1, string_type)
          .message(2, ProtoMessage().message(2, ProtoMessage().varint(1, 1)))  // one element
          .bytes(8, markdown);
  // TensorBoard finds texts by this ending.
  add(summary_event(
      ProtoMessage().bytes(1, fmt::format("{}/text_summary", tag)).message(8, tensor).message(9, metadata),
      step));
}

void TensorBoardFile::add(std::string_view event) {
  if (fd_ < 0) return;
  queue_ += tf_record(event);
  ++queued_;
  if (queued_ >= options_.queued_events || Clock::now() - flushed_ >= options_.flush_interval) flush();
}

void TensorBoardFile::flush() {
  flushed_ = Clock::now();
  if (fd_ < 0 || queue_.empty()) return;
  const auto size = static_cast<int64_t>(queue_.size());
  if (::write(fd_, queue_.data(), queue_.size()) == size) {
    bytes_ += size;
  } else {
    warn(std::strerror(errno));
    (void)!::ftruncate(fd_, bytes_);
  }
  queue_.clear();
  queued_ = 0;
}

void TensorBoardFile::warn(std::string_view problem) {
  if (!warned_)
    log_.warning("TensorBoard: {} cannot be written: {}; some curves will miss points", path_, problem);
  warned_ = true;
}

}  // namespace megatron
