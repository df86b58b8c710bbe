#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "megatron/comm/patience.h"

namespace megatron {

// A TCP socket. Move-only. Faults are Errors that name the address. Waits end with the patience they are
// given.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  static Socket listen(int port);  // on every interface; 0: any free port
  // Tries again for as long as there is patience: the other side may not have started yet. A name that nobody
  // knows is refused earlier, after `unknown_for`; clusters may publish the names of their machines late.
  static Socket connect(const std::string& host, int port, Patience& patience,
                        std::chrono::milliseconds unknown_for = std::chrono::seconds(60));
  Socket accept(Patience& patience) const;

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  int local_port() const;
  std::string local_address() const;  // of the interface that this connection uses

  void write(const void* data, size_t bytes) const;               // all of it
  void read(void* data, size_t bytes, Patience& patience) const;  // all of it
  void write_text(const std::string& text) const;                 // with its length before it
  std::string read_text(Patience& patience) const;

 private:
  int descriptor_ = -1;
};

}  // namespace megatron
