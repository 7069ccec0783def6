/* Time in the loader, which binds functions when they are called for the first time: the leaf has a thousand of them
 * bound, again and again. */
#include "chain.h"

uint64_t lazy_all(void);

APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do {
        for (int i = 0; i < 2; i++) v += lazy_all();
    } while (!spun_enough());
    STAY;
    return v + 1;
}

#include "callers.h"
