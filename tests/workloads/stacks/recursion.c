/* DEPTH frames of one function. */
#include "chain.h"

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    STAY;
    return v + 1;
}
/* Frames of different sizes, so that no wrong step meets a right one. */
APART static uint64_t dive(uint64_t left) {
    ENTER;
    volatile char *room = __builtin_alloca(16 + left % 7 * 16);
    room[0] = (char)left;
    uint64_t v = left == 0 ? inner(left) : dive(left - 1);
    STAY;
    return v + (uint64_t)room[0];
}

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    /* Where the thread begins is seen before it is deep. */
    volatile uint64_t v = 1;
    while (clock_ns(CLOCK_MONOTONIC) < begun_ns + 900000000u) v = spin(v);
    v = dive(DEPTH - 1);
    enter_leaf("spin");
    is_leaf();
    print_truth();
    return 0;
}
