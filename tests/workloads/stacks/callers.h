/* The outer half of a chain: the callers of `inner`, which the program defines above, and `main`. What `inner` calls
 * and cannot say so itself is told by LEAF_ENTERED. */
#ifndef LEAF_ENTERED
#define LEAF_ENTERED ((void)0)
#endif

APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    volatile uint64_t v = outer(1);
    (void)v;
    LEAF_ENTERED;
    is_leaf();
    print_truth();
    return 0;
}
