/* Stand-in for NVIDIA's management library: the calls that fngate makes, with the structures of
 * nvml.h, answered from a small text file that is read at every call.
 *
 *     driver 580.65.06            init 9              return code of nvmlInit, default 0
 *     hang                        every call blocks until the line is removed
 *     answer nvmlDeviceGetName 3  this call always returns 3 (NVML_ERROR_NOT_SUPPORTED)
 *     gpu UUID total_mib reserved_mib other_mib major minor mig lost NAME
 *     slice PARENT UUID total_mib other_mib instance NAME
 *     proc UUID pid mib           mib -1: not available
 *     holders FOLDER              files UUID@NAME, each with the MiB that the process which has
 *                                 locked it by flock(2) holds of the GPU; without lock nothing
 *     xid UUID number instance    instance -1: the whole GPU
 *     sense UUID NAME value       a sensor or counter; without a line the call is not supported
 *     link UUID UUID level nvlink peer    the nearest common ancestor of two GPUs, and the statuses of
 *                                 NVLink and of peer access (0: OK); without a line not supported
 *
 * The file is replaced, not written in place: it is read again once it is another one.
 *
 * As with the real library, a GPU that was lost in a session stays lost until the next nvmlInit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };
#define DEVICES 128
#define PROCS 512
#define XIDS 4096
#define SENSES 512
#define LINKS 512
#define ANSWERS 64
#define EXPORT __attribute__((visibility("default")))
#define MIB 1048576ULL

typedef struct { char uuid[80], parent[80], name[96]; long total, reserved, other;
                 int major, minor, mig, lost, instance; } Device;
typedef struct { char uuid[80]; unsigned pid; long mib; } Proc;
typedef struct { char uuid[80]; unsigned long long xid; int instance; } Xid;
typedef struct { char uuid[80], name[32]; unsigned long long value; } Sense;
typedef struct { char uuid[80], other[80]; int level, nvlink, peer; } Link;
typedef struct { char call[96]; int code; } Answer;
typedef struct { char driver[80], holders[400];
                 int init, hang, devices, listed, procs, xids, senses, links, answers;
                 Device device[DEVICES]; Proc proc[PROCS]; Xid xid[XIDS];
                 Sense sense[SENSES]; Link link[LINKS]; Answer answer[ANSWERS]; } State;

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } ProcessInfo;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } EventData;
typedef struct { unsigned field, scope; long long timestamp, latency; int type, answer;
                 union { double d; unsigned u; unsigned long long ull; } value; } FieldValue;

static char path[4096];
static char names[DEVICES * 4][80];     /* target of a handle */
static int was_lost[DEVICES * 4];
static int sessions, heard;
static State state;
static struct stat seen;                /* the file that `state` is of */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT void standin_use(const char *file)
{
    snprintf(path, sizeof path, "%s", file);
    seen.st_ino = 0;
}

static void *handle(const char *uuid)
{
    for (int i = 0; i < DEVICES * 4; i++) {
        if (!names[i][0]) snprintf(names[i], sizeof names[i], "%s", uuid);
        if (!strcmp(names[i], uuid)) return names[i];
    }
    abort();
}

static int *lost_flag(const char *uuid) { return &was_lost[((char *)handle(uuid) - names[0]) / 80]; }

static void parse(char *line)
{
    Device d = {.instance = -1};
    Proc p; Xid x; Sense s; Link l; Answer a;
    if (sscanf(line, "driver %79s", state.driver) == 1) return;
    if (sscanf(line, "init %d", &state.init) == 1) return;
    if (sscanf(line, "holders %399s", state.holders) == 1) return;
    if (!strncmp(line, "hang", 4)) state.hang = 1;
    else if (sscanf(line, "answer %95s %d", a.call, &a.code) == 2) {
        if (state.answers < ANSWERS) state.answer[state.answers++] = a;
    } else if (sscanf(line, "gpu %79s %ld %ld %ld %d %d %d %d %95[^\n]", d.uuid, &d.total,
                      &d.reserved, &d.other, &d.major, &d.minor, &d.mig, &d.lost, d.name) == 9
               || sscanf(line, "slice %79s %79s %ld %ld %d %95[^\n]", d.parent, d.uuid, &d.total,
                         &d.other, &d.instance, d.name) == 6) {
        if (state.devices < DEVICES) state.device[state.devices++] = d;
    } else if (sscanf(line, "proc %79s %u %ld", p.uuid, &p.pid, &p.mib) == 3) {
        if (state.procs < PROCS) state.proc[state.procs++] = p;
    } else if (sscanf(line, "xid %79s %llu %d", x.uuid, &x.xid, &x.instance) == 3) {
        if (state.xids < XIDS) state.xid[state.xids++] = x;
    } else if (sscanf(line, "sense %79s %31s %llu", s.uuid, s.name, &s.value) == 3) {
        if (state.senses < SENSES) state.sense[state.senses++] = s;
    } else if (sscanf(line, "link %79s %79s %d %d %d", l.uuid, l.other, &l.level, &l.nvlink,
                      &l.peer) == 5) {
        if (state.links < LINKS) state.link[state.links++] = l;
    }
}

