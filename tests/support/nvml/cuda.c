/* Stand-in for CUDA's driver library: the calls of tests/gpu/card_server.py, with memory of the host.
 *
 * The visible GPUs are the numbers in CUDA_VISIBLE_DEVICES; number N is at the PCI address
 * 0000:1N:00.0. A process with memory on a GPU holds an exclusive lock (flock(2)) on the file N in the
 * folder "claims" beside this library: a GPU has one process at a time, and whoever shows its memory
 * on a stand-in board finds the process in /proc/locks. Only the first MiB of a buffer exists.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, TAKEN = 46 };
#define CARDS 8
#define KEPT 1048576UL
#define EXPORT __attribute__((visibility("default")))

static int numbers[CARDS], locked[CARDS], count, current;

static unsigned long least(unsigned long size) { return size < KEPT ? size : KEPT; }

EXPORT int cuInit(unsigned flags)
{
    const char *rest = getenv("CUDA_VISIBLE_DEVICES");
    int used, number;
    (void)flags;
    while (rest && count < CARDS && sscanf(rest, "%d%n", &number, &used) == 1) {
        numbers[count++] = number;
        rest = rest[used] == ',' ? rest + used + 1 : NULL;
    }
    return count ? OK : NO_DEVICE;
}

EXPORT int cuDeviceGetCount(int *found) { *found = count; return OK; }

EXPORT int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < count ? OK : INVALID;
}

EXPORT int cuDeviceGetPCIBusId(char *id, int size, int device)
{
    snprintf(id, size, "0000:1%d:00.0", numbers[device]);
    return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(long)(device + 1);
    return OK;
}

EXPORT int cuCtxSetCurrent(void *context) { current = (int)(long)context - 1; return OK; }
EXPORT int cuCtxSynchronize(void) { return OK; }

EXPORT int cuMemAlloc_v2(unsigned long long *pointer, unsigned long size)
{
    char path[4096];
    Dl_info self;
    if (!locked[current] && dladdr((void *)cuInit, &self)) {
        const char *slash = strrchr(self.dli_fname, '/');
        snprintf(path, sizeof path, "%.*s/claims/%d", (int)(slash - self.dli_fname), self.dli_fname,
                 numbers[current]);
        int file = open(path, O_RDWR | O_CREAT, 0600);
        if (file < 0 || flock(file, LOCK_EX | LOCK_NB)) return TAKEN;
        locked[current] = 1;
    }
    void *memory = malloc(least(size));
    *pointer = (unsigned long long)memory;
    return memory ? OK : OUT_OF_MEMORY;
}

EXPORT int cuMemsetD8_v2(unsigned long long to, unsigned char value, unsigned long size)
{
    memset((void *)to, value, least(size));
    return OK;
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int other)
{
    *can = device != other;
    return OK;
}

EXPORT int cuMemcpyPeer(unsigned long long to, void *there, unsigned long long from, void *here,
                        unsigned long size)
{
    if (there == here) return INVALID;
    memcpy((void *)to, (void *)from, least(size));
    return OK;
}

EXPORT int cuMemcpyDtoH_v2(void *to, unsigned long long from, unsigned long size)
{
    memcpy(to, (void *)from, least(size));
    return OK;
}
