// failpoint.h: named places where a test can kill the process, to prove that files survive it.
#pragma once

#include <string>

namespace engine {

// The process kills itself when it next passes the named place; an empty name disarms.
void set_failpoint(std::string name);
void failpoint(const char* name);

}  // namespace engine
