#include "megatron/base/progress.h"

namespace megatron {
namespace {

std::string clock_text(double seconds) {
  auto s = static_cast<int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

Progress::Progress(const Log& log, std::string title, int64_t total)
    : log_(log),
      title_(std::move(title)),
      total_(total),
      live_(log.is_terminal() && log.shows(LogLevel::info)),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (live_ && shown_tenth_ >= 0) std::fputs("\n", stderr);
}

void Progress::update(int64_t done, std::string_view note) {
  double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  double left = done > 0 ? elapsed / static_cast<double>(done) * static_cast<double>(total_ - done) : 0;
  int64_t tenth = total_ > 0 ? done * 10 / total_ : 10;
  if (live_) {
    constexpr int width = 24;
    auto filled = static_cast<size_t>(total_ > 0 ? done * width / total_ : width);
    std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    fmt::print(stderr, "\r{} [{}] {}/{}  {}  left {} \x1b[K", title_, bar, done, total_, note,
               clock_text(left));
    std::fflush(stderr);
    shown_tenth_ = tenth;
  } else if (tenth != shown_tenth_) {
    shown_tenth_ = tenth;
    log_.info("{} {}/{}  {}  {} so far, {} left", title_, done, total_, note, clock_text(elapsed),
              clock_text(left));
  }
}

}  // namespace megatron
