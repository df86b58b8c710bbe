#include "megatron/rl/rollout_bank.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/base/checksum.h"
#include "megatron/base/refuse.h"

namespace megatron::rl {
namespace {

// A ledger is kMagic, the settings as a record, and a record for each group. A record is kRecord, the number
// of its bytes, their checksum, and they themselves. Numbers are little-endian.
constexpr std::string_view kMagic = "mgrlbnk1", kRecord = "roll";
constexpr size_t kHeaderBytes = 4 + 4 + 8;
static_assert(std::endian::native == std::endian::little);

class Writer {
 public:
  template <class T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    text_ += value;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // A number of elements of at least so many bytes each, so that nothing is reserved for more than there is.
  size_t count(size_t bytes_each) {
    const auto value = number<uint32_t>();
    require(value <= bytes_.size() / bytes_each, "rollout bank: a record is malformed");
    return value;
  }
  std::string_view take(size_t count) {
    require(count <= bytes_.size(), "rollout bank: a record is malformed");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

 private:
  std::string_view bytes_;
};

std::string record_of(std::string_view payload) {
  require(payload.size() <= UINT32_MAX, "rollout bank: a group of {} bytes is too large", payload.size());
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(payload)));
  Writer out;
  for (char c : kRecord) out.number(c);
  out.number(static_cast<uint32_t>(payload.size()));
  out.number(checksum.value());
  return out.take() + std::string(payload);
}

std::string encode(const BankedGroup& group) {
  Writer out;
  out.number(group.iteration);
  out.number(group.prompt);
  out.number(group.task);
  out.text(group.environment);
  out.number(static_cast<uint32_t>(group.rollouts.size()));
  for (const BankedRollout& rollout : group.rollouts) {
    out.number(rollout.prompt_tokens);
    out.number(rollout.reward);
    out.number(static_cast<uint8_t>(rollout.stopped));
    out.number(static_cast<uint32_t>(rollout.tokens.size()));
    for (int64_t token : rollout.tokens) {
      require(token >= INT32_MIN && token <= INT32_MAX, "rollout bank: token {} is out of range", token);
      out.number(static_cast<int32_t>(token));
    }
    out.number(static_cast<uint32_t>(rollout.log_probs.size()));
    for (float value : rollout.log_probs) out.number(value);
  }
  return out.take();
}

BankedGroup decode(std::string_view payload) {
  Reader in(payload);
  BankedGroup group;
  group.iteration = in.number<int64_t>();
  group.prompt = in.number<int64_t>();
  group.task = in.number<int64_t>();
  group.environment = in.take(in.number<uint32_t>());
  group.rollouts.resize(in.count(25));
  for (BankedRollout& rollout : group.rollouts) {
    rollout.prompt_tokens = in.number<int64_t>();
    rollout.reward = in.number<double>();
    rollout.stopped = in.number<uint8_t>() != 0;
    rollout.tokens.resize(in.count(4));
    for (int64_t& token : rollout.tokens) token = in.number<int32_t>();
    rollout.log_probs.resize(in.count(4));
    for (float& value : rollout.log_probs) value = in.number<float>();
  }
  return group;
}

// Bytes of the record whose header this is, with it; 0 where it is none.
int64_t record_bytes(std::string_view header) {
  if (header.size() < kHeaderBytes || !header.starts_with(kRecord)) return 0;
  Reader in(header.substr(kRecord.size()));
  return static_cast<int64_t>(kHeaderBytes + in.number<uint32_t>());
}

bool is_whole(std::string_view record) {
  if (record_bytes(record) != static_cast<int64_t>(record.size())) return false;
  Reader in(record.substr(kRecord.size() + 4));
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(record.substr(kHeaderBytes))));
  return in.number<uint64_t>() == checksum.value();
}

// Where two texts begin to differ, with what stands around it.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  constexpr size_t kBefore = 40, kShown = 80;
  const auto at =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const size_t begin = at > kBefore ? at - kBefore : 0;
  return {a.substr(begin, kShown), b.substr(std::min(begin, b.size()), kShown)};
}

void write_all(int file, std::string_view bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    require(count > 0, "rollout bank: {} cannot be written: {}", path, std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
}

}  // namespace

RolloutBank::RolloutBank(Options options) : options_(std::move(options)) {
  std::error_code problem;
  std::filesystem::create_directories(options_.folder, problem);
  const std::string lock = options_.folder + "/lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  require_input(lock_ >= 0,
                "rollout bank: {} cannot be written: {}; give another folder by --rl-rollout-bank-dir",
                options_.folder, std::strerror(errno));
  try {
    require_input(::flock(lock_, LOCK_EX | LOCK_NB) == 0,
                  "rollout bank: {} is in use by another run; end it, or give another folder by "
                  "--rl-rollout-bank-dir",
                  options_.folder);
    open_ledger();
    read_ledger();
  } catch (...) {
    if (ledger_ >= 0) ::close(ledger_);
    ::close(lock_);
    throw;
  }
}

RolloutBank::~RolloutBank() {
  if (ledger_ >= 0) ::close(ledger_);
  ::close(lock_);  // which also unlocks it
}

