// The terminal of inspect_shm watch, through ncurses: lines in, keys out. The only file that knows ncurses.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "watch/text.hpp"

namespace ps::watch {

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
  char text = 0;  // of kText: printable ASCII
};

class Screen {
 public:
  // Nothing where standard input or output is no terminal, or one that cannot move its cursor.
  static std::optional<Screen> try_open();
  Screen(Screen&&) noexcept;
  Screen& operator=(Screen&&) = delete;
  ~Screen();

  std::size_t rows() const;
  std::size_t columns() const;
  bool has_utf8() const;

  // To be called before each drawing: rows() and columns() are those of the terminal as it is now.
  void follow_size();
  void show(const std::vector<Line>& lines);

  // The next key, or kNone where none comes within the time; kClosed: the terminal is gone.
  KeyPress wait(int milliseconds);

 private:
  struct Impl;
  explicit Screen(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps::watch
