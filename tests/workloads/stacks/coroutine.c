/* A chain on a stack of its own, made by makecontext(3): it begins where that stack begins. */
#include "chain.h"
#include <ucontext.h>

static ucontext_t back, there;
static uintptr_t begins_at;

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static void body(void) {
    ENTER;
    begins_at = (uintptr_t)__builtin_return_address(0);
    volatile uint64_t v = middle(1);
    (void)v;
}

int main(int count, char **arguments) {
    begin(count, arguments);
    static char room[256 * 1024];
    getcontext(&there);
    there.uc_stack.ss_sp = room;
    there.uc_stack.ss_size = sizeof room;
    there.uc_link = &back;
    makecontext(&there, body, 0);
    swapcontext(&back, &there);
    enter_leaf("spin");
    is_leaf();
    print_truth_from(begins_at);
    return 0;
}
