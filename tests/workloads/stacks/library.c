/* Two frames of a library in the middle of a chain. It needs nobody and no relocation, so that any loader can map it;
 * its entry is library_middle. Each function tells whom it returns to. */
typedef unsigned long leaf(unsigned long n);

__attribute__((noinline, noclone)) unsigned long library_inner(leaf *call, const void **returns_to, unsigned long n) {
    returns_to[1] = __builtin_return_address(0);
    const unsigned long v = call(n);
    __asm__ volatile("" ::: "memory");
    return v + 1;
}

__attribute__((noinline, noclone)) unsigned long library_middle(leaf *call, const void **returns_to, unsigned long n) {
    returns_to[0] = __builtin_return_address(0);
    const unsigned long v = library_inner(call, returns_to, n);
    __asm__ volatile("" ::: "memory");
    return v + 1;
}
