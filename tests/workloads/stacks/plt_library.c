/* The empty function behind the stub. */
__attribute__((noinline)) void plt_nothing(void) { __asm__ volatile(""); }
