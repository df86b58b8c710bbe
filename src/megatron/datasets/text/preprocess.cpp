#include "megatron/datasets/text/preprocess.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/seconds_since.h"
#include "megatron/datasets/text/preprocess_output.h"

namespace megatron {
namespace {

struct Outcome {
  EncodedBlock block;
  std::exception_ptr fault;
};

// Blocks between the threads. As many are in flight as keep all workers busy; results come out in the order
// of the input.
class BlockQueue {
 public:
  explicit BlockQueue(int64_t limit) : limit_(limit) {}

  // Of the reader: waits for room; false where the work was stopped.
  bool put(DocumentBlock block) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || read_ - written_ < limit_; });
    if (stopped_) return false;
    todo_.emplace_back(read_++, std::move(block));
    changed_.notify_all();
    return true;
  }
  // The reader is done, or failed.
  void close(std::exception_ptr fault) {
    std::lock_guard lock(mutex_);
    if (fault) done_[read_++] = {.fault = std::move(fault)};
    closed_ = true;
    changed_.notify_all();
  }
  // Of a worker: false at the end.
  bool take(int64_t& index, DocumentBlock& block) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || closed_ || !todo_.empty(); });
    if (stopped_ || todo_.empty()) return false;
    index = todo_.front().first;
    block = std::move(todo_.front().second);
    todo_.pop_front();
    return true;
  }
  void finish(int64_t index, Outcome outcome) {
    std::lock_guard lock(mutex_);
    done_[index] = std::move(outcome);
    changed_.notify_all();
  }
  // Of the writer: the next result in order; false at the end.
  bool next(Outcome& outcome) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(written_) || (closed_ && written_ == read_); });
    const auto found = done_.find(written_);
    if (found == done_.end()) return false;
    outcome = std::move(found->second);
    done_.erase(found);
    ++written_;
    changed_.notify_all();
    return true;
  }
  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, DocumentBlock>> todo_;
  std::map<int64_t, Outcome> done_;
  int64_t limit_, read_ = 0, written_ = 0;
  bool closed_ = false, stopped_ = false;
};

// The reader and the workers; they end with the object.
class Workers {
 public:
  // The first blocks of the input are passed over: they are written already.
  Workers(BlockQueue& queue, const PreprocessOptions& options,
          const std::function<EncodeText()>& make_encoder, int64_t skipped)
      : queue_(queue), skipped_(skipped) {
    std::vector<EncodeText> encoders;
    for (int i = 0; i < std::max(1, options.workers); ++i) encoders.push_back(make_encoder());
    try {
      threads_.emplace_back([this, &options] { read(options); });
      for (EncodeText& encoder : encoders)
        threads_.emplace_back(
            [this, &options, encoder = std::move(encoder)]() mutable { encode(options, encoder); });
    } catch (...) {  // the system has no more threads: those that run must end before the object goes
      end();
      throw;
    }
  }
  ~Workers() { end(); }

 private:
  void end() {
    queue_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  void read(const PreprocessOptions& options) {
    try {
      const auto reader = open_documents(options.inputs, options.format, options.keys, options.block_bytes);
      DocumentBlock block;
      for (int64_t i = 0; reader->next(block); ++i)
        if (i >= skipped_ && !queue_.put(std::move(block))) return;
      queue_.close({});
    } catch (...) {
      queue_.close(std::current_exception());
    }
  }
  void encode(const PreprocessOptions& options, EncodeText& encoder) {
    BlockEncoder blocks(options, std::move(encoder));
    DocumentBlock block;
    for (int64_t index; queue_.take(index, block);) {
      Outcome outcome;
      try {
        outcome.block = blocks.run(block);
      } catch (...) {
        outcome.fault = std::current_exception();
      }
      queue_.finish(index, std::move(outcome));
    }
  }

  BlockQueue& queue_;
  int64_t skipped_;
  std::vector<std::thread> threads_;
};

int64_t size_of_inputs(const std::vector<std::string>& inputs) {
  int64_t total = 0;
  for (const std::string& path : inputs) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (!error) total += static_cast<int64_t>(size);
  }
  return total;
}

}  // namespace

std::string preprocess_output(const PreprocessOptions& options, const std::string& key) {
  return fmt::format("{}_{}_{}", options.output_prefix, key,
                     options.split_sentences ? "sentence" : "document");
}

PreprocessReport preprocess(const PreprocessOptions& options,
                            const std::function<EncodeText()>& make_encoder) {
  if (options.inputs.empty()) throw ConfigError("preprocess: --input names no file");
  if (options.keys.empty()) throw ConfigError("preprocess: --json-keys names no key");
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  PreprocessReport report;
  PreprocessOutput output(options);
  report.prefixes = output.prefixes();
  const PreprocessState& state = output.state();
  report.resumed_bytes = state.input_bytes;
  int64_t bad_lines = state.bad_lines;
  if (state.blocks > 0)
    options.log.info("preprocess: going on behind {} documents of {}.segments", state.documents,
                     options.output_prefix);
  Progress progress(options.log, "preprocess", size_of_inputs(options.inputs));
  BlockQueue queue(2 * std::max(1, options.workers) + 2);
  {
    Workers workers(queue, options, make_encoder, state.blocks);
    for (Outcome outcome; queue.next(outcome);) {
      if (outcome.fault) std::rethrow_exception(outcome.fault);
      EncodedBlock& block = outcome.block;
      if (block.bad_lines > 0 && !options.skip_bad_lines)
        throw ConfigError(fmt::format("{}; --skip-bad-lines leaves such lines out", block.first_bad));
      if (block.bad_lines > 0 && bad_lines == 0) options.log.warning("left out: {}", block.first_bad);
      bad_lines += block.bad_lines;
      output.add(block);
      const double seconds = seconds_since(start);
      const auto bytes = static_cast<double>(state.input_bytes - report.resumed_bytes);
      progress.update(state.input_bytes,
                      fmt::format("{} documents, {:.1f} MB/s", state.documents, bytes / 1e6 / seconds));
    }
  }
  progress.clear();
  report.documents = state.documents;
  report.tokens = state.tokens;
  report.bad_lines = state.bad_lines;
  report.input_bytes = state.input_bytes;
  if (report.bad_lines > 0) options.log.warning("{} malformed lines were left out", report.bad_lines);
  output.commit();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace megatron
