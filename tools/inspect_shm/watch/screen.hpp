// The terminal of inspect_shm watch, based on ncurses: lines in, keys out. The only file that uses ncurses.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "inspect_shm/watch/text.hpp"

namespace ps_shm::watch {

enum class Key {
  kNone,
  kText,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kLeft,
  kRight,
  kTab,
  kBackTab,
  kEnter,
  kEscape,
  kBackspace,
  kResize,
  kClosed
};
struct KeyPress {
  Key key = Key::kNone;
  char text = 0;  // for kText: printable ASCII
};

class Screen {
 public:
  // None if standard input or output is not a terminal, or if the terminal cannot move its cursor.
  static std::optional<Screen> try_open();
  Screen(Screen&&) noexcept;
  Screen& operator=(Screen&&) = delete;
  ~Screen();

  std::size_t rows() const;
  std::size_t columns() const;
  bool has_utf8() const;

  // To be called before each drawing: updates rows() and columns() to the terminal's current size.
  void follow_size();
  void show(const std::vector<Line>& lines);

  // The next key; kNone after the timeout; kClosed if the terminal is gone.
  KeyPress wait(int milliseconds);

 private:
  struct Impl;
  explicit Screen(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm::watch
