#include "megatron/base/progress.h"

#include <sys/ioctl.h>

#include <algorithm>

namespace megatron {
namespace {

constexpr std::chrono::milliseconds kRedraw{50};
constexpr std::chrono::seconds kQuiet{5};  // between lines where there is no terminal

std::string clock_text(double seconds) {
  auto s = static_cast<int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

size_t terminal_columns(std::FILE* file, size_t otherwise) {
  winsize size{};
  return ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

std::string progress_line(std::string_view title, int64_t done, int64_t total, std::string_view note,
                          double seconds_left, size_t columns) {
  constexpr size_t widest = 24, narrowest = 4;
  const std::string counts = fmt::format("{}/{}", done, total),
                    rest = fmt::format("{}{}{}", note.empty() ? "" : "  ", note,
                                       seconds_left < 0 ? "" : "  left " + clock_text(seconds_left));
  const size_t room = columns > 0 ? columns - 1 : 0;  // a full line would move the cursor to the next one
  const size_t taken = title.size() + counts.size() + rest.size() + 4;  // " [" and "] "
  std::string bar;
  if (taken + narrowest <= room) {
    const size_t width = std::min(widest, room - taken);
    const size_t filled =
        total > 0 ? static_cast<size_t>(std::clamp<int64_t>(done * static_cast<int64_t>(width) / total, 0,
                                                            static_cast<int64_t>(width)))
                  : width;
    bar = fmt::format("[{}{}] ", std::string(filled, '#'), std::string(width - filled, '.'));
  }
  return fmt::format("{} {}{}{}", title, bar, counts, rest).substr(0, room);
}

Progress::Progress(const Log& log, std::string title, int64_t total, int64_t done)
    : log_(log),
      title_(std::move(title)),
      total_(total),
      before_(done),
      live_(log.is_terminal() && log.shows(LogLevel::info)),
      start_(Clock::now()),
      shown_(start_) {}

Progress::~Progress() {
  if (visible_) std::fputs("\n", stderr);
}

void Progress::clear() {
  if (!visible_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  visible_ = false;
}

void Progress::update(int64_t done, std::string_view note) {
  const Clock::time_point now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left = done > before_
                          ? elapsed / static_cast<double>(done - before_) * static_cast<double>(total_ - done)
                          : -1;
  if (live_) {
    if (visible_ && now - shown_ < kRedraw && done != total_) return;
    fmt::print(stderr, "\r{}\x1b[K",
               progress_line(title_, done, total_, note, left, terminal_columns(stderr, 80)));
    std::fflush(stderr);
    visible_ = true;
    shown_ = now;
    return;
  }
  const int64_t tenth = total_ > 0 ? done * 10 / total_ : 10;
  if (tenth == shown_tenth_ || now - shown_ < kQuiet) return;
  shown_tenth_ = tenth;
  shown_ = now;
  log_.info("{} {}/{}  {}{}{} so far{}", title_, done, total_, note, note.empty() ? "" : "  ",
            clock_text(elapsed), left < 0 ? "" : fmt::format(", {} left", clock_text(left)));
}

}  // namespace megatron
