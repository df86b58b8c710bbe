#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace megatron {

// A few small values that all processes of a run share before they can talk to each other.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;  // waits for it; an Error after the timeout
  virtual std::string own_address() const = 0;          // where other processes can reach this one
};

// Kept by the first process, which serves it for as long as its store lives.
std::unique_ptr<Store> make_tcp_store(const std::string& host, int port, bool serve,
                                      std::chrono::milliseconds timeout);
// Kept in a folder that every process sees. It must be empty, or new, for each run.
std::unique_ptr<Store> make_file_store(const std::string& folder, std::chrono::milliseconds timeout);

}  // namespace megatron
