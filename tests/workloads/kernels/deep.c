// Known stacks: whatever burns in `burn` has 21 times `deep` above it, frames of different sizes, and in half
// of them a comparator that the C library calls. Runs until it is killed.
#include <alloca.h>
#include <stdlib.h>
#include <string.h>

#define ALONE __attribute__((noinline, noclone))

volatile unsigned long sink;

static ALONE void burn(int n) {
    for (int i = 0; i < n; i++)
        sink += i * i;
}

static ALONE int compare(const void *a, const void *b) {
    burn(40);
    return *(const int *)a - *(const int *)b;
}

static ALONE int deep(int n, char *p) {
    char *more = alloca(n * 8 + 16);
    memset(more, n, n * 8 + 16);
    if (n == 0) {
        int values[64];
        for (int i = 0; i < 64; i++)
            values[i] = (i * 37) % 64;
        qsort(values, 64, sizeof(int), compare);
        burn(4000);
        return values[3] + more[0];
    }
    return deep(n - 1, more) + more[n] + (p ? p[0] : 0);
}

int main(void) {
    for (;;)
        sink += deep(20, 0);
}
