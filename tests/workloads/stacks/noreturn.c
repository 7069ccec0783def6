/* Calls that are the last instruction of their function: the return address is the next function's. */
#include "chain.h"

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static __attribute__((noreturn)) void inner(uint64_t n) {
    ENTER;
    volatile uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    enter_leaf("spin");
    is_leaf();
    print_truth();
    exit(0);
}
APART static __attribute__((noreturn)) void middle(uint64_t n) { ENTER; inner(n); }
APART static __attribute__((noreturn)) void outer(uint64_t n) { ENTER; middle(n); }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    outer(1);
}
