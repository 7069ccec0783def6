/* A chain of calls that knows its own truth. Each function says ENTER, which keeps what the machine itself left
 * on the stack: the address it returns to. The chain spins at its leaf, then prints what every stack of it must look
 * like, leaf first, and what its CPU clock says. No unwinder takes part in that.
 *
 * One process has one chain. It spins for one second by the wall clock, which does not count, then for MILLISECONDS of
 * CPU time. Usage: PROGRAM MILLISECONDS; prints one line of JSON. */
#ifndef CHAIN_H
#define CHAIN_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
/* Keeps a call from becoming a jump: the caller still has something to do behind it. */
#define STAY __asm__ volatile("" ::: "memory")
/* The caller of the function that says it, and that the function is the innermost one from here on. */
#define ENTER enter(__func__, __builtin_return_address(0))
/* The same in a leaf that must stay without a frame and is called again and again: one store. */
#define ENTER_LEAF (leaf_returns_to = __builtin_return_address(0))

enum { FRAMES_MAX = 4096, FRAMES_PRINTED = 400 };

/* A frame of the stack: an address of 0 is any address of that function. */
struct frame {
    const char *function;
    uintptr_t address;
};

static struct frame frames[FRAMES_MAX]; /* root first */
static int frame_count;
static const char *innermost = "";
static void *volatile leaf_returns_to;

static uint64_t budget_ns;      /* CPU time to spend after the first second */
static uint64_t late_from_ns;   /* wall clock */
static uint64_t late_until_ns;  /* wall clock */
static uint64_t late_cpu_ns;    /* CPU time between the two */
static uint64_t begun_ns, late_begun_cpu_ns;

static uint64_t clock_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static __attribute__((unused)) void enter(const char *function, const void *returns_to) {
    if (frame_count == FRAMES_MAX) abort();
    frames[frame_count++] = (struct frame){innermost, (uintptr_t)returns_to};
    innermost = function;
}

static void begin(int count, char **arguments) {
    if (count < 2) exit(2);
    budget_ns = strtoull(arguments[1], NULL, 10) * 1000000u;
    begun_ns = clock_ns(CLOCK_MONOTONIC);
}

/* True when it has spun for long enough. The leaf comes back to ask it every millisecond or two. */
static int spun_enough(void) {
    if (late_from_ns == 0) {
        if (clock_ns(CLOCK_MONOTONIC) < begun_ns + 1000000000u) return 0;
        late_begun_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        late_from_ns = clock_ns(CLOCK_REALTIME);
        return 0;
    }
    late_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - late_begun_cpu_ns;
    if (late_cpu_ns < budget_ns) return 0;
    late_until_ns = clock_ns(CLOCK_REALTIME);
    return 1;
}

/* Work without a call and without a system call, a millisecond or two of it. */
static inline __attribute__((always_inline)) uint64_t churn(uint64_t value) {
    for (uint64_t i = 0; i < 1000000; i++) {
        value = value * 6364136223846793005u + i;
        __asm__ volatile("" : "+r"(value));
    }
    return value;
}

/* File and ELF address of an address. */
struct place {
    uintptr_t address;
    char file[256];
    uintptr_t base;
};

/* What a program mapped itself, the C library does not know. */
static uintptr_t own_start, own_end, own_base;

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Cuts what the kernel says about the file, keeps the last part of its path. */
static void shorten(char *path) {
    char *deleted = strstr(path, " (deleted)");
    if (deleted != NULL) *deleted = 0;
    path[strcspn(path, "\n")] = 0;
    memmove(path, last_part(path), strlen(last_part(path)) + 1);
}

static int base_of(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct place *place = (struct place *)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type != PT_LOAD || place->address < start || place->address - start >= header->p_memsz) continue;
        place->base = info->dlpi_addr;
        return 1;
    }
    return 0;
}

/* The file as the kernel calls it. Code that no file backs has its own address and no file. */
static struct place place_of(uintptr_t address) {
    struct place place = {address, "", 0};
    dl_iterate_phdr(base_of, &place);
    if (own_start <= address && address < own_end) place.base = own_base;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end;
        int path = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &end, &path) < 2) continue;
        if (address < start || address >= end) continue;
        snprintf(place.file, sizeof place.file, "%s", last_part(line + path));
        shorten(place.file);
    }
    if (maps != NULL) fclose(maps);
    return place;
}

static void own_name(char *name, size_t size) {
    ssize_t length = readlink("/proc/self/exe", name, size - 1);
    name[length < 0 ? 0 : length] = 0;
    shorten(name);
}

static void print_frame(struct frame frame, const char *separator) {
    const struct place place = place_of(frame.address);
    printf("%s{\"function\":\"%s\",\"file\":\"%s\",\"address\":%llu}", separator, frame.function, place.file,
           (unsigned long long)(frame.address - place.base));
}

/* Leaf first; a chain deeper than FRAMES_PRINTED shows its two ends and says how many lie between. */
static void print_truth_from(uintptr_t root) {
    char name[256];
    own_name(name, sizeof name);
    const struct place place = place_of(root);
    printf("{\"executable\":\"%s\",\"late_from_ns\":%llu,\"late_until_ns\":%llu,\"late_cpu_ns\":%llu,", name,
           (unsigned long long)late_from_ns, (unsigned long long)late_until_ns, (unsigned long long)late_cpu_ns);
    printf("\"root\":{\"file\":\"%s\",\"address\":%llu},\"frames\":[", place.file,
           (unsigned long long)(root - place.base));
    for (int i = frame_count; i-- > 0;) print_frame(frames[i], i == frame_count - 1 ? "" : ",");
    puts("]}");
    fflush(stdout);
}

/* The innermost function called a leaf without a frame. */
static __attribute__((unused)) void enter_leaf(const char *leaf) { enter(leaf, leaf_returns_to); }

/* The innermost function is where the leaf of the stack is: at any of its instructions. */
static void is_leaf(void) { enter("", NULL); }

/* The main thread's stack begins at the entry of the executable. */
static __attribute__((unused)) void print_truth(void) { print_truth_from(getauxval(AT_ENTRY)); }
#endif
