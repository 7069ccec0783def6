/* Frames of 540 KiB, as large compilers have them. */
#include "chain.h"

enum { ROOM = 540 * 1024 };

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    volatile char room[ROOM];
    room[n % ROOM] = (char)n;
    uint64_t v = n;
    do v += spin(v) + (uint64_t)room[v % ROOM]; while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) {
    ENTER;
    volatile char room[ROOM];
    room[n % ROOM] = (char)n;
    uint64_t v = inner(n) + (uint64_t)room[(n + 1) % ROOM];
    STAY;
    return v + 1;
}
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    volatile uint64_t v = outer(1);
    (void)v;
    enter_leaf("spin");
    is_leaf();
    print_truth();
    return 0;
}
