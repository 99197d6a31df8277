// The effect of keys: they navigate, and they ask before they change the job or end a worker.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "inspect_shm/watch/model.hpp"
#include "inspect_shm/watch/pages.hpp"
#include "inspect_shm/watch/screen.hpp"

namespace ps_shm::watch {

// Actions on the job. Each returns a message; throws Error.
struct Actions {
  std::function<std::string(const std::string& change)> change;      // KEY=VALUE
  std::function<std::string(std::uint32_t rank)> ask_to_end;         // a description of the worker that would be ended
  std::function<std::string(std::uint32_t rank, bool at_once)> end;  // SIGTERM, or SIGKILL
};

class Keys {
 public:
  Keys(ViewState& view, Actions actions) : view_(view), actions_(std::move(actions)) {}

  // False: the user wants to quit. `screen`: what is displayed now.
  bool press(const KeyPress& key, const Model& model, const Screenful& screen);

  std::size_t chosen() const { return chosen_; }  // the variable whose chunks and rows are displayed

 private:
  bool navigate(Key key, const Screenful& screen);
  bool obey(char letter, const Model& model, const Screenful& screen);
  enum class Asking { kNothing, kFilter, kChange, kChangeSure, kEndSure };

  void answer(const KeyPress& key);
  void ask(Asking what, const std::string& question);
  void act(const std::function<std::string()>& action);
  void move(std::ptrdiff_t lines, const Screenful& screen);
  void choose(std::ptrdiff_t away, const Model& model);
  void go(Page page);

  ViewState& view_;
  Actions actions_;
  Asking asking_ = Asking::kNothing;
  std::string question_, typed_;
  std::uint32_t rank_ = 0;
  std::size_t chosen_ = 0;
};

}  // namespace ps_shm::watch
