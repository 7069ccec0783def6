/* Work at a depth of its own: `dive` calls itself so often, then spins until the process has used so much CPU time. */
#include "split.h"

APART static uint64_t spin_until(uint64_t end_ns) {
    uint64_t v = 1;
    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < end_ns) v = churn(v, 100000);
    return v;
}
APART static uint64_t dive(uint64_t depth, uint64_t end_ns) {
    if (depth == 0) return spin_until(end_ns);
    uint64_t v = dive(depth - 1, end_ns);
    STAY;
    return v + 1;
}
