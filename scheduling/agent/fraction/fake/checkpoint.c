/* Fake libcuda: the checkpoint calls (driver 570 and newer). The controller is another process:
 * state, and the memory that moved to the host, lie in the target's slot of the devices' file. */
#include "libcuda.h"

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };

static CUresult target_of(const char *function, int pid, fake_driver **driver, int *slot)
{
    FAKE_ENTER(function);
    *driver = fake_driver_get();
    *slot = fake_slot_of(*driver, pid);
    return *slot >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define TARGET(function, expected)                                                                 \
    fake_driver *driver;                                                                           \
    int slot;                                                                                      \
    CUresult found_ = target_of(function, pid, &driver, &slot);                                    \
    if (found_ != CUDA_SUCCESS)                                                                    \
        return found_;                                                                             \
    allot_region_process *target = &driver->account.map->processes[slot];                          \
    if (atomic_load(&target->checkpoint_state) != (expected))                                      \
        return CUDA_ERROR_ILLEGAL_STATE;

FAKE_EXPORT CUresult cuCheckpointProcessGetState(int pid, int *state)
{
    fake_driver *driver;
    int slot;
    CUresult found = target_of("cuCheckpointProcessGetState", pid, &driver, &slot);
    if (found == CUDA_SUCCESS)
        *state = (int)atomic_load(&driver->account.map->processes[slot].checkpoint_state);
    return found;
}

FAKE_EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    fake_driver *driver;
    int slot;
    *tid = pid;
    return target_of("cuCheckpointProcessGetRestoreThreadId", pid, &driver, &slot);
}

FAKE_EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    TARGET("cuCheckpointProcessLock", RUNNING)
    uint64_t began = fake_now_ns(), limit = args && args->timeoutMs ? args->timeoutMs * 1000000ull : 0;
    /* New calls wait from now on; what the device works on must end first. */
    atomic_store(&target->checkpoint_state, LOCKED);
    while (atomic_load(&target->busy_until) > fake_now_ns()) {
        if (limit && fake_now_ns() - began > limit) {
            atomic_store(&target->checkpoint_state, RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        fake_sleep_ns(1000000);
    }
    return CUDA_SUCCESS;
}

static void copy(const fake_driver *driver, uint64_t bytes)
{
    if (driver->bandwidth_mib_s)
        fake_sleep_ns((uint64_t)((double)bytes / (double)(driver->bandwidth_mib_s << 20) * 1e9));
}

FAKE_EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    (void)args;
    TARGET("cuCheckpointProcessCheckpoint", LOCKED)
    uint64_t bytes = 0;
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++) {
        uint64_t used = atomic_load(&driver->account.map->used[gpu][slot]);
        atomic_store(&driver->account.map->saved[gpu][slot], used);
        bytes += used;
    }
    copy(driver, bytes);
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++)
        atomic_store(&driver->account.map->used[gpu][slot], 0);
    atomic_store(&target->checkpoint_state, CHECKPOINTED);
    return CUDA_SUCCESS;
}

/* Room is taken in the controller's slot and handed over: no neighbour can get in between. */
static int take_room(fake_driver *driver, int slot)
{
    allot_region *map = driver->account.map;
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++) {
        uint64_t saved = atomic_load(&map->saved[gpu][slot]);
        if (saved && !allot_account_reserve(&driver->account, (unsigned)gpu, saved, map->gpus[gpu].limit)) {
            while (--gpu >= 0)
                allot_account_release(&driver->account, (unsigned)gpu,
                                      atomic_load(&map->saved[gpu][slot]));
            return 0;
        }
    }
    return 1;
}

FAKE_EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    (void)args;
    TARGET("cuCheckpointProcessRestore", CHECKPOINTED)
    /* As seen on a T4: out of memory once, and the process is lost. */
    if (atomic_load(&target->is_broken))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!take_room(driver, slot)) {
        atomic_store(&target->is_broken, 1);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t bytes = 0;
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++) {
        uint64_t saved = atomic_load(&driver->account.map->saved[gpu][slot]);
        bytes += saved;
        atomic_fetch_add(&driver->account.map->used[gpu][slot], saved);
        allot_account_release(&driver->account, (unsigned)gpu, saved);
        atomic_store(&driver->account.map->saved[gpu][slot], 0);
    }
    copy(driver, bytes);
    atomic_store(&target->checkpoint_state, LOCKED);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    (void)args;
    TARGET("cuCheckpointProcessUnlock", LOCKED)
    atomic_store(&target->checkpoint_state, RUNNING);
    return CUDA_SUCCESS;
}
