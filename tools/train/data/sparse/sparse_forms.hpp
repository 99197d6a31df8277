// The location of binary forms: unnamed temporary files, or a cache folder, where each is made once.
//
// In the cache folder, a form is made under another name and renamed when complete, by the process that holds the lock
// of a file beside it (OFD, so it ends with its process); others wait, and take over if that process dies. Stale or
// damaged forms are rebuilt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_file.hpp"

namespace ps_shm::train {

// Writes examples; an exception aborts the form.
using MakeForm = std::function<void(SparseWriter&)>;

// Makes a form in $TMPDIR or /tmp, which disappears when it is no longer mapped.
std::unique_ptr<SparseMapping> make_unnamed_form(const std::string& name, const MakeForm& make);

// Opens the form of the source at `path` in options.cache, or makes it.
std::unique_ptr<SparseMapping> open_cached_form(const std::string& path, const SparseSourceOptions& options,
                                                const MakeForm& make);

}  // namespace ps_shm::train
