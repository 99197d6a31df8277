// Suggestions for misspelled words.
#pragma once

#include <string>
#include <vector>

namespace ps_shm::config {

// Removes case, '-' and '_': "SYNC" and "in-place" become sync and inplace.
std::string folded(const std::string& word);

// The nearest of `known` by letters left out, added, replaced or swapped (optimal string alignment distance), if it is
// near enough; otherwise empty.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// "; did you mean WORD?", or empty.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// "A, B, C; did you mean B?", of many only the first; "none" if there are none: for a text that says what there is
// instead of `word`.
std::string what_there_is(const std::string& word, const std::vector<std::string>& known);

}  // namespace ps_shm::config
