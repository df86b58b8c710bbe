#include <sys/socket.h>

#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/comm/rendezvous/socket.h"
#include "megatron/comm/rendezvous/store.h"

namespace megatron {
namespace {

// One thread per client: they are few, ask little, and mostly sleep. A client says "set", key and value, or
// "get" and key, and is answered with the value.
class StoreServer {
 public:
  explicit StoreServer(int port) : listener_(Socket::listen(port)) {
    accepting_ = std::thread([this] { accept(); });
  }
  ~StoreServer() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    ::shutdown(listener_.descriptor(), SHUT_RDWR);
    accepting_.join();
    for (Client& client : clients_) {
      ::shutdown(client.socket.descriptor(), SHUT_RDWR);
      client.thread.join();
    }
  }

 private:
  struct Client {
    Socket socket;
    std::thread thread;
  };

  void accept() {
    try {
      while (true) {
        Patience forever = Patience::endless();
        Socket socket = listener_.accept(forever);
        std::lock_guard lock(mutex_);
        if (closing_) return;
        Client& client = clients_.emplace_back();
        client.socket = std::move(socket);
        client.thread = std::thread([this, &client] { serve(client.socket); });
      }
    } catch (const std::exception&) {
      // The listener was shut down: the store is closing.
    }
  }

  void serve(const Socket& socket) {
    Patience forever = Patience::endless();
    try {
      while (true) {
        const std::string what = socket.read_text(forever), key = socket.read_text(forever);
        if (what == "set") {
          std::string value = socket.read_text(forever);
          {
            std::lock_guard lock(mutex_);
            values_[key] = std::move(value);
          }
          changed_.notify_all();
          continue;
        }
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || values_.count(key) > 0; });
        if (closing_) return;
        const std::string value = values_[key];
        lock.unlock();
        socket.write_text(value);
      }
    } catch (const std::exception&) {
      // The client is gone; it needs nothing more.
    }
  }

  Socket listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::list<Client> clients_;
  bool closing_ = false;
  std::thread accepting_;
};

Socket connected(const std::string& host, int port, std::chrono::milliseconds timeout,
                 std::chrono::milliseconds unknown_for) {
  Patience patience(timeout);
  return Socket::connect(host, port, patience, unknown_for);
}

class TcpStore final : public Store {
 public:
  TcpStore(const std::string& host, int port, bool serve, std::chrono::milliseconds timeout)
      : server_(serve ? std::make_unique<StoreServer>(port) : nullptr),
        // The process that serves asks for its own name, which cannot become known later.
        socket_(connected(host, port, timeout, std::chrono::seconds(serve ? 0 : 60))),
        timeout_(timeout) {}

  void set(const std::string& key, const std::string& value) override {
    for (const std::string& part : {std::string("set"), key, value}) socket_.write_text(part);
  }
  std::string get(const std::string& key) override {
    socket_.write_text("get");
    socket_.write_text(key);
    Patience patience(timeout_);
    try {
      return socket_.read_text(patience);
    } catch (const Error& error) {
      fail("rendezvous: '{}' did not come within {:.1f} s ({}): not every process has started", key,
           static_cast<double>(timeout_.count()) / 1e3, error.what());
    }
  }
  std::string own_address() const override { return socket_.local_address(); }

 private:
  std::unique_ptr<StoreServer> server_;
  Socket socket_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::unique_ptr<Store> make_tcp_store(const std::string& host, int port, bool serve,
                                      std::chrono::milliseconds timeout) {
  return std::make_unique<TcpStore>(host, port, serve, timeout);
}

}  // namespace megatron
