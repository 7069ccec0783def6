/* The time is spent in throwing and catching: the language's own unwinder runs, with its tables, under the chain. */
extern "C" {
#include "chain.h"
}
#include <stdexcept>

APART static uint64_t thrower(uint64_t n) {
    if (n != 0) throw std::runtime_error("as ordered");
    return 0;
}
APART static uint64_t through(uint64_t n) { uint64_t v = thrower(n); STAY; return v + 1; }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do {
        for (int i = 0; i < 200; i++) {
            try {
                v += through(1);
            } catch (const std::runtime_error &error) {
                v += static_cast<uint64_t>(error.what()[0]);
            }
        }
    } while (!spun_enough());
    STAY;
    return v + 1;
}

#include "callers.h"
