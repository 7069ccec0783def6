/* Time in the linker's stubs: the leaf calls an empty function of a library, again and again. */
#include "chain.h"

void plt_nothing(void);

APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do {
        for (int i = 0; i < 200000; i++) plt_nothing();
        v++;
    } while (!spun_enough());
    STAY;
    return v + 1;
}

#include "callers.h"
