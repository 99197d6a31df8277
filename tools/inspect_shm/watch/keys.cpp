#include "inspect_shm/watch/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ps_shm/errors.hpp"

namespace ps_shm::watch {

void Keys::ask(Asking what, const std::string& question) {
  asking_ = what, question_ = question, typed_.clear();
  view_.prompt = question_;
}

void Keys::act(const std::function<std::string()>& action) {
  try {
    view_.message = action();
  } catch (const Error& error) {
    view_.message = error.what();
  }
}

void Keys::go(Page page) {
  view_.page = page;
  if (view_.page == Page::kEvents && view_.here().selected == 0 && view_.here().first == 0)
    view_.here().selected = kLast;
}

void Keys::move(std::ptrdiff_t lines, const Screenful& screen) {
  PageState& state = view_.here();
  if (screen.count == 0) return;
  const auto last = static_cast<std::ptrdiff_t>(screen.count - 1);
  const auto from = static_cast<std::ptrdiff_t>(std::min(state.selected, screen.count - 1));
  const auto to = std::clamp<std::ptrdiff_t>(from + lines, 0, last);
  // At the end of the events, the selection stays at the end.
  state.selected = to == last && view_.page == Page::kEvents ? kLast : static_cast<std::size_t>(to);
}

void Keys::choose(std::ptrdiff_t away, const Model& model) {
  if (model.variables.empty()) return;
  const auto last = static_cast<std::ptrdiff_t>(model.variables.size() - 1);
  const bool wants_rows = view_.page == Page::kRows;
  for (auto to = static_cast<std::ptrdiff_t>(chosen_) + away; to >= 0 && to <= last; to += away) {
    if (wants_rows && !model.variables[static_cast<std::size_t>(to)].has_rows) continue;
    chosen_ = static_cast<std::size_t>(to);
    return;
  }
}

void Keys::answer(const KeyPress& key) {
  const Asking asked = asking_;
  const auto end = [&] { asking_ = Asking::kNothing, view_.prompt.clear(); };
  if (key.key == Key::kEscape) return end();
  if (asked == Asking::kChangeSure || asked == Asking::kEndSure) {
    if (key.key != Key::kText && key.key != Key::kEnter) return;
    const std::string change = std::exchange(typed_, {});
    end();
    if (asked == Asking::kChangeSure && key.text == 'y') return act([&] { return actions_.change(change); });
    if (asked == Asking::kEndSure && (key.text == 't' || key.text == 'k'))
      return act([&] { return actions_.end(rank_, key.text == 'k'); });
    view_.message = "nothing was done";
    return;
  }
  if (key.key == Key::kText) typed_ += key.text;
  if (key.key == Key::kBackspace && !typed_.empty()) typed_.pop_back();
  if (key.key == Key::kEnter) {
    end();
    if (asked == Asking::kFilter) {
      view_.filter = typed_;
    } else if (!typed_.empty()) {
      const std::string change = typed_;
      ask(Asking::kChangeSure, fmt::format("set {}? y: yes, any other key: no", change));
      typed_ = change;
    }
    return;
  }
  view_.prompt = question_ + typed_ + "_";
}

bool Keys::press(const KeyPress& key, const Model& model, const Screenful& screen) {
  if (key.key == Key::kNone || key.key == Key::kResize) return true;
  if (asking_ != Asking::kNothing) {
    answer(key);
    return true;
  }
  view_.message.clear();
  const bool had_help = std::exchange(view_.has_help, false);  // any key leaves it
  if (had_help && key.text != 'q') return true;
  return navigate(key.key, screen) || obey(key.text, model, screen);
}

// Whether the key is one that moves the selection or turns a page.
bool Keys::navigate(Key key, const Screenful& screen) {
  const auto page_rows = static_cast<std::ptrdiff_t>(std::max<std::size_t>(screen.shown.size(), 1));
  const auto number = static_cast<std::size_t>(view_.page);
  switch (key) {
    case Key::kUp:
      move(-1, screen);
      return true;
    case Key::kDown:
      move(1, screen);
      return true;
    case Key::kPageUp:
      move(-page_rows, screen);
      return true;
    case Key::kPageDown:
      move(page_rows, screen);
      return true;
    case Key::kHome:
      move(-static_cast<std::ptrdiff_t>(screen.count), screen);
      return true;
    case Key::kEnd:
      move(static_cast<std::ptrdiff_t>(screen.count), screen);
      return true;
    case Key::kLeft:
    case Key::kBackTab:
      go(static_cast<Page>((number + kPages - 1) % kPages));
      return true;
    case Key::kRight:
    case Key::kTab:
      go(static_cast<Page>((number + 1) % kPages));
      return true;
    case Key::kEnter:
      if (view_.page == Page::kVariables && screen.selected != kLast) {
        chosen_ = screen.selected;
        go(Page::kChunks);
      }
      return true;
    case Key::kEscape:
      view_.filter.clear();
      return true;
    default:
      return false;
  }
}

// Carries out the command of a letter. Returns false if that is to quit.
bool Keys::obey(char letter, const Model& model, const Screenful& screen) {
  PageState& state = view_.here();
  switch (letter) {
    case 'q':
      return false;
    case '?':
      view_.has_help = true;
      break;
    case ' ':
      view_.is_paused = !view_.is_paused;
      break;
    case 's':
      if (screen.columns == 0) break;
      state.sorted_by = (state.sorted_by + 1) % screen.columns;
      state.is_reversed = false;
      break;
    case 'r':
      state.is_reversed = !state.is_reversed;
      break;
    case '/':
      ask(Asking::kFilter, "show only rows that contain: ");
      view_.prompt += "_";
      break;
    case '<':
    case '>':
      choose(letter == '<' ? -1 : 1, model);
      break;
    case 'c':
      ask(Asking::kChange, fmt::format("change a setting of job {}, such as lr=0.01: ", model.job));
      view_.prompt += "_";
      break;
    case 'x': {
      if (view_.page != Page::kWorkers || screen.selected == kLast) {
        view_.message = "x ends the worker that is selected on page 2";
        break;
      }
      rank_ = static_cast<std::uint32_t>(screen.selected);
      try {
        ask(Asking::kEndSure, actions_.ask_to_end(rank_) + "? t: SIGTERM, k: SIGKILL, any other key: no");
      } catch (const Error& error) {
        view_.message = error.what();
      }
      break;
    }
    default:
      if (letter >= '1' && letter < '1' + static_cast<char>(kPages)) go(static_cast<Page>(letter - '1'));
  }
  return true;
}

}  // namespace ps_shm::watch
