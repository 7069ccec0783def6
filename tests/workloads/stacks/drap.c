/* Frames that are realigned: the frame's own address is kept in memory and found through rbp (gcc's DRAP). */
#include "chain.h"

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
/* A local of 64-byte alignment and room of unknown size: rbp is the aligned frame's base, r10 the caller's. */
APART static uint64_t inner(uint64_t n) {
    ENTER;
    volatile char wide[64] __attribute__((aligned(64)));
    volatile char *room = __builtin_alloca(64 + n % 512);
    wide[n % 64] = room[0] = (char)n;
    uint64_t v = n;
    do v += spin(v) + (uint64_t)wide[v % 64] + (uint64_t)room[0]; while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) {
    ENTER;
    volatile char wide[128] __attribute__((aligned(128)));
    volatile char *room = __builtin_alloca(128 + n % 512);
    wide[n % 128] = room[0] = (char)n;
    uint64_t v = inner(n) + (uint64_t)wide[(n + 1) % 128] + (uint64_t)room[0];
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
