#include "memory.h"

#include <stdlib.h>
#include <string.h>

#define NUM_BUCKETS 4096
#define MAX_DEVICES 64

typedef struct node {
    allot_thing thing;
    struct node *next;
} node;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static node *buckets[NUM_BUCKETS];
/* Place in the limits + 1 of a device by its ordinal, by NO_LIMIT if it has none; 0: not asked. */
static _Atomic int places[MAX_DEVICES];

static void forget(void)
{
    /* The memory is left alone: the heap of a forked process may be locked. */
    memset(buckets, 0, sizeof buckets);
    memset((void *)places, 0, sizeof places);
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void watch(void) { allot_session_on_fork(forget); }

int allot_gpu_of(CUdevice device)
{
    CUuuid uuid;
    allot_session *session = allot_session_get();
    if (!session)
        return NO_LIMIT;
    if (device >= 0 && device < MAX_DEVICES && places[device])
        return places[device] > 0 ? places[device] - 1 : NO_LIMIT;
    CUresult found = ALLOT_DRIVER(cuDeviceGetUuid_v2, (CUuuid *, CUdevice), &uuid, device);
    if (found == CUDA_ERROR_NOT_FOUND)
        found = ALLOT_DRIVER(cuDeviceGetUuid, (CUuuid *, CUdevice), &uuid, device);
    if (found != CUDA_SUCCESS)
        return NO_LIMIT;
    int place = allot_limits_find(session->limits, uuid.bytes);
    if (device >= 0 && device < MAX_DEVICES)
        places[device] = place >= 0 ? place + 1 : NO_LIMIT;
    return place >= 0 ? place : NO_LIMIT;
}

int allot_current_gpu(void)
{
    CUdevice device;
    if (ALLOT_DRIVER(cuCtxGetDevice, (CUdevice *), &device) != CUDA_SUCCESS)
        return NO_CONTEXT;
    return allot_gpu_of(device);
}

int allot_take(int gpu, uint64_t bytes)
{
    allot_contexts_settle(gpu);
    return allot_reserve(gpu, bytes);
}

int allot_reserve(int gpu, uint64_t bytes)
{
    allot_session *session = allot_session_get();
    if (!session || gpu < 0)
        return 0;
    uint64_t limit = session->limits->gpus[gpu].bytes;
    if (allot_account_reserve(&session->account, (unsigned)gpu, bytes, limit))
        return 1;
    if (bytes > limit)
        return 0;
    allot_pools_trim(gpu);
    allot_graphs_trim(gpu);
    return allot_account_reserve(&session->account, (unsigned)gpu, bytes, limit);
}

void allot_give(int gpu, uint64_t bytes)
{
    allot_session *session = allot_session_get();
    if (session && gpu >= 0)
        allot_account_release(&session->account, (unsigned)gpu, bytes);
}

void allot_flag(unsigned flag)
{
    allot_session *session = allot_session_get();
    if (session)
        atomic_fetch_or(&session->account.map->processes[session->account.slot].flags, flag);
}

static node **bucket(uint64_t key) { return &buckets[(key * 0x9e3779b97f4a7c15ull) >> 52]; }

void allot_keep(allot_thing thing)
{
    node *new = malloc(sizeof *new);
    if (!new)
        return;
    /* What goes with its context; pools and handles outlive theirs. */
    if (!thing.context && (thing.kind == MEMORY || thing.kind == ARRAY || thing.kind == MIPMAPPED))
        ALLOT_DRIVER(cuCtxGetCurrent, (CUcontext *), &thing.context);
    pthread_mutex_lock(&mutex);
    node **place = bucket(thing.key);
    *new = (node){thing, *place};
    *place = new;
    pthread_mutex_unlock(&mutex);
}

static void take_out(node **place, allot_thing *thing)
{
    node *found = *place;
    *thing = found->thing;
    *place = found->next;
    free(found);
}

static node **seek(int kind, uint64_t key)
{
    for (node **place = bucket(key); *place; place = &(*place)->next)
        if ((*place)->thing.kind == kind && (*place)->thing.key == key)
            return place;
    return NULL;
}

int allot_lose(int kind, uint64_t key, allot_thing *thing)
{
    pthread_mutex_lock(&mutex);
    node **place = seek(kind, key);
    if (place)
        take_out(place, thing);
    pthread_mutex_unlock(&mutex);
    return place != NULL;
}

int allot_find(int kind, uint64_t key, allot_thing *thing)
{
    pthread_mutex_lock(&mutex);
    node **place = seek(kind, key);
    if (place)
        *thing = (*place)->thing;
    pthread_mutex_unlock(&mutex);
    return place != NULL;
}

int allot_count(uint64_t key, int references, int mappings, allot_thing *thing)
{
    int is_over = 0;
    pthread_mutex_lock(&mutex);
    node **place = seek(VMM_HANDLE, key);
    if (place) {
        allot_thing *counted = &(*place)->thing;
        counted->num_references += references;
        counted->num_mappings += mappings;
        is_over = counted->num_references <= 0 && counted->num_mappings <= 0;
        if (is_over)
            take_out(place, thing);
    }
    pthread_mutex_unlock(&mutex);
    return is_over;
}

static node **seek_mapping(uint64_t start, uint64_t bytes)
{
    for (int i = 0; i < NUM_BUCKETS; i++)
        for (node **place = &buckets[i]; *place; place = &(*place)->next) {
            allot_thing *thing = &(*place)->thing;
            if (thing->kind == VMM_MAPPING && thing->key < start + bytes &&
                start < thing->key + thing->bytes)
                return place;
        }
    return NULL;
}

int allot_find_mapping(uint64_t address, allot_thing *thing)
{
    pthread_mutex_lock(&mutex);
    node **place = seek_mapping(address, 1);
    if (place)
        *thing = (*place)->thing;
    pthread_mutex_unlock(&mutex);
    return place != NULL;
}

int allot_lose_mapping(uint64_t start, uint64_t bytes, allot_thing *thing)
{
    pthread_mutex_lock(&mutex);
    node **place = seek(VMM_MAPPING, start);
    if (!place)
        place = seek_mapping(start, bytes);
    if (place)
        take_out(place, thing);
    pthread_mutex_unlock(&mutex);
    return place != NULL;
}

void allot_forget_context(CUcontext context)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < NUM_BUCKETS; i++)
        for (node **place = &buckets[i]; *place;) {
            allot_thing thing = (*place)->thing;
            if (thing.context == context && (thing.kind == MEMORY || thing.kind == ARRAY ||
                                             thing.kind == MIPMAPPED)) {
                take_out(place, &thing);
                allot_give(thing.gpu, thing.bytes);
            } else {
                place = &(*place)->next;
            }
        }
    pthread_mutex_unlock(&mutex);
}