/* Adds what processes hold of a GPU to those that the file lists. A process that ends has no lock
 * from then on. The kernel lists the pids as this process knows them, also those of processes in
 * namespaces of their own. */
static void hear_holders(const char *uuid)
{
    state.procs = state.listed;
    DIR *folder = state.holders[0] ? opendir(state.holders) : NULL;
    if (!folder) return;
    char line[512], name[1024];
    unsigned long locked[PROCS];
    unsigned pids[PROCS], count = 0;
    size_t size = strlen(uuid);
    FILE *locks = fopen("/proc/locks", "r");
    while (locks && count < PROCS && fgets(line, sizeof line, locks))
        if (sscanf(line, "%*d: FLOCK %*s WRITE %u %*x:%*x:%lu", &pids[count], &locked[count]) == 2)
            count++;
    if (locks) fclose(locks);
    for (struct dirent *one; (one = readdir(folder)) && state.procs < PROCS;) {
        struct stat status;
        long mib;
        if (strncmp(one->d_name, uuid, size) || one->d_name[size] != '@') continue;
        snprintf(name, sizeof name, "%s/%s", state.holders, one->d_name);
        FILE *file = fopen(name, "r");
        if (!file) continue;
        int known = !fstat(fileno(file), &status) && fscanf(file, "%ld", &mib) == 1;
        fclose(file);
        for (unsigned i = 0; known && i < count; i++)
            if (locked[i] == status.st_ino) {
                Proc *p = &state.proc[state.procs++];
                snprintf(p->uuid, sizeof p->uuid, "%s", uuid);
                p->pid = pids[i];
                p->mib = mib;
                break;
            }
    }
    closedir(folder);
}

/* Reads the file, unless it is the one that was read last. Returns whether there is one. */
static int read_state(void)
{
    char line[512];
    struct stat now;
    FILE *file = path[0] ? fopen(path, "r") : NULL;
    if (!file) return 0;
    fstat(fileno(file), &now);
    if (now.st_ino != seen.st_ino || now.st_size != seen.st_size
        || memcmp(&now.st_mtim, &seen.st_mtim, sizeof now.st_mtim)) {
        memset(&state, 0, sizeof state);
        strcpy(state.driver, "580.65.06");
        while (fgets(line, sizeof line, file)) parse(line);
        state.listed = state.procs;
        seen = now;
    }
    fclose(file);
    return 1;
}

/* Reads the file and blocks while it says so. Returns the forced return code of the call. */
static int look(const char *call)
{
    for (;;) {
        if (!read_state()) return NO_DRIVER;
        if (!state.hang) break;
        pthread_mutex_unlock(&lock);
        usleep(2000);
        pthread_mutex_lock(&lock);
    }
    for (int i = 0; i < state.devices; i++)
        if (state.device[i].lost) *lost_flag(state.device[i].uuid) = 1;
    int code = OK;
    for (int i = 0; i < state.answers; i++)
        if (!strcmp(state.answer[i].call, call)) code = state.answer[i].code;
    return code;
}

static int begin(const char *call)
{
    pthread_mutex_lock(&lock);
    int answer = look(call);
    return answer ? answer : sessions ? OK : UNINITIALIZED;
}

static int end(int answer) { pthread_mutex_unlock(&lock); return answer; }

static Device *find(const char *uuid)
{
    for (int i = 0; i < state.devices; i++)
        if (!strcmp(state.device[i].uuid, uuid)) return &state.device[i];
    return NULL;
}

static Device *whole(int index)
{
    for (int i = 0; i < state.devices; i++)
        if (!state.device[i].parent[0] && index-- == 0) return &state.device[i];
    return NULL;
}

static int alive(Device *d)
{
    if (!d) return LOST;
    return *lost_flag(d->uuid) || (d->parent[0] && *lost_flag(d->parent)) ? LOST : OK;
}

#define ON_DEVICE(call) \
    int answer = begin(call); \
    Device *d = find(of); \
    if (!answer) answer = alive(d); \
    if (answer) return end(answer)

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    int answer = look("nvmlInitWithFlags");
    if (!answer) answer = state.init;
    if (!answer) {
        sessions++;
        memset(was_lost, 0, sizeof was_lost);
        look("");
    }
    return end(answer);
}