std::string RolloutBank::path() const { return options_.folder + "/ledger.bin"; }

void RolloutBank::open_ledger() {
  if (!std::filesystem::exists(path()))
    write_file_atomically(path(), std::string(kMagic) + record_of(options_.run));
  if (ledger_ >= 0) ::close(ledger_);
  ledger_ = ::open(path().c_str(), O_RDWR | O_CLOEXEC);
  require(ledger_ >= 0, "rollout bank: {} cannot be opened: {}", path(), std::strerror(errno));
}

std::string RolloutBank::read_at(int64_t offset, int64_t bytes) const {
  std::string text(static_cast<size_t>(bytes), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        ::pread(ledger_, text.data() + done, text.size() - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, "rollout bank: {} cannot be read: {}", path(), std::strerror(errno));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

void RolloutBank::read_ledger() {
  struct stat facts {};
  require(::fstat(ledger_, &facts) == 0, "rollout bank: {}: {}", path(), std::strerror(errno));
  const int64_t size = facts.st_size;
  const auto read_record = [&](int64_t at) -> std::string {
    const int64_t bytes = record_bytes(read_at(at, static_cast<int64_t>(kHeaderBytes)));
    return bytes > 0 && bytes <= size - at ? read_at(at, bytes) : "";
  };
  int64_t at = static_cast<int64_t>(kMagic.size());
  const std::string settings = read_record(at);
  require_input(read_at(0, at) == kMagic && is_whole(settings),
                "rollout bank: {} is no ledger of rollouts; remove it, or give another folder by "
                "--rl-rollout-bank-dir",
                path());
  const std::string written = settings.substr(kHeaderBytes);
  const auto [theirs, ours] = first_difference(written, options_.run);
  require_input(written == options_.run,
                "rollout bank: {} was written with other settings (it has '{}', this run '{}'); remove the "
                "folder, or give another by --rl-rollout-bank-dir",
                options_.folder, theirs, ours);
  at += static_cast<int64_t>(settings.size());
  int64_t damaged = 0;
  while (at < size) {
    const std::string record = read_record(at);
    if (record.empty()) break;
    const int64_t next = at + static_cast<int64_t>(record.size());
    if (is_whole(record)) {
      const BankedGroup group = decode(std::string_view(record).substr(kHeaderBytes));
      records_[{group.iteration, group.prompt}] = {at, static_cast<int64_t>(record.size())};
    } else {
      // Behind a damaged record others may be whole; behind a torn one there is nothing.
      if (record_bytes(read_at(next, static_cast<int64_t>(kHeaderBytes))) == 0) break;
      ++damaged;
    }
    at = next;
  }
  if (at < size)
    options_.warn(fmt::format("rollout bank: dropped {} bytes at the end of {}: the last record is torn",
                              size - at, path()));
  if (damaged > 0)
    options_.warn(fmt::format("rollout bank: passed over {} damaged records of {}", damaged, path()));
  bytes_ = at;
  if (at < size)
    require(::ftruncate(ledger_, at) == 0 && ::fdatasync(ledger_) == 0, "rollout bank: {}: {}", path(),
            std::strerror(errno));
}

std::optional<BankedGroup> RolloutBank::find(int64_t iteration, int64_t prompt) const {
  const auto found = records_.find({iteration, prompt});
  if (found == records_.end()) return {};
  const std::string record = read_at(found->second.offset, found->second.bytes);
  require(is_whole(record), "rollout bank: {}: the record at byte {} has changed since it was read", path(),
          found->second.offset);
  return decode(std::string_view(record).substr(kHeaderBytes));
}

bool RolloutBank::append(const BankedGroup& group) {
  const std::string record = record_of(encode(group));
  const auto size = static_cast<int64_t>(record.size());
  if (options_.max_bytes > 0 && bytes_ + size > options_.max_bytes) {
    if (!warned_)
      options_.warn(fmt::format(
          "rollout bank: {} has {} bytes and may have {}; groups are not kept until the next checkpoint: "
          "save more often, or raise --rl-rollout-bank-max-bytes",
          path(), bytes_, options_.max_bytes));
    warned_ = true;
    return false;
  }
  write_all(ledger_, record, bytes_, path());
  require(::fdatasync(ledger_) == 0, "rollout bank: {} cannot be written: {}", path(), std::strerror(errno));
  records_[{group.iteration, group.prompt}] = {bytes_, size};
  bytes_ += size;
  return true;
}

void RolloutBank::checkpoint(int64_t iteration) {
  const auto kept = records_.upper_bound({iteration, INT64_MAX});
  AtomicFile file(path());
  const std::string head = std::string(kMagic) + record_of(options_.run);
  file.write(head);
  auto end = static_cast<int64_t>(head.size());
  std::map<Key, Record> moved;
  for (auto it = kept; it != records_.end(); ++it) {
    const std::string record = read_at(it->second.offset, it->second.bytes);
    if (!is_whole(record)) continue;
    file.write(record);
    moved[it->first] = {end, it->second.bytes};
    end += it->second.bytes;
  }
  file.commit();
  open_ledger();
  records_ = std::move(moved);
  bytes_ = end;
  warned_ = false;
}

}  // namespace megatron::rl
