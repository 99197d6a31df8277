// Standard output of a program, with errors detected, and the report of its failures.
#pragma once

#include <functional>
#include <string>

namespace ps_shm::tools {

// Writes `text` to standard output at once. A reader that has gone (such as head) is not an error; the first
// other error is remembered. Not thread-safe.
void write_out(const std::string& text) noexcept;

void tell(const std::string& line);  // on stderr, wrapped to the terminal's width

// Prints "PROGRAM: MESSAGE" as one line on stderr; returns `code`.
int fail(const char* program, int code, std::string message);

// Runs `body` in main and returns the program's exit code: that of `body`, or 1 instead of 0 if write_out() has lost
// output, which is reported on stderr. If --json is given and nothing was written, a failure is printed as an object
// {"error", "exit_code"} on stdout. Closed standard streams are opened first, in a way that all access fails: otherwise
// a segment would get their descriptors, and printed text would be written into it. Signals that the parent process has
// blocked are unblocked, and SIGCHLD is no longer ignored: otherwise nothing but SIGKILL would end the program, and no end
// of a child would be noticed.
int run_main(const char* program, int argc, char** argv, const std::function<int()>& body);

}  // namespace ps_shm::tools
