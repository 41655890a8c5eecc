/* Every way in which a program may come by the driver's functions; fills the device by 256 MiB and
 * prints how often that went well, the code of the first failure, and the total that it was told.
 *
 *     callers KIND [library]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long pointer;
typedef struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*alloc)(pointer *, size_t);
    int (*total)(size_t *, int);
} driver;

static void fill(const driver *cu)
{
    void *context;
    pointer at;
    size_t total = 0;
    int count = 0, result = cu->init(0);
    if (!result)
        result = cu->retain(&context, 0);
    if (!result)
        result = cu->set_current(context);
    if (!result)
        cu->total(&total, 0);
    while (!result && count < 1000)
        if (!(result = cu->alloc(&at, (size_t)256 << 20)))
            count++;
    printf("%d %d %zu\n", count, result, total);
}

typedef void *(*lookup)(void *, const char *);

static driver look_up(void *handle, lookup find)
{
    return (driver){find(handle, "cuInit"), find(handle, "cuDevicePrimaryCtxRetain"),
                    find(handle, "cuCtxSetCurrent"), find(handle, "cuMemAlloc_v2"),
                    find(handle, "cuDeviceTotalMem_v2")};
}

static void *plain(void *handle, const char *name) { return dlsym(handle, name); }

#ifndef STATIC
#ifdef __x86_64__
__asm__(".symver old_dlsym, dlsym@GLIBC_2.2.5");
extern void *old_dlsym(void *, const char *);
#else
#define old_dlsym dlsym
#endif
static void *old(void *handle, const char *name) { return old_dlsym(handle, name); }

static void *resolver;

static void *by_resolver(void *handle, const char *name)
{
    char base[64];
    void *found = NULL;
    int status;
    (void)handle;
    snprintf(base, sizeof base, "%s", name);
    if (strstr(base, "_v2"))
        *strstr(base, "_v2") = 0;
    ((int (*)(const char *, void **, int, unsigned long long, int *))resolver)(base, &found, 12000,
                                                                               0, &status);
    return found;
}
#endif

#ifdef LINKED
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *),
    cuMemAlloc_v2(pointer *, size_t), cuDeviceTotalMem_v2(size_t *, int);
#endif

#ifdef LIBRARY
/* As a library that is loaded with RTLD_DEEPBIND. */
void run(const char *name)
#else
int main(int argc, char **argv)
#endif
{
#ifndef LIBRARY
    const char *kind = argv[1], *name = argc > 2 ? argv[2] : "libcuda.so.1";
#ifdef LINKED
    driver linked = {cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc_v2,
                     cuDeviceTotalMem_v2};
    (void)kind, (void)name;
    fill(&linked);
    return 0;
#else
#ifndef STATIC
    if (!strcmp(kind, "deepbind")) {
        void *library = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
        ((void (*)(const char *))dlsym(library, "run"))("libcuda.so.1");
        return 0;
    }
#endif
    void *handle = !strcmp(kind, "dlmopen") ? dlmopen(LM_ID_NEWLM, name, RTLD_NOW)
                                            : dlopen(name, RTLD_NOW);
    if (!handle) {
        printf("%s\n", dlerror());
        return 1;
    }
    lookup find = plain;
#ifndef STATIC
    if (!strcmp(kind, "old dlsym"))
        find = old;
    if (!strcmp(kind, "resolver")) {
        resolver = dlsym(handle, "cuGetProcAddress_v2");
        find = by_resolver;
    }
#endif
    driver cu = look_up(handle, find);
    fill(&cu);
    return 0;
#endif
#else
    driver cu = look_up(dlopen(name, RTLD_NOW), plain);
    fill(&cu);
#endif
}
