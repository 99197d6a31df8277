// What somebody may have meant who wrote a word that nobody knows.
#pragma once

#include <string>
#include <vector>

namespace ps::config {

// Without case, '-' and '_': "SYNC" and "in-place" are sync and inplace.
std::string folded(const std::string& word);

// The nearest of `known` by letters left out, added, replaced or swapped (optimal string alignment distance), if it is
// near enough to be meant; else nothing.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// "; did you mean WORD?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace ps::config
