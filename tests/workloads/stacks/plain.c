/* The chain without anything special: how it is compiled, linked and started is what is tested. */
#include "chain.h"

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
#ifdef UNLINK
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) return 1;
    path[length] = 0;
    if (unlink(path) != 0) return 1;
#endif
    volatile uint64_t v = outer(1);
    (void)v;
    enter_leaf("spin");
    is_leaf();
    print_truth();
    return 0;
}
