// What a program says at its end: its standard output, of which nothing is lost unseen, and its failures.
#pragma once

#include <functional>
#include <string>

namespace ps::tools {

// Writes `text` to standard output, at once. A reader that has gone (head) has had enough and is no error; the first
// other error is kept. Not thread-safe.
void write_out(const std::string& text) noexcept;

// Prints "PROGRAM: MESSAGE" on stderr, in one line; returns `code`.
int fail(const char* program, int code, std::string message);

// Runs `body` in main and returns the program's exit code: that of `body`, or 1 instead of 0 where write_out() has lost
// something, which a line on stderr says. Where the arguments have --json and nothing was written, a failure is an object
// {"error", "exit_code"} on stdout. Closed standard streams are opened before, as ones that refuse all: a segment
// would get their numbers otherwise, and what is printed would go into it.
int run_main(const char* program, int argc, char** argv, const std::function<int()>& body);

}  // namespace ps::tools
