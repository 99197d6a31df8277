#include "inspect_shm/watch/screen.hpp"

#define NCURSES_NOMACROS
#include <langinfo.h>
#include <ncurses.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <clocale>
#include <cstdio>
#include <cstring>

#include "report/terminal.hpp"

namespace ps_shm::watch {
namespace {

struct Look {
  short colour;  // -1: the terminal's own
  attr_t attributes;
};

Look look_of(Style style) {
  static constexpr std::array<Look, kStyles> kLooks = {{
      {-1, A_NORMAL},              // kPlain
      {-1, A_BOLD},                // kBold
      {-1, A_DIM},                 // kDim
      {COLOR_GREEN, A_NORMAL},     // kGood
      {COLOR_YELLOW, A_NORMAL},    // kWarn
      {COLOR_RED, A_BOLD},         // kBad
      {-1, A_REVERSE},             // kSelected
      {COLOR_CYAN, A_NORMAL},      // kCool
      {-1, A_BOLD | A_UNDERLINE},  // kTitle
  }};
  return kLooks[static_cast<std::size_t>(style)];
}

KeyPress press_of(int code) {
  switch (code) {
    case ERR:
      return {};
    case KEY_UP:
      return {Key::kUp};
    case KEY_DOWN:
      return {Key::kDown};
    case KEY_PPAGE:
      return {Key::kPageUp};
    case KEY_NPAGE:
      return {Key::kPageDown};
    case KEY_HOME:
      return {Key::kHome};
    case KEY_END:
      return {Key::kEnd};
    case KEY_LEFT:
      return {Key::kLeft};
    case KEY_RIGHT:
      return {Key::kRight};
    case '\t':
      return {Key::kTab};
    case KEY_BTAB:
      return {Key::kBackTab};
    case '\r':
    case '\n':
    case KEY_ENTER:
      return {Key::kEnter};
    case 27:
      return {Key::kEscape};
    case KEY_BACKSPACE:
    case 127:
    case 8:
      return {Key::kBackspace};
    case KEY_RESIZE:
      return {Key::kResize};
    default:
      return code >= ' ' && code < 127 ? KeyPress{Key::kText, static_cast<char>(code)} : KeyPress{};
  }
}

}  // namespace

struct Screen::Impl {
  SCREEN* screen = nullptr;
  bool has_colours = false;
  int rows = 0, columns = 0;  // that were drawn last

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    endwin();
    delscreen(screen);
  }
};

std::optional<Screen> Screen::try_open() {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return std::nullopt;
  std::setlocale(LC_CTYPE, "");
  SCREEN* const screen = newterm(nullptr, stdout, stdin);
  if (screen == nullptr) return std::nullopt;
  auto impl = std::make_unique<Impl>();
  impl->screen = screen;
  if (tigetstr("cup") == nullptr) return std::nullopt;
  cbreak();
  noecho();
  keypad(stdscr, TRUE);
  set_escdelay(50);  // the bytes of one key arrive together
  curs_set(0);
  if (has_colors() && report::has_colour(stdout)) {
    impl->has_colours = true;
    start_color();
    use_default_colors();
    for (std::size_t style = 0; style < kStyles; ++style)
      init_pair(static_cast<short>(style + 1), look_of(static_cast<Style>(style)).colour, -1);
  }
  return Screen(std::move(impl));
}

Screen::Screen(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Screen::Screen(Screen&&) noexcept = default;
Screen::~Screen() = default;

std::size_t Screen::rows() const { return static_cast<std::size_t>(getmaxy(stdscr)); }
std::size_t Screen::columns() const { return static_cast<std::size_t>(getmaxx(stdscr)); }
bool Screen::has_utf8() const { return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0; }

// Asks the terminal instead of relying on SIGWINCH, which only the terminal's foreground processes get.
void Screen::follow_size() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return;
  if (is_term_resized(size.ws_row, size.ws_col)) resizeterm(size.ws_row, size.ws_col);
  if (size.ws_row == impl_->rows && size.ws_col == impl_->columns) return;
  impl_->rows = size.ws_row, impl_->columns = size.ws_col;
  clearok(stdscr, TRUE);  // terminals differ in what they keep
}

void Screen::show(const std::vector<Line>& lines) {
  werase(stdscr);
  for (std::size_t row = 0; row < lines.size() && row < rows(); ++row) {
    wmove(stdscr, static_cast<int>(row), 0);
    for (const Span& span : clipped(lines[row], columns())) {
      wattr_set(stdscr, look_of(span.style).attributes,
                impl_->has_colours ? static_cast<short>(static_cast<std::size_t>(span.style) + 1) : short{0}, nullptr);
      waddstr(stdscr, span.text.c_str());
    }
  }
  wrefresh(stdscr);
}

KeyPress Screen::wait(int milliseconds) {
  wtimeout(stdscr, milliseconds);
  const int code = wgetch(stdscr);
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (code == ERR && poll(&input, 1, 0) > 0 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
    return {Key::kClosed};
  return press_of(code);
}

}  // namespace ps_shm::watch
