/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Run-queue delay where the kernel has no BTF: bpf/sched.bpf.c without task storage, who held the
 * CPU by name, thread roles and edges. Raw tracepoints: the arguments as the kernel passes them.
 */

/* what we know of one watched thread, by its id; removed when it dies */
struct thread {
	u64 runnable_ns; /* 0: not waiting for a CPU */
	u64 running_ns; /* 0: not on a CPU */
	u64 slot;
};

BPF_TABLE("hash", u32, struct thread, threads, 65536);
BPF_TABLE_PINNED("hash", u64, u32, cpu_cgroups, 16384, PINS "cpu_cgroups", BPF_F_NO_PREALLOC);
BPF_TABLE_PINNED("hash", u32, u32, processes, 16384, PINS "processes", BPF_F_NO_PREALLOC);
BPF_TABLE_PINNED("percpu_array", u32, struct histogram, wait_histograms, MAX_TARGETS,
		 PINS "wait_histograms");

/* include/linux/sched.h since 4.14 (8ef9925b02c2): the thread's last switch */
#define LAST_SWITCH 0x80

static __always_inline u64 cpu_cgroup_of(struct task_struct *task)
{
	struct cgroup_subsys_state *css = NULL;
	struct cgroup *cgroup = NULL;
	struct css_set *set = NULL;

	FETCH(set, task->cgroups);
#if CPU_ON_V1
	FETCH(css, set->subsys[cpu_cgrp_id]);
	FETCH(cgroup, css->cgroup);
#else
	FETCH(cgroup, set->dfl_cgrp);
#endif
	return id_of(cgroup);
}

/* The target a task belongs to, 0 for none. */
static __always_inline u32 slot_of(struct task_struct *task)
{
	u32 tgid = 0, *slot;
	u64 cgroup;

	FETCH(tgid, task->tgid);
	slot = processes.lookup(&tgid);
	if (!slot) {
		cgroup = cpu_cgroup_of(task);
		slot = cpu_cgroups.lookup(&cgroup);
	}
	return slot && *slot < MAX_TARGETS ? *slot : 0;
}

/* What is known of a thread of this target; what it did for another one counts no more. */
static __always_inline struct thread *thread_of(u32 pid, u32 slot)
{
	struct thread fresh = { .slot = slot };
	struct thread *thread = threads.lookup(&pid);

	if (thread && thread->slot == slot)
		return thread;
	threads.update(&pid, &fresh);
	return threads.lookup(&pid);
}

static __always_inline int became_runnable(struct task_struct *task)
{
	struct thread *thread;
	u32 slot = slot_of(task), pid = 0;

	if (!slot)
		return 0;
	FETCH(pid, task->pid);
	thread = thread_of(pid, slot);
	if (thread)
		thread->runnable_ns = bpf_ktime_get_ns();
	return 0;
}

int wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	return became_runnable((struct task_struct *)ctx->args[0]);
}

int wakeup_new(struct bpf_raw_tracepoint_args *ctx)
{
	return became_runnable((struct task_struct *)ctx->args[0]);
}

static __always_inline void left_cpu(u32 pid, u32 slot, bool runnable, u64 now)
{
	struct thread *thread = thread_of(pid, slot);
	struct counters *c = counters_of(slot);

	if (!thread || !c)
		return;
	if (thread->running_ns)
		c->run_ns += now - thread->running_ns;
	c->involuntary += runnable;
	thread->running_ns = 0;
	/* also clears a stamp from a wake-up that found the task still running */
	thread->runnable_ns = runnable ? now : 0;
}

static __always_inline void came_on_cpu(u32 pid, u32 slot, u32 holder_pid, u32 holder_slot, u64 now)
{
	struct thread *thread = thread_of(pid, slot);
	struct counters *c = counters_of(slot);
	struct target *target = targets.lookup(&slot);
	struct histogram *h = wait_histograms.lookup(&slot);
	u64 wait, bucket;

	if (!thread || !c || !h || !target)
		return;
	thread->running_ns = now;
	if (!thread->runnable_ns)
		return;
	wait = now - thread->runnable_ns;
	thread->runnable_ns = 0;
	c->wait_ns += wait;
	c->waits++;
	h->sum_ns += wait;
	bucket = histogram_slot(wait);
	if (bucket < HIST_SLOTS)
		h->slots[bucket]++;
	if (holder_pid) { /* an idle CPU was held by nobody */
		if (holder_slot == slot)
			c->wait_self_ns += wait;
		else
			c->wait_other_ns += wait;
	}
	if (holder_slot != slot && target->wait_edge_ns && wait >= target->wait_edge_ns)
		c->waits_over++;
}

int switch_tasks(struct bpf_raw_tracepoint_args *ctx)
{
	bool preempt = ctx->args[0];
	struct task_struct *prev = (struct task_struct *)ctx->args[1];
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	u32 prev_pid = 0, next_pid = 0, prev_slot = 0, next_slot = 0;
	u64 now = bpf_ktime_get_ns();
	long state = 0;

	FETCH(prev_pid, prev->pid);
	FETCH(next_pid, next->pid);
#if HAVE_PREV_STATE
	state = (u32)ctx->args[3];
#else
	FETCH(state, prev->STATE_FIELD);
#endif
	if (prev_pid) {
		prev_slot = slot_of(prev);
		if (prev_slot)
			left_cpu(prev_pid, prev_slot, preempt || state == 0, now);
		if (state & LAST_SWITCH)
			threads.delete(&prev_pid);
	}
	if (next_pid) {
		next_slot = slot_of(next);
		if (next_slot)
			came_on_cpu(next_pid, next_slot, prev_pid, prev_slot, now);
	}
	return 0;
}
