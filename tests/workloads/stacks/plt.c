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
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    volatile uint64_t v = outer(1);
    (void)v;
    is_leaf();
    print_truth();
    return 0;
}
