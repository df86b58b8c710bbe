#include "megatron/comm/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "megatron/base/error.h"

namespace megatron {
namespace {

void check(int code, const char* doing) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("MPI: {} failed: {}", doing, text);
}

// All calls to MPI but the first come from the thread that polls: MPI need not be thread-safe, its locks cost
// nothing, and one place decides how to wait. MPI cannot wake a thread that sleeps, so an idle one looks
// again after a pause that grows to a fifth of a millisecond; what this process sends wakes it at once.
// Long messages under way are another matter: they need the thread, for as long as they may be expected to
// take.
constexpr auto kUnderWay = std::chrono::milliseconds(20);
constexpr size_t kLong = 4 << 20;

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int begun = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    require(begun == 0, "MPI: one run per process: it was started before");
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "starting");
    require(provided >= MPI_THREAD_SERIALIZED,
            "MPI: this library was built without threads; ranks need MPI_THREAD_SERIALIZED");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &process_);
    MPI_Comm_size(MPI_COMM_WORLD, &processes_);
    check(MPI_Type_contiguous(Frame::kBlock, MPI_BYTE, &block_), "making a type");
    check(MPI_Type_commit(&block_), "making a type");
  }
  // The frames of a world that was stopped may never be taken: MPI_Finalize would wait for them.
  ~MpiTransport() override {
    if (!sending_.empty() || !receiving_.empty()) MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Type_free(&block_);
    MPI_Finalize();
  }

  int process() const override { return process_; }
  int processes() const override { return processes_; }

  void send(int process, Frame frame) override {
    {
      std::lock_guard lock(mutex_);
      outgoing_.push_back({process, std::move(frame)});
    }
    wake_.notify_one();
  }

  void poll(std::chrono::milliseconds patience, const Receiver& receiver) override {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    auto pause = std::chrono::microseconds(10);
    while (true) {
      bool moved = begin_sends();
      moved |= begin_receives();
      moved |= finish_sends();
      moved |= finish_receives(receiver);
      const auto now = std::chrono::steady_clock::now();
      if (moved) last_moved_ = now;
      if (moved || now >= deadline) return;
      // MPI carries a long message on only while it is asked about it.
      if ((any_long(sending_) || any_long(receiving_)) && now < last_moved_ + kUnderWay) {
        std::this_thread::yield();
        continue;
      }
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, pause, [&] { return !outgoing_.empty(); });
      pause = std::min(pause * 3 / 2, std::chrono::microseconds(200));
    }
  }

  bool idle() override {
    std::lock_guard lock(mutex_);
    return outgoing_.empty() && sending_.empty();
  }

 private:
  struct Envelope {
    int process;
    Frame frame;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  bool begin_sends() {
    std::deque<Envelope> taken;
    {
      std::lock_guard lock(mutex_);
      taken.swap(outgoing_);
    }
    for (Envelope& envelope : taken) {
      Envelope& sent = sending_.emplace_back(std::move(envelope));
      check(MPI_Isend(sent.frame.bytes.get(), static_cast<int>(sent.frame.blocks()), block_, sent.process, 0,
                      MPI_COMM_WORLD, &sent.request),
            "sending");
    }
    return !taken.empty();
  }

  bool begin_receives() {
    bool any = false;
    while (true) {
      int found = 0, blocks = 0;
      MPI_Message message;
      MPI_Status status;
      check(MPI_Improbe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &found, &message, &status),
            "looking for messages");
      if (!found) return any;
      check(MPI_Get_count(&status, block_, &blocks), "measuring a message");
      Envelope& coming = receiving_.emplace_back(
          Envelope{status.MPI_SOURCE, Frame(static_cast<size_t>(blocks) * Frame::kBlock, pool())});
      check(MPI_Imrecv(coming.frame.bytes.get(), blocks, block_, &message, &coming.request), "receiving");
      any = true;
    }
  }

  bool finish_sends() {
    const size_t before = sending_.size();
    sending_.remove_if([](Envelope& sent) { return finished(sent); });
    return sending_.size() < before;
  }

  // In the order in which they came, for each process.
  bool finish_receives(const Receiver& receiver) {
    bool any = false;
    while (!receiving_.empty() && finished(receiving_.front())) {
      Envelope envelope = std::move(receiving_.front());
      receiving_.pop_front();
      receiver.frame(envelope.process, std::move(envelope.frame));
      any = true;
    }
    return any;
  }

  static bool any_long(const std::list<Envelope>& envelopes) {
    return std::any_of(envelopes.begin(), envelopes.end(),
                       [](const Envelope& envelope) { return envelope.frame.size >= kLong; });
  }

  static bool finished(Envelope& envelope) {
    int done = 0;
    check(MPI_Test(&envelope.request, &done, MPI_STATUS_IGNORE), "finishing a message");
    return done != 0;
  }

  int process_ = 0, processes_ = 1;
  std::chrono::steady_clock::time_point last_moved_{};
  MPI_Datatype block_ = MPI_DATATYPE_NULL;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Envelope> outgoing_;            // guarded
  std::list<Envelope> sending_, receiving_;  // of the thread that polls
};

}  // namespace

bool mpi_is_built_in() { return true; }

std::unique_ptr<Transport> make_mpi_transport() { return std::make_unique<MpiTransport>(); }

}  // namespace megatron
