/* A stand-in for NVIDIA's libnvidia-ml.so.1 that says what a file says, read at every call.
 *
 * SITS_STUB_NVML names the file. Its lines, whole numbers with blanks between:
 *   init ERROR                     what nvmlInit returns
 *   hang FUNCTION                  that function does not come back
 *   refuse FUNCTION ERROR          what it returns
 *   gpu I UTIL TOTAL USED MW LIMIT_MW CELSIUS REASONS MIG ERROR
 *   mig I GI CI TOTAL USED         a MIG instance of GPU I
 *   proc I PID BYTES SM GI CI      a process on GPU I; GI and CI of -1 for no instance
 * ERROR is an nvmlReturn_t, and the one of a GPU is what every call about it returns.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, MOST = 64 };

typedef unsigned int u32;
typedef unsigned long long u64;

struct gpu { int index; u32 util; u64 total, used; u32 mw, limit_mw, celsius; u64 reasons; u32 mig; int error; };
struct mig { int gpu, gi, ci; u64 total, used; };
struct proc { int gpu; u32 pid; u64 bytes; u32 sm; int gi, ci; };

static struct { int init, gpus, migs, procs; struct gpu gpu[MOST]; struct mig mig[MOST]; struct proc proc[MOST]; } said;
static u64 clock_us = 1000;

/* Reads the file for a call of `name`; what the call returns by it. */
static int begin(const char *name)
{
	char line[256], word[128];
	int error, result = SUCCESS;
	const char *path = getenv("SITS_STUB_NVML");
	FILE *file = path ? fopen(path, "r") : NULL;
	memset(&said, 0, sizeof(said));
	if (!file)
		return SUCCESS;
	while (fgets(line, sizeof(line), file)) {
		struct gpu *g = &said.gpu[said.gpus];
		struct mig *m = &said.mig[said.migs];
		struct proc *p = &said.proc[said.procs];
		if (sscanf(line, "init %d", &said.init) == 1)
			continue;
		if (sscanf(line, "hang %127s", word) == 1 && !strcmp(word, name)) {
			fclose(file);
			for (;;)
				pause();
		}
		if (sscanf(line, "refuse %127s %d", word, &error) == 2 && !strcmp(word, name))
			result = error;
		if (sscanf(line, "gpu %d %u %llu %llu %u %u %u %llu %u %d", &g->index, &g->util, &g->total, &g->used,
			   &g->mw, &g->limit_mw, &g->celsius, &g->reasons, &g->mig, &g->error) == 10)
			said.gpus++;
		else if (sscanf(line, "mig %d %d %d %llu %llu", &m->gpu, &m->gi, &m->ci, &m->total, &m->used) == 5)
			said.migs++;
		else if (sscanf(line, "proc %d %u %llu %u %d %d", &p->gpu, &p->pid, &p->bytes, &p->sm, &p->gi, &p->ci) == 6)
			said.procs++;
	}
	fclose(file);
	return result;
}

/* A handle is the index of a GPU and one, or that of an instance and MOST and one. */
static struct mig *mig_of(void *device)
{
	intptr_t number = (intptr_t)device - 1 - MOST;
	return number >= 0 && number < said.migs ? &said.mig[number] : NULL;
}

static struct gpu *gpu_of(void *device)
{
	struct mig *mig = mig_of(device);
	intptr_t number = mig ? mig->gpu : (intptr_t)device - 1;
	return number >= 0 && number < said.gpus ? &said.gpu[number] : NULL;
}

#define BEGIN(device)                                   \
	int result = begin(__func__);                       \
	struct gpu *gpu = gpu_of(device);                   \
	if (result)                                         \
		return result;                                  \
	if (!gpu)                                           \
		return NOT_FOUND;                               \
	if (gpu->error)                                     \
		return gpu->error

int nvmlInitWithFlags(u32 flags) { int result = begin(__func__); (void)flags; return said.init ? said.init : result; }
int nvmlShutdown(void) { return begin(__func__); }
int nvmlSystemGetDriverVersion(char *text, u32 size) { int result = begin(__func__); snprintf(text, size, "999.1"); return result; }
int nvmlDeviceGetCount_v2(u32 *count) { int result = begin(__func__); *count = said.gpus; return result; }

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **device)
{
	int result = begin(__func__);
	*device = (void *)(intptr_t)(index + 1);
	return result ? result : (int)index < said.gpus ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *text, u32 size)
{
	int result = begin(__func__);
	snprintf(text, size, "%s-%ld", mig_of(device) ? "MIG" : "GPU", (long)(intptr_t)device);
	return result;
}

int nvmlDeviceGetName(void *device, char *text, u32 size) { (void)device; snprintf(text, size, "Stub 1"); return begin(__func__); }

int nvmlDeviceGetMigMode(void *device, u32 *now, u32 *next)
{
	BEGIN(device);
	*now = *next = gpu->mig;
	return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, u32 *count) { BEGIN(device); *count = 7; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **mig)
{
	BEGIN(device);
	for (int i = 0; i < said.migs; i++)
		if (said.mig[i].gpu == gpu->index && index-- == 0) {
			*mig = (void *)(intptr_t)(i + 1 + MOST);
			return SUCCESS;
		}
	return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *device, u32 *id) { BEGIN(device); *id = mig_of(device)->gi; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *device, u32 *id) { BEGIN(device); *id = mig_of(device)->ci; return SUCCESS; }

int nvmlDeviceGetMemoryInfo(void *device, u64 *memory)
{
	BEGIN(device);
	struct mig *mig = mig_of(device);
	u64 total = mig ? mig->total : gpu->total, used = mig ? mig->used : gpu->used;
	memory[0] = total, memory[1] = total - used, memory[2] = used;
	return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, u32 *use)
{
	BEGIN(device);
	if (gpu->mig)
		return NOT_SUPPORTED;
	use[0] = gpu->util, use[1] = gpu->util / 2;
	return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, u32 *mw) { BEGIN(device); *mw = gpu->mw; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, u32 *mw) { BEGIN(device); *mw = gpu->limit_mw; return SUCCESS; }
int nvmlDeviceGetTemperature(void *device, u32 sensor, u32 *c) { BEGIN(device); (void)sensor; *c = gpu->celsius; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *bits) { BEGIN(device); *bits = gpu->reasons; return SUCCESS; }

struct process_info { u32 pid; u64 bytes; u32 gi, ci; };

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, struct process_info *out)
{
	BEGIN(device);
	u32 found = 0, room = *count;
	for (int i = 0; i < said.procs; i++)
		if (said.proc[i].gpu == gpu->index) {
			if (found < room)
				out[found] = (struct process_info){ said.proc[i].pid, said.proc[i].bytes, said.proc[i].gi, said.proc[i].ci };
			found++;
		}
	*count = found;
	return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

struct use_sample { u32 pid; u64 at_us; u32 sm, mem, enc, dec; };

/* One sample for each busy process and call, newer than the last. */
int nvmlDeviceGetProcessUtilization(void *device, struct use_sample *out, u32 *count, u64 since_us)
{
	BEGIN(device);
	u32 found = 0, room = *count;
	if (gpu->mig)
		return NOT_SUPPORTED;
	(void)since_us;
	clock_us += 1000;
	for (int i = 0; i < said.procs; i++)
		if (said.proc[i].gpu == gpu->index && said.proc[i].sm) {
			if (out && found < room)
				out[found] = (struct use_sample){ said.proc[i].pid, clock_us, said.proc[i].sm, 0, 0, 0 };
			found++;
		}
	*count = found;
	if (!found)
		return NOT_FOUND;
	return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
