// Where binary forms lie: in unnamed temporary files, or in a cache's folder, where each is made once.
//
// In the folder a form is made under another name and renamed when it is complete, by whoever holds the lock of a file
// beside it (OFD, so it ends with its process); others wait, and take over where that process dies. What is stale or
// damaged is made again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "train/sparse/sparse_data.hpp"
#include "train/sparse/sparse_file.hpp"

namespace ps::train {

// Writes examples; what it throws ends the making.
using MakeForm = std::function<void(SparseWriter&)>;

// Makes a form in $TMPDIR or /tmp, gone when nobody maps it.
std::unique_ptr<SparseMapping> make_unnamed_form(const std::string& name, const MakeForm& make);

// Opens the form of the source at `path` in options.cache, or makes it.
std::unique_ptr<SparseMapping> open_cached_form(const std::string& path, const SparseSourceOptions& options,
                                                const MakeForm& make);

}  // namespace ps::train
