/* The chain in a second thread: its stack begins in the C library. */
#include "chain.h"
#include <pthread.h>
#ifndef MUSL
#include <unwind.h>
#endif

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }

#ifdef MUSL
/* Static musl: the function that makes a thread is in the program itself. */
extern char __clone[];
static uintptr_t first_function(void) { return (uintptr_t)__clone; }
#else
/* Where a thread begins only the compiler's own unwinder knows. */
static _Unwind_Reason_Code last_frame(struct _Unwind_Context *context, void *last) {
    const uintptr_t address = _Unwind_GetIP(context);
    if (address != 0) *(uintptr_t *)last = address;
    return _URC_NO_REASON;
}
static uintptr_t first_function(void) {
    uintptr_t root = 0;
    _Unwind_Backtrace(last_frame, &root);
    return root;
}
#endif

APART static void *outer(void *nothing) {
    ENTER;
    volatile uint64_t v = middle(1);
    (void)v;
    enter_leaf("spin");
    is_leaf();
    print_truth_from(first_function());
    return nothing;
}

int main(int count, char **arguments) {
    begin(count, arguments);
    pthread_t thread;
    if (pthread_create(&thread, NULL, outer, NULL) != 0) return 1;
    return pthread_join(thread, NULL);
}
