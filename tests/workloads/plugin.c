/* A library for reload.c. Built twice, with -DSELF=a and -DSELF=b: same layout, other names.
 * gcc -O2 -fomit-frame-pointer -shared -fPIC -DSELF=a -o plugin-a.so plugin.c */
#include "split.h"

#define JOIN(left, right) left##right
#define NAMED(left, right) JOIN(left, right)

APART uint64_t NAMED(leaf_, SELF)(uint64_t end_ns) {
    uint64_t v = 1;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns) v = churn(v, 10000);
    return v;
}
/* Needs nothing around it: a mapping of this page alone is enough to run it. */
APART uint64_t NAMED(alone_, SELF)(uint64_t iterations) { return churn(1, iterations); }

/* Returns the CPU time it took. */
APART uint64_t work(uint64_t us) {
    const uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    volatile uint64_t v = NAMED(leaf_, SELF)(before + us * 1000);
    (void)v;
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
}
