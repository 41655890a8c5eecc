/* Times calls of the driver: calls LIBRARY NUMBER prints nanoseconds per call as JSON; with `hold`
 * instead of a number it takes a little memory and waits for its input to end. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long pointer;

static double now_ns(void)
{
    struct timespec t;
    /* CPU time: none of these calls waits, and others on the machine do not count. */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *library;

#define FUNCTION(type, name) __typeof__(type) name = (__typeof__(type))dlsym(library, #name)
#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (call)                                                                                  \
            exit(2);                                                                               \
    } while (0)

int main(int argc, char **argv)
{
    void *context, *function, *module;
    pointer at;
    size_t free_bytes, total;
    library = dlopen(argv[1], RTLD_NOW);
    if (!library || argc < 3)
        return 1;
    FUNCTION(int (*)(unsigned), cuInit);
    FUNCTION(int (*)(void **, int), cuDevicePrimaryCtxRetain);
    FUNCTION(int (*)(void *), cuCtxSetCurrent);
    FUNCTION(int (*)(pointer *, size_t), cuMemAlloc_v2);
    FUNCTION(int (*)(pointer), cuMemFree_v2);
    FUNCTION(int (*)(pointer *, size_t, void *), cuMemAllocAsync);
    FUNCTION(int (*)(pointer, void *), cuMemFreeAsync);
    FUNCTION(int (*)(size_t *, size_t *), cuMemGetInfo_v2);
    FUNCTION(int (*)(void **, const void *), cuModuleLoadData);
    FUNCTION(int (*)(void **, void *, const char *), cuModuleGetFunction);
    FUNCTION(int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void *, void **, void **), cuLaunchKernel);
    MUST(cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context));
    if (!strcmp(argv[2], "hold")) {
        MUST(cuMemAlloc_v2(&at, 1 << 20));
        puts("ready");
        fflush(stdout);
        getchar();
        return 0;
    }
    MUST(cuModuleLoadData(&module, "") || cuModuleGetFunction(&function, module, "plain"));
    int n = atoi(argv[2]);
    double began = now_ns();
    for (int i = 0; i < n; i++)
        MUST(cuMemAlloc_v2(&at, 1 << 20) || cuMemFree_v2(at));
    printf("{\"alloc\": %.1f, ", (now_ns() - began) / n / 2);
    began = now_ns();
    for (int i = 0; i < n; i++)
        MUST(cuMemAllocAsync(&at, 1 << 20, 0) || cuMemFreeAsync(at, 0));
    printf("\"pool\": %.1f, ", (now_ns() - began) / n / 2);
    began = now_ns();
    for (int i = 0; i < n; i++)
        MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    printf("\"launch\": %.1f, ", (now_ns() - began) / n);
    began = now_ns();
    for (int i = 0; i < n; i++)
        MUST(cuMemGetInfo_v2(&free_bytes, &total));
    printf("\"info\": %.1f}\n", (now_ns() - began) / n);
    return 0;
}
