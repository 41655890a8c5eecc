/* What NVML shows inside a session: its share of each device, its own processes and no others. */
#include <string.h>
#include <time.h>

#include "hooks.h"
#include "rules_nvml.h"

static int place_of(allot_session *session, nvmlDevice_t device)
{
    char text[96];
    uint8_t uuid[16];
    static _Atomic(void *) found;
    if (!atomic_load(&found))
        atomic_store(&found, allot_nvml_function("nvmlDeviceGetUUID"));
    nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned) = atomic_load(&found);
    if (!session || !get_uuid || get_uuid(device, text, sizeof text) != NVML_SUCCESS ||
        allot_uuid_parse(text, uuid) != 0)
        return -1;
    return allot_limits_find(session->limits, uuid);
}

nvmlReturn_t allot_nvml_init0(allot_nvml_init0_fn real)
{
    return allot_session_get() ? real() : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t allot_nvml_init(allot_nvml_init_fn real, unsigned flags)
{
    return allot_session_get() ? real(flags) : NVML_ERROR_NO_PERMISSION;
}

static unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }

nvmlReturn_t allot_nvml_memory(allot_nvml_memory_fn real, nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t outcome = real(device, memory);
    allot_session *session = allot_session_get();
    int gpu = place_of(session, device);
    if (outcome != NVML_SUCCESS || gpu < 0)
        return outcome;
    memory->total = min(session->limits->gpus[gpu].bytes, memory->total);
    memory->used = min(allot_account_used(&session->account, (unsigned)gpu), memory->total);
    memory->free = memory->total - memory->used;
    return outcome;
}

nvmlReturn_t allot_nvml_memory_v2(allot_nvml_memory_v2_fn real, nvmlDevice_t device,
                                  nvmlMemory_v2_t *memory)
{
    if (memory && memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t outcome = real(device, memory);
    allot_session *session = allot_session_get();
    int gpu = place_of(session, device);
    if (outcome != NVML_SUCCESS || gpu < 0)
        return outcome;
    memory->total = min(session->limits->gpus[gpu].bytes, memory->total - memory->reserved);
    memory->reserved = 0;
    memory->used = min(allot_account_used(&session->account, (unsigned)gpu), memory->total);
    memory->free = memory->total - memory->used;
    return outcome;
}

/* Living processes of the session that have a context or memory on a device, as they see
 * themselves: one numbering, whatever namespace the driver counts in. On a device that is not the
 * session's there are neighbours' only, hence none. */
static unsigned processes(allot_session *session, int gpu, nvmlProcessInfo_t *infos, unsigned room)
{
    allot_region *map = session->account.map;
    unsigned count = 0;
    if (gpu < 0)
        return 0;
    for (uint32_t slot = 0; slot < map->high_slot && slot < ALLOT_MAX_SLOTS; slot++) {
        uint64_t used = atomic_load(&map->used[gpu][slot]);
        if ((!used && !(atomic_load(&map->processes[slot].contexts) & 1u << gpu)) ||
            !allot_account_is_alive(&session->account, (int)slot))
            continue;
        if (count < room)
            infos[count] = (nvmlProcessInfo_t){map->processes[slot].pid, used, 0xffffffffu,
                                               0xffffffffu};
        count++;
    }
    return count;
}

nvmlReturn_t allot_nvml_processes_v2(allot_nvml_processes_v2_fn real, nvmlDevice_t device,
                                     unsigned *count, nvmlProcessInfo_t *infos)
{
    allot_session *session = allot_session_get();
    int gpu = place_of(session, device);
    if (!session)
        return real(device, count, infos);
    if (!count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = processes(session, gpu, infos, room);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t allot_nvml_processes(allot_nvml_processes_fn real, nvmlDevice_t device,
                                  unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_t found[ALLOT_MAX_SLOTS];
    allot_session *session = allot_session_get();
    int gpu = place_of(session, device);
    if (!session)
        return real(device, count, infos);
    if (!count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = processes(session, gpu, found, ALLOT_MAX_SLOTS);
    for (unsigned i = 0; i < *count && i < room; i++)
        infos[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].usedGpuMemory};
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Graphics and MPS: a session has neither. */
nvmlReturn_t allot_nvml_none(allot_nvml_none_fn real, nvmlDevice_t device, unsigned *count,
                             void *infos)
{
    (void)real, (void)device, (void)infos;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

/* The agent writes the session's utilisation into the region; the device's is its neighbours' too. */
nvmlReturn_t allot_nvml_utilisation(allot_nvml_utilisation_fn real, nvmlDevice_t device,
                                    nvmlUtilization_t *rates)
{
    nvmlReturn_t outcome = real(device, rates);
    allot_session *session = allot_session_get();
    int gpu = place_of(session, device);
    if (outcome != NVML_SUCCESS || gpu < 0)
        return outcome;
    rates->gpu = (unsigned)min(atomic_load(&session->account.map->gpus[gpu].utilisation), 100);
    rates->memory = 0;
    return outcome;
}

nvmlReturn_t allot_nvml_process_utilisation(allot_nvml_process_utilisation_fn real,
                                            nvmlDevice_t device,
                                            nvmlProcessUtilizationSample_t *samples,
                                            unsigned *count, unsigned long long since)
{
    nvmlProcessInfo_t found[ALLOT_MAX_SLOTS];
    struct timespec now;
    allot_session *session = allot_session_get();
    int gpu = place_of(session, device);
    if (!session)
        return real(device, samples, count, since);
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count, num = processes(session, gpu, found, ALLOT_MAX_SLOTS);
    *count = num;
    if (num == 0)
        return NVML_ERROR_NOT_FOUND;
    unsigned share = session->account.map->gpus[gpu].utilisation;
    if (!samples || num > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(samples, 0, num * sizeof *samples);
    for (unsigned i = 0; i < num; i++) {
        samples[i].pid = found[i].pid;
        samples[i].smUtil = share / num;
        samples[i].timeStamp =
            (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
    }
    return NVML_SUCCESS;
}
