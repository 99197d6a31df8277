#include "config/spelling.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>
#include <utility>

namespace ps_shm::config {
namespace {

std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before_last, last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, now);
  }
  return last[b.size()];
}

}  // namespace

std::string folded(const std::string& word) {
  std::string letters;
  for (const char c : word)
    if (c != '-' && c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const std::string wanted = folded(word);
  std::string best;
  std::size_t least = std::max<std::size_t>(1, wanted.size() / 3) + 1;  // beyond that it is another word
  for (const std::string& one : known) {
    const std::string letters = folded(one);
    // A prefix of a word means that word, unless another one is nearer.
    const bool begins = wanted.size() >= 3 && letters.starts_with(wanted);
    const std::size_t apart =
        std::min(distance(wanted, letters), begins ? std::size_t{1} : letters.size() + wanted.size());
    if (apart < least) best = one, least = apart;
  }
  return best;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string one = nearest(word, known);
  return one.empty() ? one : "; did you mean " + one + "?";
}

std::string what_there_is(const std::string& word, const std::vector<std::string>& known) {
  constexpr std::size_t kShown = 20;
  if (known.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < std::min(known.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + known[i];
  if (known.size() > kShown) text += ", ... (" + std::to_string(known.size()) + ")";
  return text + did_you_mean(word, known);
}

}  // namespace ps_shm::config