EXPORT int nvmlShutdown(void)
{
    int answer = begin("nvmlShutdown");
    if (sessions) sessions--;
    return end(answer);
}

EXPORT const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    int answer = begin("nvmlSystemGetDriverVersion");
    if (!answer) snprintf(text, size, "%s", state.driver);
    return end(answer);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    int answer = begin("nvmlDeviceGetCount_v2");
    for (*count = 0; whole(*count); ++*count) ;
    return end(answer);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    int answer = begin("nvmlDeviceGetHandleByIndex_v2");
    Device *d = whole(index);
    if (!answer) answer = d ? alive(d) : INVALID;
    if (!answer) *device = handle(d->uuid);
    return end(answer);
}

EXPORT int nvmlDeviceGetUUID(const char *of, char *text, unsigned size)
{
    ON_DEVICE("nvmlDeviceGetUUID");
    snprintf(text, size, "%s", d->uuid);
    return end(OK);
}

EXPORT int nvmlDeviceGetName(const char *of, char *text, unsigned size)
{
    ON_DEVICE("nvmlDeviceGetName");
    snprintf(text, size, "%s", d->name);
    return end(OK);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(const char *of, int *major, int *minor)
{
    ON_DEVICE("nvmlDeviceGetCudaComputeCapability");
    *major = d->major;
    *minor = d->minor;
    return end(OK);
}

static long used(Device *d)
{
    hear_holders(d->uuid);
    long sum = d->other;
    for (int i = 0; i < state.procs; i++)
        if (!strcmp(state.proc[i].uuid, d->uuid) && state.proc[i].mib > 0) sum += state.proc[i].mib;
    return sum;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(const char *of, MemoryV2 *memory)
{
    ON_DEVICE("nvmlDeviceGetMemoryInfo_v2");
    if (memory->version != (sizeof *memory | 2u << 24)) return end(25);
    memory->total = d->total * MIB;
    memory->reserved = d->reserved * MIB;
    memory->used = used(d) * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return end(OK);
}

EXPORT int nvmlDeviceGetMemoryInfo(const char *of, Memory *memory)
{
    ON_DEVICE("nvmlDeviceGetMemoryInfo");
    memory->total = d->total * MIB;
    memory->used = (d->reserved + used(d)) * MIB;
    memory->free = memory->total - memory->used;
    return end(OK);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const char *of, unsigned *count, ProcessInfo *info)
{
    ON_DEVICE("nvmlDeviceGetComputeRunningProcesses_v3");
    hear_holders(d->uuid);
    unsigned found = 0, room = *count;
    for (int i = 0; i < state.procs; i++) {
        if (strcmp(state.proc[i].uuid, d->uuid)) continue;
        if (info && found < room) {
            long mib = state.proc[i].mib;
            info[found] = (ProcessInfo){state.proc[i].pid, mib < 0 ? ~0ULL : mib * MIB, ~0u, ~0u};
        }
        found++;
    }
    *count = found;
    return end(found > room ? TOO_SMALL : OK);
}

/* Sensors are those of whole GPUs. */
static int sense(Device *d, const char *name, unsigned long long *value)
{
    for (int i = 0; !d->parent[0] && i < state.senses; i++)
        if (!strcmp(state.sense[i].uuid, d->uuid) && !strcmp(state.sense[i].name, name)) {
            *value = state.sense[i].value;
            return OK;
        }
    return UNSUPPORTED;
}

#define SENSE(call, type, arguments, name) \
    EXPORT int call arguments \
    { \
        ON_DEVICE(#call); \
        unsigned long long found = 0; \
        answer = sense(d, name, &found); \
        if (!answer) *value = (type)found; \
        return end(answer); \
    }

SENSE(nvmlDeviceGetPowerUsage, unsigned, (const char *of, unsigned *value), "power_mw")
SENSE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long,
      (const char *of, unsigned long long *value), "energy_mj")
SENSE(nvmlDeviceGetTemperature, unsigned, (const char *of, int sensor, unsigned *value),
      sensor == 0 ? "temperature" : "")
SENSE(nvmlDeviceGetClockInfo, unsigned, (const char *of, int clock, unsigned *value),
      clock == 1 ? "sm_clock" : clock == 2 ? "memory_clock" : "")
SENSE(nvmlDeviceGetPcieReplayCounter, unsigned, (const char *of, unsigned *value), "pcie_replays")
SENSE(nvmlDeviceGetTotalEccErrors, unsigned long long,
      (const char *of, int kind, int counter, unsigned long long *value),
      kind ? counter ? "ecc_uncorrected_ever" : "ecc_uncorrected"
           : counter ? "ecc_corrected_ever" : "ecc_corrected")

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;

EXPORT int nvmlDeviceGetPciInfo_v3(const char *of, PciInfo *info)
{
    ON_DEVICE("nvmlDeviceGetPciInfo_v3");
    unsigned long long bus = 0;
    answer = sense(d, "pci_bus", &bus);
    if (!answer) snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02llX:00.0", bus);
    return end(answer);
}

static Link *connection(const char *a, const char *b)
{
    for (int i = 0; i < state.links; i++) {
        Link *l = &state.link[i];
        if ((!strcmp(l->uuid, a) && !strcmp(l->other, b)) || (!strcmp(l->uuid, b) && !strcmp(l->other, a)))
            return l;
    }
    return NULL;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(const char *of, const char *other, int *level)
{
    ON_DEVICE("nvmlDeviceGetTopologyCommonAncestor");
    Link *l = connection(of, other);
    if (l) *level = l->level;
    return end(l ? OK : UNSUPPORTED);
}

/* Capabilities: 0 reads of the other's memory, 2 NVLink. */
EXPORT int nvmlDeviceGetP2PStatus(const char *of, const char *other, int capability, int *status)
{
    ON_DEVICE("nvmlDeviceGetP2PStatus");
    Link *l = connection(of, other);
    if (l) *status = capability == 2 ? l->nvlink : l->peer;
    return end(l ? OK : UNSUPPORTED);
}

EXPORT int nvmlDeviceGetFieldValues(const char *of, int count, FieldValue *values)
{
    ON_DEVICE("nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        unsigned long long found = 0;
        values[i].answer = sense(d, values[i].field == 82 ? "memory_temperature" : "", &found);
        values[i].value.u = found;
    }
    return end(OK);
}

/* 10% utilisation per process. */
EXPORT int nvmlDeviceGetUtilizationRates(const char *of, unsigned rates[2])
{
    ON_DEVICE("nvmlDeviceGetUtilizationRates");
    unsigned long long memory = 0;
    sense(d, "memory_utilization", &memory);
    hear_holders(d->uuid);
    rates[0] = 0;
    rates[1] = memory;
    for (int i = 0; i < state.procs; i++)
        if (!strcmp(state.proc[i].uuid, d->uuid)) rates[0] += 10;
    return end(OK);
}

EXPORT int nvmlDeviceGetMigMode(const char *of, unsigned *current, unsigned *pending)
{
    ON_DEVICE("nvmlDeviceGetMigMode");
    *current = *pending = d->mig;
    return end(OK);
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(const char *of, unsigned *count)
{
    ON_DEVICE("nvmlDeviceGetMaxMigDeviceCount");
    *count = 7;
    return end(OK);
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(const char *of, unsigned index, void **device)
{
    ON_DEVICE("nvmlDeviceGetMigDeviceHandleByIndex");
    for (int i = 0; i < state.devices; i++)
        if (!strcmp(state.device[i].parent, d->uuid) && index-- == 0) {
            *device = handle(state.device[i].uuid);
            return end(OK);
        }
    return end(NOT_FOUND);
}

EXPORT int nvmlDeviceGetGpuInstanceId(const char *of, unsigned *id)
{
    ON_DEVICE("nvmlDeviceGetGpuInstanceId");
    *id = d->instance;
    return end(d->parent[0] ? OK : INVALID);
}

EXPORT int nvmlEventSetCreate(void **set)
{
    int answer = begin("nvmlEventSetCreate");
    heard = state.xids;
    *set = &heard;
    return end(answer);
}

EXPORT int nvmlEventSetFree(void *set) { return set == &heard ? OK : INVALID; }

EXPORT int nvmlDeviceRegisterEvents(const char *of, unsigned long long types, void *set)
{
    ON_DEVICE("nvmlDeviceRegisterEvents");
    return end(types == 8 && set == &heard ? OK : UNSUPPORTED);
}

EXPORT int nvmlEventSetWait_v2(void *set, EventData *data, unsigned timeout_ms)
{
    (void)set;
    (void)timeout_ms;
    int answer = begin("nvmlEventSetWait_v2");
    if (answer) return end(answer);
    if (heard >= state.xids) return end(TIMEOUT);
    Xid *x = &state.xid[heard++];
    *data = (EventData){handle(x->uuid), 8, x->xid, x->instance, x->instance};
    return end(OK);
}

__attribute__((constructor)) static void started(void)
{
    const char *file = getenv("FN_STANDIN_NVML");
    if (file) standin_use(file);
}
