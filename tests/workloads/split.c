/* Three chains with a known share of CPU time, in the main thread.
 * gcc -O2 -fomit-frame-pointer -fno-plt -o split-c split.c
 * Usage: split-c SECONDS SEED; prints the truth as one line of JSON when done. */
#include "split.h"

APART static uint64_t leaf_a(uint64_t n) { return churn(1, n); }
APART static uint64_t middle_a(uint64_t n) { uint64_t v = leaf_a(n); STAY; return v + 1; }
APART static uint64_t chain_a(uint64_t n) { uint64_t v = middle_a(n); STAY; return v + 1; }

/* A frame of its own size and a saved register, so that the rows differ from chain a's. */
APART static uint64_t leaf_b(uint64_t n) {
    volatile char room[4000];
    room[n % sizeof room] = (char)n;
    return churn(2, n) + (uint64_t)room[(n + 1) % sizeof room];
}
/* alloca: the frame is found through rbp although frame pointers are off. */
APART static uint64_t middle_b(uint64_t n) {
    volatile char *room = __builtin_alloca(64 + n % 512);
    room[0] = (char)n;
    uint64_t v = leaf_b(n);
    STAY;
    return v + (uint64_t)room[0];
}
APART static uint64_t chain_b(uint64_t n) { uint64_t v = middle_b(n); STAY; return v + 1; }

/* The leaf behind the C library: main, chain_c, middle_c, qsort and what it calls, leaf_c. */
static uint64_t compare_iterations;
APART static int leaf_c(const void *left, const void *right) {
    volatile uint64_t v = churn(3, compare_iterations);
    (void)v;
    return *(const int *)left - *(const int *)right;
}
APART static uint64_t middle_c(uint64_t n) {
    int numbers[16];
    for (int i = 0; i < 16; i++) numbers[i] = (i * 7) % 16;
    compare_iterations = n / 45; /* comparisons of a merge sort of these 16 */
    qsort(numbers, 16, sizeof numbers[0], leaf_c);
    STAY;
    return (uint64_t)numbers[3];
}
APART static uint64_t chain_c(uint64_t n) { uint64_t v = middle_c(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const uint64_t seed = strtoull(arguments[2], NULL, 10);
    struct truth truth = {{0}, 0};
    uint64_t (*chains[3])(uint64_t) = {chain_a, chain_b, chain_c};
    split(strtoull(arguments[1], NULL, 10), seed, chains, &truth);
    print_truth("c", seed, &truth);
    print_root();
    puts("}");
    return 0;
}
